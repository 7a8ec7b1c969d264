"""Shapes of published Pre-LN models, and the shapes that our own losses prefer (paper Fig. 1 right).

Marks: published models, size over aspect ratio d_model / n_layers, both logarithmic. Bars: for each budget of ours and
each design the aspect ratios of the shape with the lowest held-out loss, a line, and of those that cannot be told from
it: the 95 % interval over documents of their difference holds 0. A bar reaches half way, on the logarithmic axis, to
the next shape that was trained; at the end of those it is open.
"""

import textwrap

import numpy as np
import pandas as pd
import plotnine as p9

from depthbench.artifacts import ArtifactSpec
from depthbench.figures import _aspect, _theme
from depthbench.stats import PERCENTILES
from depthbench.tables import losses
from depthbench.tables._measured import resampled

FILES = ("run.json", "validation.csv", "validation_docs.parquet", "industry_shapes.csv")
COLUMNS = [
    *("kind", "name", "family", "design", "scale", "parameters", "n_layers", "d_model", "aspect_ratio", "aspect_low"),
    *("aspect_high", "open_end", "source"),
]
# What a name begins with -> how its models are marked.
FAMILIES = {
    **{"GPT": "o", "OPT": "s", "Pythia": "^", "LLaMA": "D", "Mistral": "v", "Qwen": "<", "TinyLlama": ">"},
    **{"SmolLM": "p", "MobileLLM": "d", "Yi": "+", "DeepSeek": "*", "Gemma": "x", "other": "h"},
}
BAR = 0.0075  # the width of a bar in that of the panel
UNITS = {1e9: "B", 1e6: "M", 1e3: "k"}
HEIGHT = 3.6  # inch, without the note


def draw(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> tuple[p9.ggplot, pd.DataFrame]:
    """Return the plot and its frame: one row per published model, and per budget and design of ours."""
    table = losses.held_out(frames, spec)
    own = preferred(table, resampled(frames, spec))
    frame = pd.concat([models(frames["industry_shapes"]), own], ignore_index=True).reindex(columns=COLUMNS)
    note = textwrap.fill(" ".join(remarks(own, table, spec)), _theme.NOTE_WIDTH)
    return plot(frame, note, spec), frame


def models(table: pd.DataFrame) -> pd.DataFrame:
    """Return the published models with their families and aspect ratios."""
    names = table["model"].str.lower()
    families = [next((f for f in FAMILIES if name.startswith(f.lower())), "other") for name in names]
    return table.assign(
        kind="published",
        name=table["model"],
        family=families,
        parameters=1e9 * table["parameters_b"],
        aspect_ratio=table["d_model"] / table["n_layers"],
    )


def preferred(table: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """Return the aspect ratios that each design prefers at each scale, where at least two shapes have a loss."""
    rows = []
    sizes = table.groupby("scale")["n_params"].median().astype("float64").to_dict()
    cells = table[(table["seed"] == 0) & (table["status"] == "ok")].groupby(["scale", "design"], sort=False)
    for (scale, design), runs in cells:
        runs = runs.sort_values("aspect_ratio").reset_index(drop=True)
        if runs["aspect_ratio"].nunique() < 2:
            continue
        best = runs.iloc[int(runs["loss"].argmin())]
        differences = samples[runs["run_id"]].to_numpy() - samples[[best["run_id"]]].to_numpy()
        low = np.percentile(differences, PERCENTILES[0], axis=0)
        tied = runs.index[(low <= 0) | (runs["run_id"] == best["run_id"])]
        bounds, ends = reach(runs["aspect_ratio"].to_numpy(), tied.min(), tied.max())
        shape = {key: best[key] for key in ("n_layers", "d_model", "aspect_ratio")}
        span = dict(zip(("aspect_low", "aspect_high"), bounds, strict=True))
        row = {"kind": "ours", "name": best["label"], "design": design, "scale": scale, "parameters": sizes[scale]}
        rows.append(row | shape | span | {"open_end": ends, "source": best["run_id"]})
    return pd.DataFrame(rows, columns=COLUMNS)


def reach(ratios: np.ndarray, first: int, last: int) -> tuple[tuple[float, float], str]:
    """Return how far a bar reaches over rising aspect ratios, and at which end no shape bounds it."""
    low = np.sqrt(ratios[first - 1] * ratios[first]) if first > 0 else ratios[0]
    high = np.sqrt(ratios[last] * ratios[last + 1]) if last + 1 < len(ratios) else ratios[-1]
    ends = ["deep-narrow"] * (first == 0) + ["shallow-wide"] * (last + 1 == len(ratios))
    return (float(low), float(high)), ", ".join(ends)


def remarks(own: pd.DataFrame, table: pd.DataFrame, spec: ArtifactSpec) -> list[str]:
    """Return the sentences of the note."""
    if own.empty:
        return ["Nothing is shaded: no design of this study has losses at two shapes of one budget."]
    order = [spec.labels[design][0] for design in spec.designs if design in set(own["design"])]
    found = [
        f"Bars: aspect ratios of lowest held-out loss in our runs, from left to right {', '.join(order)}; line: the"
        " lowest; bar: what the interval over documents cannot tell from it. One seed."
    ]
    if (ended := own[own["open_end"] != ""]).size:
        named = [
            f"{design} at {', '.join(rows['scale'])} ({end})"
            for (design, end), rows in ended.groupby(["name", "open_end"], sort=False)
        ]
        found.append(f"Not bounded by a shape with a loss: {'; '.join(named)}.")
    diverged = table[(table["status"] == "diverged") & (table["seed"] == 0)].groupby(["label", "scale"], sort=False)
    if len(diverged):
        named = [f"{label} at {scale} {_aspect.names(rows)}" for (label, scale), rows in diverged]
        found.append(f"Diverged: {'; '.join(named)}.")
    missing = int((table["status"] == "missing").sum())
    return found + [f"{missing} of {len(table)} runs are missing."] * (missing > 0)


def plot(frame: pd.DataFrame, note: str, spec: ArtifactSpec) -> p9.ggplot:
    """Return published models as hollow marks over the bars of ours."""
    published, own = frame[frame["kind"] == "published"], frame[frame["kind"] == "ours"]
    ratios = [2.0**power for power in range(1, 9)]
    return (
        p9.ggplot(mapping=p9.aes("parameters", "aspect_ratio"))
        + (bars(own, spec, BAR * np.ptp(np.log10(frame["parameters"]))) if len(own) else [])
        + p9.geom_point(p9.aes(shape="family"), published, color=_theme.INK, fill="none", size=2.0, stroke=0.4)
        + p9.scale_shape_manual(FAMILIES, breaks=[f for f in FAMILIES if f in set(published["family"])])
        + p9.scale_x_log10(name="Parameters", labels=lambda sizes: [count(size) for size in sizes])
        + p9.scale_y_log10(name="Aspect ratio d/L, from deep-narrow to shallow-wide", breaks=ratios)
        + p9.labs(caption=note)
        + _theme.theme(HEIGHT + 0.13 * (note.count("\n") + 1))
        + p9.theme(legend_position="right")
    )


def bars(own: pd.DataFrame, spec: ArtifactSpec, width: float) -> list:
    """Return the bars of the designs side by side, `width` decades each, a line at the lowest loss, and colours."""
    styles = {design: style for design, style in _theme.styles(spec).items() if design in set(own["design"])}
    rank = own["design"].map({design: i for i, design in enumerate(styles)}) - len(styles) / 2
    left = np.log10(own["parameters"]) + width * rank
    own = own.assign(left=10**left, right=10 ** (left + 0.9 * width))
    colours = {design: style.colour for design, style in styles.items()}
    edges = p9.aes(xmin="left", xmax="right", ymin="aspect_low", ymax="aspect_high", fill="design")
    return [
        p9.geom_rect(edges, own, inherit_aes=False, alpha=0.55),
        p9.geom_segment(
            p9.aes("left", "aspect_ratio", xend="right", yend="aspect_ratio"),
            own,
            inherit_aes=False,
            color=_theme.INK,
            size=0.8,
        ),
        p9.scale_fill_manual(colours, breaks=list(styles), labels=[spec.labels[design][0] for design in styles]),
    ]


def count(number: float | str) -> str:
    """Return a number of parameters in few digits: 200k, 1B."""
    value = float(number)
    factor = next((factor for factor in UNITS if value >= factor), 1e3)
    return f"{value / factor:g}{UNITS[factor]}"

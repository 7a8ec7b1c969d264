"""What a prompt costs over the aspect ratio d_model / n_layers (paper Fig. 11), and what the loss is for that.

FLOPs and key/value cache are of one sequence and follow from closed forms. Peak memory is shown for a prefill of all
positions at once, as in the paper, and in chunks; both panels have one scale. Device-hours are those of the batch, all
positions at once. The loss has a panel of its own: the paper draws it dashed, on a second scale. Hollow marks are the
paper's least and largest FLOPs of all designs, where the study shows published values (`reference`).
"""

import dataclasses
import textwrap

import pandas as pd
import plotnine as p9

from depthbench import reference
from depthbench.artifacts import ArtifactSpec, runs_frame
from depthbench.figures import _aspect, _theme

PAPER = "Paper"
FILES = ("prefill.csv", "validation.csv")
SHAPE = ["design", "n_layers", "d_model"]
COSTS = {  # panel: mode, column, divisor
    "kv_cache": ("unchunked", "kv_bytes", 2**20),
    "device_hours": ("unchunked", "device_hours", 1e-6),
    "memory_unchunked": ("unchunked", "peak_bytes", 2**30),
    "memory_chunked": ("chunked", "peak_bytes", 2**30),
}
COLUMNS = [
    *("panel", "design", "label", "n_layers", "d_model", "aspect_ratio", "lr", "seed", "status"),
    *("value", "unit", "chunk", "run_id"),
]


def draw(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> tuple[p9.ggplot, pd.DataFrame]:
    """Return the plot and its frame: one row per panel and design and shape, missing runs included (`status`)."""
    costs, headings = frames["prefill"], _headings(frames["prefill"])
    runs = runs_frame(spec)
    runs = runs[runs["seed"] == 0]
    losses = runs.merge(frames["validation"][["run_id", "status", "loss"]], on="run_id", how="left", validate="1:1")
    losses["status"] = losses["status"].fillna("missing")
    flops_unit = 1e12 if costs["flops"].max() >= 1e12 else 1e9
    parts = {"flops": _panel(runs, costs, "unchunked", "flops", flops_unit)}
    parts["loss"] = losses.rename(columns={"loss": "value"})
    parts |= {panel: _panel(runs, costs, *how) for panel, how in COSTS.items()}
    frame = pd.concat([part.assign(panel=panel) for panel, part in parts.items()], ignore_index=True)
    frame["unit"] = frame["panel"].map({panel: heading.rpartition("[")[2][:-1] for panel, heading in headings.items()})
    sentences = remarks(frame, costs)
    if len(theirs := published(frames, flops_unit)):
        frame = pd.concat([frame.assign(hollow=False), theirs], ignore_index=True)
        spec = dataclasses.replace(spec, labels={**spec.labels, PAPER: (PAPER, "baseline")})
        sentences.append(f"Hollow: about the least and the largest FLOPs of all designs, {reference.PAPER}.")
    shown = frame.rename(columns={"value": "loss"}).assign(loss_lo=float("nan"), loss_hi=float("nan"))
    note = textwrap.fill(" ".join(sentences), _theme.NOTE_WIDTH)
    alike = ("memory_unchunked", "memory_chunked")
    return _aspect.plot(shown, headings, "In the unit of each heading", note, spec, alike=alike), frame[COLUMNS]


def published(frames: dict[str, pd.DataFrame], divisor: float) -> pd.DataFrame:
    """Return the paper's FLOPs of a sequence, which belong to no design, as hollow marks."""
    rows = reference.published(frames, "prefill_flops", "main")
    unit = "TFLOP" if divisor == 1e12 else "GFLOP"
    rows = rows.assign(panel="flops", design=PAPER, label=PAPER, status="ok", hollow=True, unit=unit)
    return rows.assign(value=rows["value"] * 1e12 / divisor, aspect_ratio=rows["d_model"] / rows["n_layers"])


def _panel(runs: pd.DataFrame, costs: pd.DataFrame, mode: str, column: str, divisor: float) -> pd.DataFrame:
    """Return one measure of each run's design and shape; it needs no training."""
    own = costs[costs["mode"] == mode][[*SHAPE, "chunk", column]]
    part = runs.drop_duplicates(SHAPE).merge(own, on=SHAPE, how="left", validate="1:1")
    status = part[column].notna().map({True: "ok", False: "missing"})
    return part.assign(value=part[column] / divisor, status=status)


def _headings(costs: pd.DataFrame) -> dict[str, str]:
    """Return the heading of each panel, its unit in brackets at the end."""
    flops = "TFLOP" if costs["flops"].max() >= 1e12 else "GFLOP"
    return {
        "flops": f"FLOPs of a sequence [{flops}]",
        "loss": "held-out loss [nats/token]",
        "kv_cache": "KV cache of a sequence [MiB]",
        "device_hours": "device-hours of the batch [1e-6 h]",
        "memory_unchunked": "peak memory, all positions at once [GiB]",
        "memory_chunked": "peak memory, in chunks [GiB]",
    }


def remarks(frame: pd.DataFrame, costs: pd.DataFrame) -> list[str]:
    """Return sentences that tell what was run, on what, and which runs are missing."""
    first = costs.iloc[0]
    lengths = costs[costs["mode"] == "chunked"]["chunk"]
    span = f"{lengths.min()}" if lengths.nunique() == 1 else f"{lengths.min()} to {lengths.max()}"
    devices = ", ".join(costs["device"].unique())
    memory = "what was allocated" if first["memory"] == "allocated" else "resident size of the whole process"
    found = [
        f"{first['batch']} prompts of {first['tokens']} tokens, {first['compute']}, on one device ({devices}); "
        f"chunks of {span} tokens; memory: {memory}."
    ]
    if n_noisy := int(costs["noisy"].sum()):
        found.append(f"Times: {n_noisy} of {len(costs)} are noisy (quartiles over rounds more than 10 % apart).")
    for title, panel in {"Missing": "loss", "Not measured": "flops"}.items():
        rows = frame[(frame["panel"] == panel) & (frame["status"] == "missing")]
        named = [f"{label} {_aspect.names(runs)}" for label, runs in rows.groupby("label", sort=False)]
        found += [f"{title}: {'; '.join(named)}."] if named else []
    return found

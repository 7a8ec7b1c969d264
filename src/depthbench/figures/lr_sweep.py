"""Held-out loss over the learning rate, a panel per design, a line per shape (paper Fig. 12).

The axis is logarithmic, its ticks are the rates of the grid. A ring marks the best rate of a shape, a square a
best rate at the edge of the grid, which the sweep does not bracket; the dotted line is the declared rate.
Diverged runs are a named cross at the upper edge, missing ones are named below. Bars are 95 % intervals over
documents.
"""

import math
import textwrap

import matplotlib
import numpy as np
import pandas as pd
import plotnine as p9

from depthbench.artifacts import ArtifactSpec
from depthbench.figures import _theme
from depthbench.tables._measured import shape_names
from depthbench.tables.losses import losses
from depthbench.tables.lr_audit import audit, swept

FILES = ("validation.csv", "validation_docs.parquet")
COLUMNS = [
    *("design", "label", "scale", "n_layers", "d_model", "lr", "seed", "declared_lr", "best_lr", "at_edge"),
    *("status", "loss", "loss_lo", "loss_hi", "run_id"),
]
PANEL_HEIGHT = 1.75  # inch, with its heading and ticks
PLOT_HEIGHT = 1.35  # inch, without them
MARGIN = 0.6  # inch, what a panel needs beside its plotting area
CROSS = 0.06  # inch, between a cross and its name
PANEL_COLUMNS = 3
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
STRETCH = 10.0  # decades between the panels on the common axis
LEGEND_COLUMNS = 7
KEY = (
    "Ring: best rate; square: best at the edge of the grid; dotted: declared rate; bars: 95 % over documents. One seed."
)


def draw(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> tuple[p9.ggplot, pd.DataFrame]:
    """Return the plot and its frame: one row per run of the sweep, seed 0, missing runs included (`status`)."""
    table = swept(losses(frames, spec), spec)
    frame = table[table["seed"] == 0]
    cell = ["design", "scale", "n_layers", "d_model"]
    frame = frame.merge(audit(frame, noise={})[[*cell, "best_lr", "at_edge"]], on=cell, validate="m:1")
    return plot(frame, remarks(frame, table), spec), frame[COLUMNS]


def remarks(frame: pd.DataFrame, table: pd.DataFrame) -> str:
    """Return the note: what the marks mean, best rates at an edge, runs that are not drawn."""
    best = frame[(frame["lr"] == frame["best_lr"]) & (frame["at_edge"] != "no")]
    titles = {
        "Best at the edge": best,
        "Missing": frame[frame["status"] == "missing"],
        "Other seeds, not drawn": table[table["seed"] != 0],
    }
    lines = [KEY]
    for title, rows in titles.items():
        named = [f"{label} {names(runs)}" for label, runs in rows.groupby("label", sort=False)]
        lines += [f"{title}: {'; '.join(named)}."] if named else []
    return "\n".join(textwrap.fill(line, _theme.NOTE_WIDTH) for line in lines)


def names(rows: pd.DataFrame) -> str:
    """Return the runs of one design, e.g. `L16 d28 at 5e-3, 1e-2`; no line breaks within a shape's name."""
    rates = rows.assign(shape=shape_names(rows)).groupby("shape", sort=False)["lr"]
    found = [f"{shape} at {', '.join(_theme.rate_label(lr) for lr in tags.unique())}" for shape, tags in rates]
    return ", ".join(found).replace(" ", "\N{NO-BREAK SPACE}").replace(",\N{NO-BREAK SPACE}", ", ")


def plot(frame: pd.DataFrame, note: str, spec: ArtifactSpec) -> p9.ggplot:
    """Return the panels of the designs that have something to draw, one legend, and the note below."""
    frame = place(frame)
    n_panels, note_height = frame["panel"].nunique(), _theme.LINE * (note.count("\n") + 1)
    if not n_panels:
        return _theme.nothing(note)
    n_columns = min(n_panels, PANEL_COLUMNS)
    n_rows = math.ceil(n_panels / n_columns)
    shapes = list(dict.fromkeys(frame.sort_values(["n_layers", "d_model"])["shape"]))
    height = PANEL_HEIGHT * n_rows + _theme.LINE * (2 + 2 * math.ceil(len(shapes) / LEGEND_COLUMNS)) + note_height
    figure = (
        p9.ggplot(frame, p9.aes("x", "loss", color="shape", shape="shape"))
        + layers(frame)
        + p9.facet_wrap("panel", scales="free", ncol=n_columns)
        + p9.labs(y="Held-out loss [nats/token]", caption=note)
        + shape_scales(shapes)
        + _theme.theme(height)
        + p9.theme(legend_position="bottom")
    )
    return figure if frame["loss"].notna().any() else figure + p9.scale_y_continuous(breaks=[])


def shape_scales(shapes: list[str]) -> list:
    """Return the scales of the shapes, from shallow (light) to deep (dark), with one legend."""
    shades = matplotlib.colormaps["viridis_r"](np.linspace(1.0, 0.2, len(shapes))[::-1])
    colours = {shape: matplotlib.colors.to_hex(shade) for shape, shade in zip(shapes, shades, strict=True)}
    markers = {shape: MARKERS[i % len(MARKERS)] for i, shape in enumerate(shapes)}
    return [
        p9.scale_color_manual(colours, breaks=shapes),
        p9.scale_shape_manual(markers, breaks=shapes),
        p9.guides(**{aesthetic: p9.guide_legend(ncol=LEGEND_COLUMNS) for aesthetic in ("color", "shape")}),
    ]


def layers(frame: pd.DataFrame) -> list:
    """Return lines, points, intervals, marks and the axis of the placed runs."""
    ok, best = frame[frame["status"] == "ok"], frame[frame["lr"] == frame["best_lr"]]
    lines = frame[frame.groupby(["panel", "shape"], observed=True)["loss"].transform("count") > 1]
    crosses = frame[frame["cross"].notna()].drop_duplicates(["panel", "lr"])
    declared = frame[["panel", "declared_x", "high"]].drop_duplicates()
    ticks = frame[["x", "lr"]].drop_duplicates()
    ink = {"color": _theme.INK, "inherit_aes": False}
    rings = [
        p9.geom_point(p9.aes("x", "loss"), rows, shape=shape, fill="none", size=3.2, stroke=0.4, **ink)
        for shape, rows in {"o": best[best["at_edge"] == "no"], "s": best[best["at_edge"] != "no"]}.items()
    ]
    texts = [
        p9.geom_text(p9.aes("text_x", "height", label="cross"), rows, ha=side, size=_theme.TEXT, **ink)
        for side, rows in crosses.groupby("side")
    ]
    return [
        p9.geom_blank(p9.aes(y="top")),
        p9.geom_blank(p9.aes(y="floor")),
        p9.geom_segment(
            p9.aes("declared_x", -np.inf, xend="declared_x", yend="high"), declared, linetype="dotted", size=0.5, **ink
        ),
        p9.geom_line(data=lines, size=0.6, na_rm=True),  # a run without a loss leaves a gap
        p9.geom_linerange(p9.aes(ymin="loss_lo", ymax="loss_hi"), ok, size=0.4, alpha=0.5),
        p9.geom_point(data=ok, size=1.6, stroke=0.2),
        *rings,
        p9.geom_point(p9.aes("x", "height"), crosses, shape="x", size=1.8, stroke=0.6, **ink),
        *texts,
        p9.scale_x_continuous(
            name="Peak learning rate", breaks=list(ticks["x"]), labels=list(map(_theme.rate_label, ticks["lr"]))
        ),
    ]


def place(frame: pd.DataFrame) -> pd.DataFrame:
    """Add where each run stands, for the panels that have a run.

    Each panel has its own stretch of the common logarithmic axis, so that its ticks are its own rates.
    """
    several = frame["scale"].nunique() > 1
    frame = frame.assign(shape=shape_names(frame), panel=frame["label"] + (", " + frame["scale"] if several else ""))
    shown = frame[frame["panel"].isin(frame["panel"][frame["status"] != "missing"])]
    panels = shown["panel"].unique()
    width = _theme.WIDTH / min(len(panels) or 1, PANEL_COLUMNS) - MARGIN
    stretch = shown["panel"].map({panel: STRETCH * i for i, panel in enumerate(panels)}).astype("float64")
    placed = shown.assign(
        panel=pd.Categorical(shown["panel"], panels),
        x=stretch + np.log10(shown["lr"].astype("float64")),
        declared_x=stretch + np.log10(shown["declared_lr"].astype("float64")),
    )
    parts = [place_crosses(rows, width) for _, rows in placed.groupby("panel", observed=True)]
    return pd.concat(parts) if parts else placed


def depth_names(some: list[int], every: list[int]) -> str:
    """Return some of the depths of a panel in few words: `all`, `L24-32`, or `L16, 32`."""
    start = every.index(some[0])
    if len(some) > 1 and some == every:
        return "all"
    if len(some) > 2 and some == every[start : start + len(some)]:
        return f"L{some[0]}-{some[-1]}"
    return "L" + ", ".join(map(str, some))


def place_crosses(rows: pd.DataFrame, width: float) -> pd.DataFrame:
    """Add `cross`, `height`, `text_x` and `side` of the rates at which shapes of a panel diverged, `top`, `floor`.

    The panel is `width` inches wide. A rate has one cross, with the depths that diverged there; each rate has
    its own line at the upper edge.
    """
    values = rows[["loss", "loss_lo", "loss_hi"]].to_numpy(dtype="float64")
    low, high = (np.nanmin(values), np.nanmax(values)) if np.isfinite(values).any() else (0.0, 1.0)
    diverged = rows[rows["status"] == "diverged"]
    rates = sorted(diverged["x"].unique(), reverse=True)
    step = 1.1 * ((high - low) or 0.1) * _theme.LINE / max(PLOT_HEIGHT - _theme.LINE * len(rates), PLOT_HEIGHT / 4)
    depths = sorted(rows["n_layers"].unique())
    text = {x: f"{depth_names(sorted(own.unique()), depths)} diverged" for x, own in diverged.groupby("x")["n_layers"]}
    axis = rows[["x", "declared_x"]].to_numpy()
    left = rows["x"] > axis.min() + np.ptp(axis) / 2
    gap = CROSS * (np.ptp(axis) or 1.0) / width
    lines = rows["x"].map({x: len(rates) - i for i, x in enumerate(rates)})
    return rows.assign(
        cross=rows["x"].map(text).where(rows["status"] == "diverged"),
        height=high + step * lines,
        top=high + step * len(rates),
        high=high if rates else np.inf,  # the line of the declared rate ends below the names
        floor=low,
        side=np.where(left, "right", "left"),
        text_x=rows["x"] + np.where(left, -gap, gap),
    )

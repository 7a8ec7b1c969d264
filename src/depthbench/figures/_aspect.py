"""Panels of a measure over the aspect ratio d_model / n_layers, a line per design.

The axis is logarithmic and runs from shallow-wide to deep-narrow. Thin bars are intervals; a diverged run is a named
cross at the upper edge.
"""

import math
import string
import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotnine as p9

from depthbench.artifacts import ArtifactSpec
from depthbench.figures import _theme

TITLE = "Depth L and aspect ratio d/L, from shallow-wide to deep-narrow"
PANEL_HEIGHT = 2.1  # inch, with its heading and ticks
PLOT_HEIGHT = 1.6  # inch, without them
LEGEND_HEIGHT = 0.45  # inch, of a legend below
MARGIN = 0.6  # inch, what a panel needs beside its plotting area
CHARACTER = 0.06  # inch, the mean width of one
APART = 0.22  # inch, between the names of shapes
SOLID = ("P", "X")  # markers that plotnine fills
CROSS = 0.06  # inch, between a cross and its name


def plot(
    frame: pd.DataFrame,
    headings: Mapping[str, str],
    label: str,
    note: str,
    spec: ArtifactSpec,
    width: float = _theme.WIDTH,
    alike: tuple[str, ...] = (),
) -> p9.ggplot:
    """Return the panels that have something to draw, one legend, and the note below.

    Args:
        frame: A row per panel and run: panel, design, label, n_layers, d_model, aspect_ratio, status, loss, loss_lo,
            loss_hi, run_id; where it has `hollow` or `ring`, such rows are hollow marks or rings without a line beside
            those of their design. A row without run_id sets no tick.
        headings: Of the panels, in their order.
        label: Of the vertical axis.
        note: What stands below.
        spec: Of the artifact.
        width: Of the figure or the part of it that they fill [inch].
        alike: Panels that have one vertical scale.
    """
    frame = frame.assign(**{mark: False for mark in ("hollow", "ring") if mark not in frame})
    solid = [design for design, style in _theme.styles(spec).items() if style.marker in SOLID]
    frame = frame.assign(solid=frame["design"].isin(solid))
    seen = frame[~frame["hollow"] & ~frame["ring"] & frame["run_id"].notna() & (frame["status"] != "missing")]
    frame = frame[frame["panel"].isin(seen["panel"])]
    n_panels, note_height = frame["panel"].nunique(), _theme.LINE * (note.count("\n") + 1)
    if not n_panels:
        return _theme.nothing(note)
    n_columns = min(n_panels, 2 if n_panels < 5 else 3)
    n_rows = math.ceil(n_panels / n_columns)
    below = n_panels % n_columns == 0  # else there is a place for the legend in the last row
    height = PANEL_HEIGHT * n_rows + LEGEND_HEIGHT * below + 2 * _theme.LINE + note_height
    figure = (
        p9.ggplot(mapping=p9.aes("x", "loss", color="design", shape="design", linetype="design"))
        + layers(place(frame, headings, width / n_columns, alike), width)
        + p9.facet_wrap("heading", scales="free", ncol=n_columns)
        + p9.labs(y=label, caption=note)
        + _theme.design_scales(spec, columns=min(5, int(width)) if below else min(1 + len(spec.labels) // 6, 2))
        + _theme.theme(height)
        + p9.theme(legend_position="bottom" if below else (1.02 - 0.44 / n_columns, 0.22))
    )
    return figure if frame["loss"].notna().any() else figure + p9.scale_y_continuous(breaks=[])


def layers(frame: pd.DataFrame, width: float) -> list:
    """Return lines, points, intervals, crosses and the axis of the placed runs."""
    full, diverged = frame[~frame["hollow"] & ~frame["ring"]], frame[frame["status"] == "diverged"]
    ok, hollow = full[full["status"] == "ok"], frame[frame["hollow"] & (frame["status"] == "ok")]
    lines = full[full.groupby(["panel", "design"])["x"].transform("nunique") > 1]
    by_tick = frame[frame["run_id"].notna()].groupby("tick")
    shapes = by_tick.agg({"n_layers": "unique", "aspect_ratio": "first", "inch": "first"})
    shapes = shapes[apart(shapes.index.to_numpy(), APART * shapes["inch"].to_numpy())]
    depths = ["L" + ", ".join(map(str, depths)) for depths in shapes["n_layers"]]
    ratios = [f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.3g}" for ratio in shapes["aspect_ratio"]]
    style = {"size": _theme.TEXT, "color": _theme.INK}
    texts = [
        p9.geom_text(p9.aes("text_x", "height", label="text"), rows, ha=side, **style)
        for side, rows in diverged.groupby("side")
    ]
    return [
        p9.geom_blank(p9.aes("tick", "height"), frame),
        p9.geom_blank(p9.aes("tick", "floor"), frame),
        p9.geom_point(data=hollow[~hollow["solid"]], size=2.2, stroke=0.4, fill="none", show_legend=False),
        # A marker without a fill is hollow by a smaller white one.
        p9.geom_point(data=hollow[hollow["solid"]], size=2.6, stroke=0.2, show_legend=False),
        p9.geom_point(data=hollow[hollow["solid"]], size=1.9, stroke=0.2, color="white", show_legend=False),
        p9.geom_point(data=frame[frame["ring"]], shape="o", size=3.4, stroke=0.5, fill="none", show_legend=False),
        p9.geom_line(data=lines, size=0.6, na_rm=True),  # a run without a loss leaves a gap
        p9.geom_linerange(
            p9.aes(ymin="loss_lo", ymax="loss_hi"), ok, linetype="solid", size=0.4, alpha=0.5, na_rm=True
        ),
        p9.geom_point(data=ok, size=1.6, stroke=0.2),
        p9.geom_point(p9.aes(y="height"), diverged, shape="x", size=1.8, stroke=0.6, show_legend=False),
        *texts,
        p9.scale_x_continuous(
            name=textwrap.fill(TITLE, int(width / CHARACTER)),
            breaks=list(shapes.index),
            labels=[f"{depth}\n{ratio}" for depth, ratio in zip(depths, ratios, strict=True)],
        ),
    ]


def apart(ticks: np.ndarray, distance: np.ndarray) -> list[bool]:
    """Return which of the sorted ticks have a label, so that each is a distance away from the one before."""
    last, kept = -math.inf, []
    for tick, least in zip(ticks, distance, strict=True):
        kept.append(bool(tick - last >= least))
        last = tick if kept[-1] else last
    return kept


def place(frame: pd.DataFrame, headings: Mapping[str, str], width: float, alike: tuple[str, ...] = ()) -> pd.DataFrame:
    """Add where each run of each panel, `width` inches wide, stands.

    `tick` is that of its shape; each panel has its own stretch of the axis, so that its ticks are its own
    shapes. `x` is beside it, so that the intervals of the designs can be told apart.
    """
    parts: list[pd.DataFrame] = []
    for i, panel in enumerate(headings):
        rows = frame[frame["panel"] == panel]
        if rows.empty:
            continue
        rows = rows.assign(
            tick=10 * i - np.log10(rows["aspect_ratio"]),
            heading=f"({string.ascii_lowercase[len(parts)]}) {headings[panel]}",
        )
        at = np.unique(rows["tick"])
        inch = (np.ptp(at) or 1.0) / (width - MARGIN)
        rank = rows["design"].map({design: i for i, design in enumerate(rows["design"].unique())})
        step = min(0.05 * inch, np.diff(at).min(initial=inch) / 3 / (rank.max() + 1))
        rows["inch"] = inch
        rows["x"] = rows["tick"] + step * (rank - rank.max() / 2)
        # A panel of diverged runs only borrows the range of the others.
        seen = rows if rows["loss"].notna().any() else frame
        seen = frame[frame["panel"].isin(alike)] if panel in alike else seen
        values = seen[["loss", "loss_lo", "loss_hi"]].to_numpy()
        low, high = (np.nanmin(values), np.nanmax(values)) if np.isfinite(values).any() else (0.0, 1.0)
        high = high if high > low else low + 0.1  # equal values give no range
        parts.append(place_crosses(rows, inch, low, high))
    return pd.concat(parts)


def place_crosses(rows: pd.DataFrame, inch: float, low: float, high: float) -> pd.DataFrame:
    """Add `height`, `text`, `text_x` and `side` of the diverged runs of a panel, and its `floor`.

    They stand at the upper edge, above the losses from `low` to `high`; names that would overlap go on a line
    below. An `inch` is given in units of x.
    """
    left = rows["tick"] > (rows["tick"].min() + rows["tick"].max()) / 2
    rows = rows.assign(text=rows["label"] + " diverged", side=np.where(left, "right", "left"), line=0)
    rows["text_x"] = rows["x"] + np.where(left, -CROSS, CROSS) * inch
    spans: list[list[tuple[float, float]]] = []
    for index, run in rows[rows["status"] == "diverged"].iterrows():
        far = run["text_x"] + (-1 if run["side"] == "right" else 1) * CHARACTER * len(run["text"]) * inch
        start, end = sorted((far, 2 * run["x"] - run["text_x"]))
        clear = (i for i, line in enumerate(spans) if all(end < a or b < start for a, b in line))
        rows.loc[index, "line"] = number = next(clear, len(spans))
        if number == len(spans):
            spans.append([])
        spans[number].append((start, end))
    # The height of a line, in nats: the names take their inches from those of the losses.
    step = 1.1 * (high - low) * _theme.LINE / max(PLOT_HEIGHT - _theme.LINE * len(spans), PLOT_HEIGHT / 4)
    return rows.assign(height=high + step * (len(spans) - rows["line"]), floor=low)


def names(rows: pd.DataFrame, rates: bool = False) -> str:
    """Return the shapes of one design's runs, e.g. `L=4 d=52, L=8 d=40 seed 1`, with their `rates` on request.

    No line breaks within one.
    """
    runs = zip(rows["n_layers"], rows["d_model"], rows["seed"], rows["lr"], strict=True)
    shapes = [
        f"L={depth} d={width}" + f" seed {seed}" * (seed > 0) + f" at {_theme.rate_label(lr)}" * rates
        for depth, width, seed, lr in runs
    ]
    return ", ".join(shape.replace(" ", "\N{NO-BREAK SPACE}") for shape in shapes)

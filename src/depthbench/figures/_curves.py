"""Curves of designs over layers, sub-layers or thresholds: a panel per measure, a line per design and skip mode.

Ribbons are intervals. The second line of a design, that of its released skip, is thin with hollow marks.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import plotnine as p9

from depthbench.artifacts import ArtifactSpec
from depthbench.figures import _maps, _theme

HEIGHT = 2.3  # inch, of a panel with its heading and ticks
LEGEND = 0.3  # inch
MARKED = 40  # points of a line up to which each has a mark


def plot(
    frame: pd.DataFrame,
    labels: tuple[str, str],
    note: str,
    spec: ArtifactSpec,
    extra: Sequence[Any] = (),
    legend: bool = True,
) -> p9.ggplot:
    """Return the panels, one legend and the note below.

    Args:
        frame: panel (the heading), design, x, y, lo, hi, hollow; lines whose `hollow` or `line` (optional)
            differs are drawn apart.
        labels: Of the axes.
        note: What stands below.
        spec: Of the artifact.
        extra: What lies below the curves, and scales.
        legend: Whether there is one.
    """
    lines = _theme.LINE * (note.count("\n") + 1)
    frame = frame.dropna(subset=["x", "y"])
    if frame.empty:
        return _theme.nothing(note)
    frame = frame if "line" in frame else frame.assign(line=frame["design"])
    panels = list(dict.fromkeys(frame["panel"]))
    return (
        p9.ggplot(mapping=p9.aes("x", "y", color="design", shape="design", linetype="design", group="line"))
        + list(extra)
        + layers(frame.assign(panel=pd.Categorical(frame["panel"], panels)))
        + p9.facet_wrap("panel", ncol=min(3, len(panels)), scales="free_x")
        + p9.labs(x=labels[0], y=labels[1], caption=note or None)
        + _theme.design_scales(spec, columns=6)
        + p9.scale_fill_manual({design: style.colour for design, style in _theme.styles(spec).items()}, guide=None)
        + _theme.theme(HEIGHT * -(-len(panels) // 3) + LEGEND + lines)
        + p9.theme(legend_position="bottom" if legend else "none")
        + strip(panels)
    )


def layers(frame: pd.DataFrame) -> list:
    """Return ribbons, lines and points."""
    sizes = frame.groupby(["panel", "line", "hollow"], observed=True)["x"].transform("size")
    marked, drawn = frame[sizes <= MARKED], frame[sizes > 1]
    interval = p9.aes(ymin="lo", ymax="hi", fill="design")
    ribbons = [
        p9.geom_ribbon(interval, rows, alpha=0.13, color="none", linetype="solid", show_legend=False)
        for rows in parts(drawn.dropna(subset=["lo", "hi"]))
        if len(rows)
    ]
    (full, hollow), (points, rings) = parts(drawn), parts(marked)
    return [
        *ribbons,
        p9.geom_line(data=full, size=0.6),
        p9.geom_point(data=points, size=1.6, stroke=0.2),
        p9.geom_line(data=hollow, size=0.3, show_legend=False),
        p9.geom_point(data=rings, size=1.8, stroke=0.4, fill="none", show_legend=False),
    ]


def parts(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of full lines and those of hollow ones."""
    return rows[~rows["hollow"]], rows[rows["hollow"]]


def strip(panels: Sequence[str]) -> p9.theme:
    """Return what hides the heading of a single panel that has none."""
    return p9.theme(strip_text=p9.element_blank()) if list(panels) == [""] else p9.theme()


def layer_axis() -> p9.scale_x_continuous:
    """Return an axis of layers, with whole numbers."""
    return p9.scale_x_continuous(breaks=partial(_maps.ticks, most=8), labels=_maps.whole)

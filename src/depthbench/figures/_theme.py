"""How all figures look, and how they are saved: one style per design, one theme, four files.

Colour goes by family (baseline grey; norm variants greens and blues; multi-stream oranges; cross-layer
purples), lightness differs within one; marker and line type say the same again, in grey as well.
"""

import functools
import operator
import os
from collections.abc import Sequence
from copy import deepcopy
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd
import plotnine as p9
from matplotlib.figure import Figure
from matplotlib.offsetbox import AuxTransformBox
from plotnine.composition import Compose

from depthbench.artifacts import ArtifactSpec

SUFFIXES = (".svg", ".pdf", ".png", ".csv")
WIDTH = 6.75  # inch, two columns of print
TEXT = 7.0  # pt, the smallest
NOTE_WIDTH = 108  # characters of a line of the note below; a list of shapes and depths has wide ones
LINE = 0.13  # inch, a line of text
DPI = 300
INK = "#333333"  # of words that stand in a panel


class Style(NamedTuple):
    """Colour, marker and line type of a design."""

    colour: str
    marker: str
    line: str


STYLES = {
    "preln": Style("#4d4d4d", "o", "solid"),
    "sandwich": Style("#1b7837", "s", "solid"),
    "lns": Style("#7fbf7b", "^", "dashed"),
    "deepnorm": Style("#2166ac", "v", "dashdot"),
    "keel": Style("#67a9cf", "D", "dotted"),
    "hc": Style("#d95f02", "P", "solid"),
    "mhc": Style("#f5a34b", "*", "dashed"),
    "mhc_legacy": Style("#8c3b00", "p", "dashdot"),
    "attnres_full": Style("#542788", "<", "solid"),
    "attnres_block": Style("#8e6bbf", ">", "dashed"),
    "moda": Style("#c39bd3", "h", "dashdot"),
    "moda_postln": Style("#a3238e", "d", "dotted"),
}
# For a user's own designs, in the order of `ArtifactSpec.designs`; past the last they begin again.
FREE_COLOURS = {
    "baseline": ("#969696", "#252525"),
    "norm": ("#00876c", "#08306b"),
    "multi-stream": ("#b35806", "#fdd0a2"),
    "cross-layer": ("#3f007d", "#df65b0"),
}
FREE_MARKERS = ("8", "H")
LINES = ("dashed", "dashdot", "dotted", "solid")


def styles(spec: ArtifactSpec) -> dict[str, Style]:
    """Return the style of each design of the artifact, in display order; the built-in ones never change."""
    found = {}
    own: list[str] = []
    for design in spec.designs:
        if design in STYLES:
            found[design] = STYLES[design]
            continue
        family = spec.labels[design][1]
        nth = sum(spec.labels[other][1] == family for other in own)
        colours = FREE_COLOURS[family]
        found[design] = Style(
            colours[nth % len(colours)], FREE_MARKERS[len(own) % len(FREE_MARKERS)], LINES[nth % len(LINES)]
        )
        own.append(design)
    return found


def design_scales(spec: ArtifactSpec, columns: int) -> list:
    """Return the scales of colour, marker and line type by design key, with one legend."""
    found = styles(spec)
    labels = [spec.labels[design][0] for design in found]
    aesthetics = {
        "color": (p9.scale_color_manual, "colour"),
        "shape": (p9.scale_shape_manual, "marker"),
        "linetype": (p9.scale_linetype_manual, "line"),
    }
    guides = p9.guides(**{name: p9.guide_legend(ncol=columns) for name in aesthetics})
    scales = [
        scale({d: getattr(style, field) for d, style in found.items()}, breaks=list(found), labels=labels)
        for scale, field in aesthetics.values()
    ]
    return [guides, *scales]


def theme(height: float) -> p9.theme:
    """Return the theme of a figure of full width and `height` inches."""
    return p9.theme_bw(base_size=TEXT, base_family="DejaVu Sans") + p9.theme(
        figure_size=(WIDTH, height),
        text=p9.element_text(size=TEXT),
        axis_text=p9.element_text(size=TEXT),
        axis_title=p9.element_text(size=TEXT),
        legend_text=p9.element_text(size=TEXT),
        strip_text=p9.element_text(size=TEXT, ha="left", x=0),
        strip_background=p9.element_blank(),
        panel_border=p9.element_rect(color="#999999", size=0.4),
        panel_grid_major=p9.element_line(color="#e4e4e4", size=0.3),
        panel_grid_minor=p9.element_blank(),
        axis_ticks_minor=p9.element_blank(),
        axis_ticks_major=p9.element_line(color="#999999", size=0.3),
        legend_key=p9.element_blank(),
        legend_title=p9.element_blank(),
        legend_box_spacing=0.02,
        plot_margin=0.01,
        plot_caption=p9.element_text(size=TEXT, ha="left", color=INK),
    )


def rate_label(lr: str) -> str:
    """Return a rate for people: the tag `25e-4` is 2.5e-3."""
    return f"{Decimal(lr):e}"


def nothing(note: str) -> p9.ggplot:
    """Return a figure without panels: the note alone."""
    empty = p9.theme(panel_border=p9.element_blank(), panel_background=p9.element_blank())
    return p9.ggplot() + p9.labs(caption=note) + theme(LINE * (note.count("\n") + 2)) + empty


def compose(rows: Sequence[Sequence[p9.ggplot]], height: float, note: str) -> p9.ggplot | Compose:
    """Return plots in rows of equal `height` [inch], and the note below; without plots the note alone."""
    rows = [row for row in rows if row]
    if not rows:
        return nothing(note)
    # The note of the first plot of the last row may run below its neighbours.
    last = [rows[-1][0] + p9.labs(caption=note), *rows[-1][1:]]
    lines = [functools.reduce(operator.or_, row) for row in [*rows[:-1], last]]
    figure = functools.reduce(operator.truediv, lines)
    size = p9.theme(figure_size=(WIDTH, height * len(rows) + LINE * (note.count("\n") + 1)))
    return figure & size if isinstance(figure, Compose) else figure + size


def save(plot: p9.ggplot | Compose, frame: pd.DataFrame, parts: dict[str, Path]) -> None:
    """Write the plot as SVG, PDF and PNG and its frame as CSV, those of `parts`; equal input gives equal bytes."""
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # matplotlib would write the time of day
    figure = deepcopy(plot).draw()
    _write(figure, parts, (".svg", ".pdf"))
    if ".png" in parts and figure.findobj(AuxTransformBox):
        # plotnine sizes a scale of colour for the first resolution that it is written in: the picture is drawn anew
        plt.close(figure)
        figure = deepcopy(plot).draw()
    _write(figure, parts, (".png",))
    plt.close(figure)
    if ".csv" in parts:
        frame.to_csv(parts[".csv"], index=False, lineterminator="\n")


def _write(figure: Figure, parts: dict[str, Path], suffixes: Sequence[str]) -> None:
    with matplotlib.rc_context({"svg.hashsalt": "depthbench", "pdf.fonttype": 42}):
        for suffix in filter(parts.__contains__, suffixes):
            figure.savefig(parts[suffix], format=suffix[1:], dpi=DPI)

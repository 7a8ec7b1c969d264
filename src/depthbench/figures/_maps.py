"""Heat maps of pairs of layers: a panel per run, one scale of colour for all panels of a figure.

Panels stand in rows of whole groups (the runs of a design). A panel without values holds a word that says why. Cells
without a value are crossed out. Maps are pictures inside PDF and SVG.
"""

import math
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
import plotnine as p9
from mizani.transforms import pseudo_log_trans

from depthbench.figures import _layers, _theme

STRIP = 0.17  # inch, ticks and space above and below a panel, without its heading
BESIDE = 0.25  # inch, ticks and space beside a panel
BELOW = 0.75  # inch, title of the axis and scale of colour
MARK = 0.35  # inch, between marks of the scale of colour
SIGMA = 0.05  # of signed scales, linear below
CHARACTER = 0.061  # inch, a wide one of a heading
COLUMNS, FEWEST = 6, 3  # panels in a row
TICKS = 4
GREY = "#dddddd"
PAD = -1000  # where the point of an empty place stands


class Measure(NamedTuple):
    """How a measure is drawn."""

    title: str
    colours: str  # a perceptually uniform map
    x: str
    y: str
    threshold: float | None = None  # of the paper
    most: float = math.inf  # what is above has the last colour
    signed: bool = False


MEASURES = {
    "angular": Measure("Angular distance", "viridis", "Layer l", "n, distance to layer l + n"),
    "causal": Measure("Causal score", "magma", "Skipped layer s", "Later layer l", 0.45, 1.0),
    "permutation": Measure("Permutation score", "cividis", "Layer a", "Layer b, after a", 0.15, 0.6),
    "pathway": Measure("Mean weight", "viridis", "Source: sub-layer, -1 embedding", "Target: sub-layer", signed=True),
}


class Panel(NamedTuple):
    """A place for a map: its heading, the range of its axes, and a word if it has no map."""

    heading: str
    x: tuple[int, int]
    y: tuple[int, int]
    word: str = ""


def extents(measure: str, n_layers: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the first and last x and y of the map of a model."""
    last = n_layers - 1
    return {
        "angular": ((0, last), (1, n_layers)),
        "causal": ((0, max(last - 1, 0)), (min(1, last), last)),
        "permutation": ((0, max(last - 1, 0)), (min(1, last), last)),
        "pathway": ((-1, 2 * n_layers - 1), (0, 2 * n_layers)),
    }[measure]


def groups(table: pd.DataFrame, measure: str, by: Sequence[str] = ("design",)) -> list[list[Panel]]:
    """Return the panels of a table, which has the heading of each row in `panel`, those of a design in one group."""
    return [panels(rows, measure) for _, rows in table.groupby(list(by), sort=False)]


def panels(table: pd.DataFrame, measure: str) -> list[Panel]:
    """Return the panel of each heading of a table."""
    runs = table.drop_duplicates("panel")
    return [
        Panel(
            heading,
            *extents(measure, int(depth)),
            "" if status in _layers.MEASURED else _layers.WORDS[status],
        )
        for heading, depth, status in zip(runs["panel"], runs["n_layers"], runs["status"], strict=True)
    ]


def arrange(groups: Sequence[Sequence[Panel]], columns: int = COLUMNS) -> list[Panel | None]:
    """Return all panels with empty places between, so that each row holds whole groups; a single one in the middle."""
    if [len(group) for group in groups] == [1]:
        return [*[None] * ((columns - 1) // 2), *groups[0], *[None] * (columns // 2)]
    width = max(map(len, groups), default=1)
    per_row = max(1, columns // width)
    places: list[Panel | None] = []
    for start in range(0, len(groups), per_row):
        row = [[*group, *[None] * (width - len(group))] for group in groups[start : start + per_row]]
        flat = [place for group in row for place in group]
        places += flat + [None] * (-len(flat) % columns)
    return places


def columns_of(*blocks: Sequence[Sequence[Panel]]) -> int:
    """Return how many panels a row has: as many whole groups as fit, but not more places than panels."""
    widths = [max(map(len, groups)) for groups in blocks if groups]
    wide = max((width for width in widths if width <= COLUMNS), default=1)
    needed = max(
        (len(groups) * width for groups, width in zip([b for b in blocks if b], widths, strict=True)), default=1
    )
    return max(FEWEST, min(COLUMNS // wide * wide, needed))


def plot(
    cells: pd.DataFrame,
    places: Sequence[Panel | None],
    measure: str,
    columns: int,
    note: str = "",
    width: float = _theme.WIDTH,
) -> p9.ggplot:
    """Return the maps at their places, one scale of colour and the note below.

    Args:
        cells: panel (the heading), x, y, value.
        places: In rows; None is an empty place.
        measure: One of MEASURES.
        columns: Places of a row.
        note: What stands below.
        width: Of the figure or the part of it that they fill [inch].
    """
    lines = _theme.LINE * (note.count("\n") + 1)
    if not places:
        return _theme.nothing(note)
    kind = MEASURES[measure]
    side = (width - 0.2) / columns - BESIDE
    bar = min(2.5, 0.4 * width)
    low, high = limits(cells, kind)
    marks = bar_marks(low, high, kind, bool((cells["value"] > high).any()), MARK / bar)
    wrapped, strip = fold(places, int(width / columns / CHARACTER))
    height = math.ceil(len(places) / columns) * (side + STRIP + _theme.LINE * strip) + BELOW + lines
    start: p9.ggplot = p9.ggplot(mapping=p9.aes("x", "y"))
    return (
        start
        + layers(cells.assign(value=cells["value"].clip(low, high)), places, side)
        + p9.facet_wrap("panel", scales="free", ncol=columns, labeller=wrapped)
        + axes()
        + shades((low, high), kind, marks)
        + p9.labs(x=kind.x, y=kind.y, caption=note or None)
        + _theme.theme(height)
        + map_theme(bar)
    )


def fold(places: Sequence[Panel | None], most: int) -> tuple[Any, int]:
    """Return what breaks headings into lines of at most `most` characters, where that is possible, and their number."""
    found = {place.heading: textwrap.fill(place.heading, most) for place in places if place}
    return p9.as_labeller(found), 1 + max((text.count("\n") for text in found.values()), default=0)


def layers(cells: pd.DataFrame, places: Sequence[Panel | None], side: float) -> list:
    """Return pictures, crosses of cells without a value, frames, and words of panels without a map."""
    headings = [" " * i if place is None else place.heading for i, place in enumerate(places, 1)]
    level = pd.CategoricalDtype(headings)
    frames = pd.DataFrame([frame(*pair) for pair in zip(headings, places, strict=True)])
    frames["panel"] = frames["panel"].astype(level)
    cells = cells[cells["panel"].isin(headings)].astype({"panel": level})
    undefined, words = cells[cells["value"].isna()], frames[frames["word"] != ""]
    box = p9.aes(xmin="x0", xmax="x1", ymin="y0", ymax="y1")
    span = max((place.x[1] - place.x[0] + 1 for place in places if place), default=1)
    return [
        p9.geom_blank(p9.aes("x0", "y0"), frames),
        p9.geom_raster(p9.aes(fill="value"), cells, interpolation="nearest"),
        p9.geom_point(
            data=undefined, raster=True, shape="x", size=min(1.5, 25 * side / span), stroke=0.2, color="#777777"
        ),
        p9.geom_rect(box, frames[~frames["pad"]], inherit_aes=False, fill="none", color="#999999", size=0.3),
        p9.geom_text(p9.aes("x", "y", label="word"), words, size=_theme.TEXT, color=_theme.INK, lineheight=1.1),
    ]


def frame(heading: str, place: Panel | None) -> dict[str, Any]:
    """Return the frame of a place, with its middle and its word; that of an empty place is a point."""
    if place is None:
        return {"panel": heading, "pad": True, "word": ""} | dict.fromkeys(("x", "x0", "x1", "y", "y0", "y1"), PAD)
    (x0, x1), (y0, y1) = place.x, place.y
    box = {"x0": x0 - 0.5, "x1": x1 + 0.5, "y0": y0 - 0.5, "y1": y1 + 0.5, "x": (x0 + x1) / 2, "y": (y0 + y1) / 2}
    return {"panel": heading, "pad": False, "word": place.word} | box


def axes() -> list:
    """Return axes with whole numbers; an empty place has none."""
    return [
        p9.scale_x_continuous(breaks=ticks, labels=whole, expand=(0, 0)),
        p9.scale_y_continuous(breaks=ticks, labels=whole, expand=(0, 0)),
    ]


def ticks(limits: tuple[float, float], most: int = TICKS) -> list[int]:
    """Return at most one more than `most` whole numbers within the limits of an axis."""
    first, last = math.ceil(limits[0]), math.floor(limits[1])
    if first <= PAD:
        return []
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500) if (last - first) / step <= most)
    return [value for value in range(first, last + 1) if value % step == 0]


def whole(values: Any) -> list[str]:
    """Return labels of whole numbers."""
    return [f"{value:.0f}" for value in values]


def limits(cells: pd.DataFrame, kind: Measure) -> tuple[float, float]:
    """Return the lowest and highest value that has a colour of its own."""
    values = cells["value"].to_numpy(dtype="float64")
    values = np.clip(values[~np.isnan(values)], -math.inf, kind.most)
    values = values[np.isfinite(values)]
    low = min(0.0, values.min(initial=0.0)) if kind.signed else 0.0
    return low, max(values.max(initial=0.0), kind.threshold or 0.0) or 1.0


def shades(limits: tuple[float, float], kind: Measure, marks: dict[float, str]) -> list:
    """Return the scale of colour, with marks on its bar."""
    palette = matplotlib.colormaps[kind.colours](np.linspace(0, 1, 64))
    scale = p9.scale_fill_gradientn(
        [matplotlib.colors.to_hex(shade) for shade in palette],
        name=kind.title,
        limits=limits,
        breaks=list(marks),
        labels=list(marks.values()),
        na_value=GREY,
        trans=pseudo_log_trans(sigma=SIGMA, base=10) if kind.signed else "identity",
    )
    return [scale, p9.guides(fill=p9.guide_colorbar(nbin=64))]


def bar_marks(low: float, high: float, kind: Measure, above: bool, gap: float) -> dict[float, str]:
    """Return where the bar has a tick -> what stands there; ticks are at least the share `gap` of it apart."""
    if kind.signed:
        apart = gap * (stretched(high) - stretched(low))
        at = [0.0]
        for power in (sign * 10.0**e for e in range(-1, 9) for sign in (1, -1)):
            if low <= power <= high and all(abs(stretched(power) - stretched(other)) >= apart for other in at):
                at.append(power)
        return {value: f"{value:g}" for value in sorted(at)}
    step = next(s for e in range(-9, 9) for s in (10.0**e, 2 * 10.0**e, 5 * 10.0**e) if s / high >= gap)
    at = [round(i * step, 10) for i in range(int(high / step + 1e-9) + 1)]
    fixed = {kind.threshold: f"{kind.threshold:g}\nthreshold"} if kind.threshold is not None else {}
    fixed |= {high: f"\N{GREATER-THAN OR EQUAL TO}{high:g}"} if above else {}
    free = {value: f"{value:g}" for value in at if all(abs(value - other) > gap * high for other in fixed)}
    return dict(sorted((free | fixed).items()))


def stretched(value: float) -> float:
    """Return where a value stands on a signed scale, that of `pseudo_log_trans`."""
    return math.asinh(value / (2 * SIGMA))


def map_theme(bar: float) -> p9.theme:
    """Return what maps have besides the theme of all figures: square panels, frames of their own, a flat bar."""
    return p9.theme(
        panel_border=p9.element_blank(),
        panel_background=p9.element_blank(),
        panel_grid=p9.element_blank(),
        aspect_ratio=1,
        axis_text=p9.element_text(size=_theme.TEXT, margin={"t": 1, "r": 1, "unit": "pt"}),
        panel_spacing=0.012,
        legend_position="bottom",
        legend_title=p9.element_text(size=_theme.TEXT, margin={"r": 5, "unit": "pt"}),
        legend_title_position="left",
        legend_key_width=72 * bar,
        legend_key_height=7,
    )


def undefined(values: pd.Series, cells: pd.Series) -> str:
    """Return a sentence about the cells without a value, if there are any."""
    count = int((values.isna() & cells.notna()).sum())
    return f"Crossed out: no defined value, {count} pairs." if count else ""

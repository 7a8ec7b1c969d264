"""Angular distance between the states in front of layers (paper Fig. 5, 16).

Block (a): designs at one depth, all at one rate, without DeepNorm, which diverges there. Block (b): every design at
three depths, each at its own rate. Column l, row n of a map is the distance between the states in front of layers l
and l + n; 0.5 is a right angle.
"""

import pandas as pd
import plotnine as p9

from depthbench.artifacts import ArtifactSpec
from depthbench.figures import _layers, _maps, _theme
from depthbench.runs import NOT_COMPARED

FILES = ("analysis/angular.csv",)
COLUMNS = ["block", "panel", *_layers.RUN, "layer", "n", "distance", "lo", "hi"]


def draw(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> tuple[p9.ggplot, pd.DataFrame]:
    """Return the plot and its frame: a row per panel and pair of layers, one for a run without values (`status`)."""
    table = _layers.joined(frames["angular"], spec)
    main = _layers.in_suite(table, "main")
    own = main[main["n_layers"].isin(spec.depths.three)]
    one = _layers.at_one(table, spec)
    one = one[one["design"].isin(main["design"]) & (one["design"] != NOT_COMPARED)]
    same = one[one["lr"] == spec.common_lr]
    same = same.assign(block="a", panel=_layers.labels(same) + " " + _theme.rate_label(spec.common_lr))
    several = same.groupby("panel")["run_id"].nunique().gt(1).any()
    same["panel"] += " " + _layers.shapes(same) if several else ""
    own = own.assign(block="b", panel=_layers.labels(own) + " " + _layers.shapes(own))
    same, own = lettered(same, "(a) "), lettered(own, "(b) ")
    frame = pd.concat([same, own], ignore_index=True)
    blocks = [[[panel] for panel in _maps.panels(same, "angular")], _maps.groups(own, "angular")]
    columns = _maps.columns_of(*blocks)
    places = [place for block in blocks for place in _maps.arrange(block, columns)]
    at = f"L={spec.depths.one}, learning rate {_theme.rate_label(spec.common_lr)}"
    note = _layers.note(
        spec,
        frame,
        f"(a): {at}." if len(same) else f"Left out: (a), {at}; the study declares no such runs.",
        "(b): each design at its own rate." if len(own) else "",
        untrained(main, same, spec),
        left_out(main, same),
    )
    cells = frame.rename(columns={"layer": "x", "n": "y", "distance": "value"}).dropna(subset=["x", "y"])
    return _maps.plot(cells, places, "angular", columns, note), frame[COLUMNS]


def lettered(block: pd.DataFrame, letter: str) -> pd.DataFrame:
    """Put the letter of a block in front of the heading of its first panel."""
    first = block["panel"].eq(block["panel"].iloc[0]) if len(block) else block["panel"].eq("")
    return block.assign(panel=block["panel"].mask(first, letter + block["panel"]))


def left_out(main: pd.DataFrame, same: pd.DataFrame) -> str:
    """Return a sentence that names the design that is not compared at one rate, where the study has it."""
    names = main["label"][main["design"] == NOT_COMPARED].unique()
    return f"Without {names[0]}, as in the paper." if len(names) and len(same) else ""


def untrained(main: pd.DataFrame, same: pd.DataFrame, spec: ArtifactSpec) -> str:
    """Return a sentence that names the designs that have no run at the common rate."""
    names = main["label"][~main["design"].isin([*same["design"], NOT_COMPARED])].unique()
    return (
        f"Not trained at {_theme.rate_label(spec.common_lr)}: {', '.join(names)}." if len(names) and len(same) else ""
    )

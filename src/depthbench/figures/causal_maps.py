"""Causal scores of pairs of layers (paper Fig. 14): what skipping layer s changes in the update of layer l.

Every design at three depths, each at its own rate. The skip is that of the mode `mask`; designs that also have the
mode `released` have it in a group of their own, marked with a star.
"""

import pandas as pd
import plotnine as p9

from depthbench.artifacts import ArtifactSpec
from depthbench.figures import _layers, _maps

FILES = ("analysis/causal.csv",)
COLUMNS = ["panel", *_layers.RUN, "skip_mode", "skipped", "layer", "score"]


def draw(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> tuple[p9.ggplot, pd.DataFrame]:
    """Return the plot and its frame: a row per panel and pair of layers, one for a run without values (`status`)."""
    table = _layers.joined(frames["causal"], spec)
    frame = headed(table[table["n_layers"].isin(spec.depths.three)])
    groups = _maps.groups(frame, "causal", by=("design", "star"))
    columns = _maps.columns_of(groups)
    note = _layers.note(spec, frame, released(frame), _maps.undefined(frame["score"], frame["skipped"]))
    return _maps.plot(cells(frame), _maps.arrange(groups, columns), "causal", columns, note), frame[COLUMNS]


def headed(table: pd.DataFrame) -> pd.DataFrame:
    """Add the heading of each row's panel and, for a released skip, the star in it."""
    star = table["skip_mode"].eq("released").map({True: "*", False: ""}).astype("str")
    return table.assign(star=star, panel=_layers.labels(table) + star + " " + _layers.shapes(table))


def cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of maps: x is the skipped layer, y the later one."""
    return frame.rename(columns={"skipped": "x", "layer": "y", "score": "value"}).dropna(subset=["x", "y"])


def released(frame: pd.DataFrame) -> str:
    """Return a sentence about the star, if there is one."""
    return "*: released skip; the others are masked." if frame["star"].ne("").any() else ""

"""Permutation scores of pairs of layers (paper Fig. 15): how much of the loss exchanging layers a and b changes.

Every design at three depths, each at its own rate. A pair whose exchange makes the loss infinite has the last colour.
"""

import numpy as np
import pandas as pd
import plotnine as p9

from depthbench.artifacts import ArtifactSpec
from depthbench.figures import _layers, _maps

FILES = ("analysis/permutation.csv",)
COLUMNS = ["panel", *_layers.RUN, "layer_a", "layer_b", "score", "signed"]


def draw(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> tuple[p9.ggplot, pd.DataFrame]:
    """Return the plot and its frame: a row per panel and pair of layers, one for a run without values (`status`)."""
    table = _layers.joined(frames["permutation"], spec)
    table = table[table["n_layers"].isin(spec.depths.three)]
    frame = headed(table)
    groups = _maps.groups(frame, "permutation")
    columns = _maps.columns_of(groups)
    note = _layers.note(spec, frame, infinite(frame), _maps.undefined(frame["score"], frame["layer_a"]))
    return _maps.plot(cells(frame), _maps.arrange(groups, columns), "permutation", columns, note), frame[COLUMNS]


def headed(table: pd.DataFrame) -> pd.DataFrame:
    """Add the heading of each row's panel."""
    return table.assign(panel=_layers.labels(table) + " " + _layers.shapes(table))


def cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of maps: x is the earlier layer, y the later one."""
    return frame.rename(columns={"layer_a": "x", "layer_b": "y", "score": "value"}).dropna(subset=["x", "y"])


def infinite(frame: pd.DataFrame) -> str:
    """Return a sentence that counts the pairs whose exchange gives no finite loss."""
    n_pairs = int(np.isinf(frame["score"]).sum())
    return f"No finite loss after the exchange, last colour: {n_pairs} pairs." if n_pairs else ""

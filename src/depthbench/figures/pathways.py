"""Pathway weights (paper Fig. 7): how much of a sub-layer's output is in the input of a later one.

Column i, row k of a map is the mean weight of source i in the input of sub-layer k; source -1 is the embedding, the
last row is the readout. Weights of hyper-connections have a sign; the scale of colour is linear near 0 and
logarithmic beyond about 0.1.
"""

import pandas as pd
import plotnine as p9

from depthbench.artifacts import ArtifactSpec
from depthbench.figures import _layers, _maps

FILES = ("analysis/pathway.csv",)
COLUMNS = ["panel", *_layers.RUN, "source", "target", "weight", "weight_abs"]


def draw(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> tuple[p9.ggplot, pd.DataFrame]:
    """Return the plot and its frame: a row per panel and pair, one for a run without values (`status`)."""
    table = _layers.at_one(_layers.joined(frames["pathway"], spec), spec)
    frame = table.assign(panel=_layers.labels(table) + " " + _layers.shapes(table))
    panels = [[panel] for panel in _maps.panels(frame, "pathway")]
    columns = _maps.columns_of(panels)
    note = _layers.note(spec, frame, "Scale: linear near 0, logarithmic beyond about 0.1.")
    return _maps.plot(cells(frame), _maps.arrange(panels, columns), "pathway", columns, note), frame[COLUMNS]


def cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cells of maps: x is the source, y the target."""
    return frame.rename(columns={"source": "x", "target": "y", "weight": "value"}).dropna(subset=["x", "y"])

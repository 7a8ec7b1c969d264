"""Angular distance between layers of models that differ in their learning rate (paper Fig. 13).

A row of maps per design, from the lowest to the highest rate of its sweep, at one depth. Axes and measure are those
of `angular_distance`.
"""

import pandas as pd
import plotnine as p9

from depthbench.artifacts import ArtifactSpec
from depthbench.figures import _layers, _maps

FILES = ("analysis/angular.csv",)
COLUMNS = ["panel", *_layers.RUN, "layer", "n", "distance", "lo", "hi"]


def draw(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> tuple[p9.ggplot, pd.DataFrame]:
    """Return the plot and its frame: a row per panel and pair of layers, one for a run without values (`status`)."""
    table = _layers.at_one(_layers.joined(frames["angular"], spec), spec)
    frame = table.assign(panel=_layers.labels(table) + " " + _layers.shapes(table))
    groups = _maps.groups(frame, "angular")
    columns = min(_maps.COLUMNS, max([_maps.FEWEST, *map(len, groups)]))
    note = _layers.note(spec, frame)
    cells = frame.rename(columns={"layer": "x", "n": "y", "distance": "value"}).dropna(subset=["x", "y"])
    return _maps.plot(cells, _maps.arrange(groups, columns), "angular", columns, note), frame[COLUMNS]

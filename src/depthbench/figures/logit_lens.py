"""How far the head is from the model's own prediction when it reads an earlier layer (paper Fig. 8 right).

KL divergence [nats] of the distribution that the head makes of the state in front of layer l from the one of the
model, mean over tokens, with 95 % intervals over documents. At l = L it is 0.
"""

import numpy as np
import pandas as pd
import plotnine as p9

from depthbench.artifacts import ArtifactSpec
from depthbench.figures import _curves, _layers

FILES = ("analysis/logitlens.csv",)
COLUMNS = [*_layers.RUN, "layer", "kl", "lo", "hi", "top1"]
LABELS = ("State in front of layer l; l = L: the readout", "KL to the model's prediction [nats]")
DECADES = 1.5  # of the values in front of L, from which on the axis is logarithmic


def draw(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> tuple[p9.ggplot, pd.DataFrame]:
    """Return the plot and its frame: a row per run and layer, one for a run without values (`status`)."""
    frame = _layers.at_one(_layers.joined(frames["logitlens"], spec), spec)
    shown = frame.rename(columns={"layer": "x", "kl": "y"}).assign(hollow=False)
    shown, scale = scaled(_layers.by_shape(shown))
    note = _layers.note(spec, frame, "Logarithmic axis; at l = L the divergence is 0." if scale else "")
    return _curves.plot(shown, LABELS, note, spec, [_curves.layer_axis(), *scale]), frame[COLUMNS]


def scaled(curves: pd.DataFrame) -> tuple[pd.DataFrame, list]:
    """Return the curves and a logarithmic axis, without the last layer; or no axis where the range is small."""
    inner = curves[curves["x"] < curves["n_layers"]]
    values = inner["y"].dropna()
    if values.empty or values.min() <= 0 or np.log10(values.max() / values.min()) < DECADES:
        return curves, []
    return inner, [p9.scale_y_log10()]

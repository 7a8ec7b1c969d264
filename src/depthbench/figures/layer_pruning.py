"""What leaving out one layer costs on ARC-Easy (paper Fig. 8 left).

The drop of accuracy, normalised by length, against that of the intact model [percentage points], with 95 %
intervals over items. Designs with two ways to skip a layer have a second line.
"""

import pandas as pd
import plotnine as p9

from depthbench.artifacts import ArtifactSpec
from depthbench.figures import _curves, _layers

FILES = ("analysis/prune.csv",)
COLUMNS = [
    *(*_layers.RUN, "skip_mode", "skipped", "drop", "drop_lo", "drop_hi", "drop_raw"),
    *("acc_norm_full", "chance", "n_items"),
]
LABELS = ("Skipped layer", "Drop of accuracy [percentage points]")


def draw(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> tuple[p9.ggplot, pd.DataFrame]:
    """Return the plot and its frame: a row per run, mode and layer, one for a run without values (`status`)."""
    frame = _layers.at_one(_layers.joined(frames["prune"], spec), spec)
    second = "Thin, hollow: released skip." if frame["skip_mode"].eq("released").any() else ""
    note = _layers.note(spec, frame, second, accuracy(frame))
    extra = [p9.geom_hline(yintercept=0, size=0.3, color="#999999"), _curves.layer_axis()]
    return _curves.plot(curves(frame), LABELS, note, spec, extra), frame[COLUMNS]


def curves(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what `_curves.plot` draws of the rows of the analysis."""
    named = {"skipped": "x", "drop": "y", "drop_lo": "lo", "drop_hi": "hi"}
    return _layers.by_shape(frame).rename(columns=named).assign(hollow=frame["skip_mode"].eq("released"))


def accuracy(frame: pd.DataFrame) -> str:
    """Return a sentence with the accuracy of each intact model, and that of guessing."""
    runs = frame[frame["status"] == "ok"].drop_duplicates("run_id")
    if runs.empty:
        return ""
    values = zip(_layers.labels(runs), _layers.shapes(runs), runs["acc_norm_full"], strict=True)
    named = ", ".join(f"{label} {shape} {100 * value:.1f} %" for label, shape, value in values)
    return f"Intact: {named}; guessing: {100 * runs['chance'].iloc[0]:.1f} % ({runs['n_items'].iloc[0]} items)."

"""Differences of held-out loss between two models, on the same documents.

    diff = loss(run) - loss(reference)    [nats/token],  negative: the run is better

Contrasts, within one suite, scale and seed: `vs_preln_same_shape`, the reference being Pre-LN at its own rate,
and `vs_shallowest_same_design`, the same design at the same rate. The interval is that of the differences in
the resamples, which draw the same documents for both; runs that were measured on other documents are refused.
It holds the noise of evaluation, not of training.
"""

import numpy as np
import pandas as pd

from depthbench.artifacts import ArtifactSpec
from depthbench.stats import PERCENTILES
from depthbench.tables._measured import by_suite, measured, resampled

FILES = ("validation.csv", "validation_docs.parquet")
SHAPE = ["n_layers", "d_model"]
COLUMNS = [
    *("suite", "contrast", "design", "label", "scale", *SHAPE, "lr", "seed"),
    *("design_ref", "label_ref", "n_layers_ref", "d_model_ref", "lr_ref"),
    *("metric", "diff", "lo", "hi", "n_units", "excludes_zero", "note", "run_id", "run_id_ref"),
]
PRINTED = {
    "suite": ("Suite", "{}"),
    "label": ("Design", "{}"),
    "scale": ("Scale", "{}"),
    "seed": ("Seed", "{}"),
    "n_layers": ("L", "{}"),
    "d_model": ("d", "{}"),
    "label_ref": ("Against", "{}"),
    "n_layers_ref": ("L", "{}"),
    "d_model_ref": ("d", "{}"),
    "diff": ("Difference [nats/token]", "{:+.4f}"),
    "lo": ("2.5 %", "{:+.4f}"),
    "hi": ("97.5 %", "{:+.4f}"),
    "excludes_zero": ("Excludes 0", "{}"),
    "note": ("Note", "{}"),
}


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per suite, contrast and pair; a pair without both losses has a note instead of numbers."""
    samples = resampled(frames, spec)
    table = pairs(by_suite(measured(frames, spec)))
    n_units = frames["validation_docs"].groupby("run_id").size()
    both = (table["status"] == "ok") & (table["status_ref"] == "ok")
    bounds = np.full((len(table), 2), np.nan)
    differences = samples[table["run_id"][both]].to_numpy() - samples[table["run_id_ref"][both]].to_numpy()
    bounds[both] = np.percentile(differences, PERCENTILES, axis=0).T
    excludes = pd.Series(np.where((bounds[:, 0] > 0) | (bounds[:, 1] < 0), "yes", "no"))
    return table.assign(
        metric="loss",
        diff=table["loss"] - table["loss_ref"],
        lo=bounds[:, 0],
        hi=bounds[:, 1],
        n_units=table["run_id"].map(n_units).where(both).astype("Int64"),
        excludes_zero=excludes.where(np.isfinite(bounds).all(axis=1)),
        note=[_note(own, ref) for own, ref in zip(table["status"], table["status_ref"], strict=True)],
    )[COLUMNS]


def pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of `by_suite` beside their references, whose columns end with `_ref`."""
    cell, series = ["suite", "scale", "seed"], ["suite", "scale", "seed", "design", "lr"]
    first = rows["n_layers"] == rows.groupby(series)["n_layers"].transform("min")
    baseline = rows["design"] == "preln"
    shape = rows[~baseline].merge(rows[baseline], on=cell + SHAPE, suffixes=("", "_ref"))
    depth = rows[~first].merge(rows[first], on=series, suffixes=("", "_ref"))
    # What the two have in common stands in one column after the merge.
    shape = shape.assign(contrast="vs_preln_same_shape", **{f"{key}_ref": shape[key] for key in SHAPE})
    depth = depth.assign(contrast="vs_shallowest_same_design", design_ref=depth["design"], lr_ref=depth["lr"])
    return pd.concat([shape, depth], ignore_index=True)


def _note(own: str, reference: str) -> str:
    parts = {"run": own, "reference": reference}
    return ", ".join(f"{name} {status}" for name, status in parts.items() if status != "ok")

"""Does a design gain from depth? Slope of the held-out loss against log2(L), at equal size.

    slope = sum_s (x_s - mean x) loss_s / sum_s (x_s - mean x)^2,  x_s = log2(L_s)    [nats/token per doubling]

over the shapes s of one suite, seed by seed. The documents are resampled, the same ones for all shapes, which gives the
slope's 95 % interval and how often each shape has the smallest loss (`wins`). This is noise of evaluation;
noise of training (`seed_noise`) comes on top. Diverged and missing runs take no part; `absent` names them.
"""

import numpy as np
import pandas as pd

from depthbench.artifacts import ArtifactSpec
from depthbench.stats import PERCENTILES
from depthbench.tables._measured import by_suite, measured, resampled, shape_names, yes_no

FILES = ("validation.csv", "validation_docs.parquet")
KEYS = ["suite", "design", "label", "scale", "lr", "seed"]
COLUMNS = [
    *(*KEYS, "n_shapes", "slope", "slope_lo", "slope_hi", "best_shape", "best_share", "wins", "monotone"),
    "absent",
]
PRINTED = {
    "suite": ("Suite", "{}"),
    "label": ("Design", "{}"),
    "scale": ("Scale", "{}"),
    "seed": ("Seed", "{}"),
    "n_shapes": ("Shapes", "{}"),
    "slope": ("Slope [nats/token/doubling]", "{:+.4f}"),
    "slope_lo": ("2.5 %", "{:+.4f}"),
    "slope_hi": ("97.5 %", "{:+.4f}"),
    "best_shape": ("Best shape", "{}"),
    "best_share": ("Wins", "{:.2f}"),
    "monotone": ("Monotone", "{}"),
    "absent": ("Without a loss", "{}"),
}


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per suite, design, scale, rate and seed that has several depths; a trend needs two measured."""
    samples = resampled(frames, spec)
    rows = []
    for key, part in by_suite(measured(frames, spec)).groupby(KEYS, sort=False):
        if part["n_layers"].nunique() < 2:
            continue
        ok, absent = part[part["status"] == "ok"], part[part["status"] != "ok"]
        row = dict(zip(KEYS, key, strict=True)) | {"n_shapes": len(ok)}
        if ok["n_layers"].nunique() > 1:
            row |= trend(ok, samples[ok["run_id"]].to_numpy())
        names = zip(shape_names(absent), absent["status"], strict=True)
        rows.append(row | {"absent": ", ".join(f"{name} {status}" for name, status in names)})
    return pd.DataFrame(rows, columns=COLUMNS)


def slope_weights(runs: pd.DataFrame) -> np.ndarray:
    """Return what each loss counts in the slope, (runs,); they sum to 0."""
    depth = np.log2(runs["n_layers"].to_numpy())
    return (depth - depth.mean()) / ((depth - depth.mean()) ** 2).sum()


def trend(runs: pd.DataFrame, samples: np.ndarray) -> dict:
    """Return the trend of runs from shallow to deep; `samples` (resamples, runs) are their resampled losses."""
    weights = slope_weights(runs)
    loss, names = runs["loss"].to_numpy(), shape_names(runs)
    lo, hi = np.percentile(samples @ weights, PERCENTILES)
    shares = np.full(len(runs), np.nan)
    if np.isfinite(samples).all():  # fewer than five documents cannot be resampled
        shares = np.bincount(samples.argmin(axis=1), minlength=len(runs)) / len(samples)
    best, steps = loss.argmin(), np.diff(loss)
    return {
        "slope": loss @ weights,
        "slope_lo": lo,
        "slope_hi": hi,
        "best_shape": names[best],
        "best_share": shares[best],
        "wins": ", ".join(f"{name}: {share:.4g}" for name, share in zip(names, shares, strict=True)),
        "monotone": yes_no(bool((steps > 0).all() or (steps < 0).all())),
    }

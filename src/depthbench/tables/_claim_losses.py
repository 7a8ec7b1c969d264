"""What claims about held-out losses are measured by; intervals are those of the losses in the same resamples."""

import numpy as np
import pandas as pd

from depthbench.stats import PERCENTILES
from depthbench.tables._claim_runs import Evidence, Measured, Unmeasured, one, paired, present
from depthbench.tables.depth_trend import trend


def slope(evidence: Evidence, runs: pd.DataFrame) -> Measured:
    """Return the slope of the loss over log2(L) [nats/token per doubling of depth], see `depth_trend`."""
    runs = present(runs)
    if runs["n_layers"].nunique() < 2:
        raise Unmeasured("not run", "one depth only")
    found = trend(runs, evidence.samples[runs["run_id"]].to_numpy())
    return Measured(found["slope"], found["slope_lo"], found["slope_hi"])


def loss_difference(evidence: Evidence, first: pd.DataFrame, second: pd.DataFrame) -> Measured:
    """Return loss of the first - loss of the second [nats/token], mean over common shapes."""
    pairs = paired(present(first), present(second))
    samples = evidence.samples[pairs["run_id"]].to_numpy() - evidence.samples[pairs["run_id_ref"]].to_numpy()
    lo, hi = np.percentile(samples.mean(axis=1), PERCENTILES)
    return Measured((pairs["loss"] - pairs["loss_ref"]).mean(), lo, hi)


def best_aspect(evidence: Evidence, runs: pd.DataFrame) -> Measured:
    """Return the aspect ratio of the lowest loss; its interval is that of the best shapes of the resamples."""
    runs = present(runs)
    if len(runs) < 2:
        raise Unmeasured("not run", "one shape only")
    ratios = runs["aspect_ratio"].to_numpy()
    samples = evidence.samples[runs["run_id"]].to_numpy()
    value = ratios[runs["loss"].argmin()]
    if not np.isfinite(samples).all():  # fewer than five documents cannot be resampled
        return Measured(value, np.nan, np.nan)
    lo, hi = np.percentile(ratios[samples.argmin(axis=1)], PERCENTILES)
    return Measured(value, lo, hi)


def diverged(evidence: Evidence, runs: pd.DataFrame) -> Measured:
    """Return 1 for a run that diverged, 0 for one that did not."""
    run = one(runs)
    if run["status"] == "missing":
        raise Unmeasured("not run", "missing")
    value = float(run["status"] == "diverged")
    return Measured(value, value, value)

"""What claims about held-out losses are measured by; intervals are those of the losses in the same resamples.

Where seeds are repeated at the scale, the interval of a sum of losses with weights w also holds the noise of training:
half widths sqrt(a^2 + b^2), a that over documents, b = t_0.975(df) sd |w| (`seed_noise`).
"""

import numpy as np
import pandas as pd

from depthbench.stats import PERCENTILES
from depthbench.tables._claim_runs import Evidence, Measured, Unmeasured, one, paired, present
from depthbench.tables.depth_trend import slope_weights, trend


def slope(evidence: Evidence, runs: pd.DataFrame) -> Measured:
    """Return the slope of the loss over log2(L) [nats/token per doubling of depth], see `depth_trend`."""
    runs = present(runs)
    if runs["n_layers"].nunique() < 2:
        raise Unmeasured("not run", "one depth only")
    found = trend(runs, evidence.samples[runs["run_id"]].to_numpy())
    measured = Measured(found["slope"], found["slope_lo"], found["slope_hi"])
    return _of_training(measured, evidence, runs, slope_weights(runs))


def loss_difference(evidence: Evidence, first: pd.DataFrame, second: pd.DataFrame) -> Measured:
    """Return loss of the first - loss of the second [nats/token], mean over common shapes."""
    pairs = paired(present(first), present(second))
    samples = evidence.samples[pairs["run_id"]].to_numpy() - evidence.samples[pairs["run_id_ref"]].to_numpy()
    lo, hi = np.percentile(samples.mean(axis=1), PERCENTILES)
    measured = Measured((pairs["loss"] - pairs["loss_ref"]).mean(), lo, hi)
    return _of_training(measured, evidence, pairs, np.full(2 * len(pairs), 1 / len(pairs)))


def _of_training(found: Measured, evidence: Evidence, runs: pd.DataFrame, weights: np.ndarray) -> Measured:
    """Return the interval with the noise of training of these runs, which are of one scale, where that is known."""
    noise = evidence.noise.get(runs["scale"].iloc[0])
    if noise is None:
        return found
    half = noise.half_width(weights)
    lo = found.value - np.hypot(found.value - found.lo, half)
    return found._replace(lo=lo, hi=found.value + np.hypot(found.hi - found.value, half))


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

"""Bootstrap intervals of ratios of sums, e.g. a held-out loss.

A unit (a held-out document, a task item) is drawn as a whole, with replacement, from each stratum as many
units as it has; the ratio is that of the resampled sums,

    r_b = sum_i c_bi numerator_i / sum_i c_bi denominator_i,

c_bi being how often resample b drew unit i. The interval goes from the 2.5th to the 97.5th percentile of r_b
(Efron and Tibshirani, An Introduction to the Bootstrap, chapters 8 and 13).

SciPy's `bootstrap` draws anew for each statistic and takes no stratum of one unit; here one draw serves every
model that was measured on the same units, which makes their differences paired.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

PERCENTILES = (2.5, 97.5)
MIN_UNITS = 5  # of fewer units the spread cannot be told


@lru_cache(maxsize=1)
def resample_counts(sizes: tuple[int, ...], resamples: int, seed: int = 0) -> NDArray[np.float64]:
    """Return how often each resample draws each unit, (resamples, units), stratum after stratum.

    The counts depend on the three arguments only; `sizes` are the units of each stratum.
    """
    rng = np.random.default_rng(seed)
    counts = np.empty((resamples, sum(sizes)))
    start = 0
    for size in sizes:
        for row in counts[:, start : start + size]:
            row[:] = np.bincount(rng.integers(size, size=size), minlength=size)
        start += size
    counts.flags.writeable = False  # shared by all callers
    return counts


def bootstrap_ratio(
    numerator: ArrayLike, denominator: ArrayLike, strata: ArrayLike, resamples: int, seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % percentile interval of sum(numerator) / sum(denominator) over resampled units.

    All three have one entry per unit. Models whose units stand in the same order get the same resamples.
    Fewer than 5 units give (nan, nan).
    """
    ratios = resampled_ratios(np.asarray(numerator)[None], denominator, strata, resamples, seed)
    lo, hi = np.percentile(ratios[:, 0], PERCENTILES)
    return float(lo), float(hi)


def resampled_ratios(
    numerators: ArrayLike, denominator: ArrayLike, strata: ArrayLike, resamples: int, seed: int = 0
) -> NDArray[np.float64]:
    """Return sum(numerator) / sum(denominator) of each model in each resample, (resamples, models).

    `numerators` (models, units); the other two have one entry per unit. A row holds one draw of the units for
    all models, so a difference within it is paired. Fewer than 5 units give nan.
    """
    num, den = np.asarray(numerators, np.float64), np.asarray(denominator, np.float64)
    sums = resampled_sums(np.vstack([num, den]), strata, resamples, seed)
    return sums[:, :-1] / sums[:, -1:]


def ratio_intervals(
    numerators: ArrayLike, denominators: ArrayLike, strata: ArrayLike, resamples: int, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the 95 % interval of sum(numerator) / sum(denominator) of each row, both (rows, units).

    Rows without a denominator, or of fewer than 5 units, have nan.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = resampled_sums(numerators, strata, resamples, seed) / resampled_sums(
            denominators, strata, resamples, seed
        )
    lo, hi = np.percentile(ratios, PERCENTILES, axis=0)
    return lo, hi


def resampled_sums(values: ArrayLike, strata: ArrayLike, resamples: int, seed: int = 0) -> NDArray[np.float64]:
    """Return the sum of each row of `values` (rows, units) in each resample, (resamples, rows).

    `strata` has one entry per unit. Fewer than 5 units give nan.
    """
    rows = np.asarray(values, np.float64)
    names, stratum = np.unique(np.asarray(strata, str), return_inverse=True)
    assert rows.shape[1:] == stratum.shape, "one entry per unit"
    if stratum.size < MIN_UNITS:
        return np.full((resamples, len(rows)), np.nan)
    order = np.argsort(stratum, kind="stable")
    sizes = tuple(np.bincount(stratum, minlength=len(names)).tolist())
    return resample_counts(sizes, resamples, seed) @ rows.T[order]

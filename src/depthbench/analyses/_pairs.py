"""The share of late pairs of layers whose score lies above a threshold tau, for all tau of a grid.

A pair (a, b), a < b, is late if a >= ceil(L / 4), zero-based: both lie in the last three quarters of the network. Of
those that have a score,

    fraction(tau) = #{score > tau} / #{score},    tau = 0, 0.01, .. 1

Its interval has the scores of resampled documents.
"""

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from depthbench import stats

TAUS = tuple(round(i / 100, 2) for i in range(101))


def late(first: pd.Series, second: pd.Series) -> NDArray[np.bool_]:
    """Return which of all pairs of a model are late."""
    n_layers = second.max() + 1 if len(second) else 0
    return (first >= math.ceil(n_layers / 4)).to_numpy()


def curve(scores: NDArray, resampled: NDArray, paper: float) -> pd.DataFrame:
    """Return the row of each tau.

    Args:
        scores: Of the late pairs, (pairs,); nan where there is none.
        resampled: The same for resampled documents, (resamples, pairs).
        paper: The threshold of the paper.
    """
    n_pairs = int((~np.isnan(scores)).sum())
    shares = np.stack([_share(resampled, tau) for tau in TAUS], 1)
    lo, hi = np.percentile(shares, stats.PERCENTILES, axis=0)
    return pd.DataFrame(
        {
            "tau": TAUS,
            "n_pairs": n_pairs,
            "n_undefined": len(scores) - n_pairs,
            "fraction": [float(_share(scores, tau)) for tau in TAUS],
            "lo": lo,
            "hi": hi,
            "is_paper": [tau == paper for tau in TAUS],
            "reason": "" if n_pairs else "undefined" if len(scores) else "too_shallow",
        }
    )


def interval(resampled: NDArray) -> dict[str, NDArray]:
    """Return `lo` and `hi` of each column of (resamples, pairs), which may hold inf."""
    with np.errstate(invalid="ignore"):
        linear = np.percentile(resampled, stats.PERCENTILES, axis=0)
    # Between two numbers of which the upper one is inf there is no way but inf; it comes out as nan.
    lo, hi = np.where(np.isnan(linear), np.percentile(resampled, stats.PERCENTILES, axis=0, method="higher"), linear)
    return {"lo": lo, "hi": hi}


def _share(scores: NDArray, tau: float) -> NDArray:
    """Return the share above tau of the scores along the last axis, nan where there are none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return (scores > tau).sum(-1) / (~np.isnan(scores)).sum(-1)

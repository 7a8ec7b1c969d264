"""How far the depth state turns between two layers: angular distance of all pairs.

    D(l, n) = (2 / pi) atan2(|u - v|, |u + v|),  u, v: unit vectors of z_l and z_{l+n}

0: same direction, 0.5: orthogonal, 1: opposite; this is arccos(u v) / pi, right to 1e-8 near 0 too. Mean over tokens
of a document, then over documents. Tokens where a state is zero or not finite have no direction: they are counted in
`n_nan`, and a document without any other leaves the mean (`n_docs`). As in DepthBench (arXiv 2609.32534); the measure
is that of Gromov et al. (arXiv 2403.17887), who take the last token alone.

A small distance says that layers l .. l+n-1 hardly turn the state, not that it can do without them: a small change may
matter. Streams count as one long vector, so designs with states of another kind compare with care.
"""

import math
from collections.abc import Iterable

import pandas as pd
import torch
from torch import Tensor

from depthbench.analyses import _documents
from depthbench.analyses._baseline import Baseline, Batch
from depthbench.model.backbone import Model

NUMBERS_PER_CHUNK = 2**24  # of all layers' states


def measure(base: Baseline) -> pd.DataFrame:
    """Return the mean distance of each pair and document of a batch."""
    states = [z.flatten(0, 1) for z in base.depth_states]
    first, second = torch.triu_indices(len(states), len(states), 1)
    size = max(1, NUMBERS_PER_CHUNK // (len(states) * states[0].shape[-1]))
    chunks = zip(*(z.split(size) for z in states), strict=True)
    parts = [_distances(torch.stack(chunk, 1))[:, first, second] for chunk in chunks]
    by_token = torch.cat(parts).view(*base.batch.tokens.shape, -1).permute(2, 0, 1)
    distance, defined, n_nan = _documents.token_means(by_token)
    cells = {"layer": first.tolist(), "n": (second - first).tolist()}
    return _documents.frame(base.batch, cells, {"distance": distance, "defined": defined, "n_nan": n_nan})


def table(documents: pd.DataFrame, resamples: int) -> pd.DataFrame:
    """Return the distance of each pair, its interval, and what it is a mean of."""
    sums = _documents.gather(documents, ["layer", "n"], ["distance", "defined", "n_nan"])
    return sums.cells.assign(
        position="all",
        distance=sums.ratio("distance", "defined"),
        **sums.interval("distance", "defined", resamples),
        n_docs=sums.values["defined"].sum(1),
        n_nan=sums.values["n_nan"].sum(1),
    )[["position", "layer", "n", "distance", "lo", "hi", "n_docs", "n_nan"]]


def compute(model: Model, batches: Iterable[Batch], resamples: int = 1000, compute: str = "float32") -> pd.DataFrame:
    """Return the table of a model; arguments as in `Baseline`."""
    return table(_documents.stream(model, batches, measure, compute), resamples)


def _distances(states: Tensor) -> Tensor:
    """(tokens, layers, D) -> (tokens, layers, layers)."""
    # One float64 product for all pairs: |u - v|^2 = 2 - 2 u v is right to 1e-16, the distance to 1e-8.
    units = states.double()
    units = units / torch.linalg.vector_norm(units, dim=-1, keepdim=True)
    cosines = units @ units.mT
    return torch.atan2((2 - 2 * cosines).clamp(min=0).sqrt(), (2 + 2 * cosines).clamp(min=0).sqrt()) * (2 / math.pi)

"""What Block AttnRes reads: the newest source against all others, by sub-layer.

    alpha_k = weight of the newest source: the running sum, at a border the sum that was frozen just then
    beta_k = weight of all other sources, the embedding among them;    alpha_k + beta_k = 1

As in DepthBench (arXiv 2609.32534). Sub-layer 0 reads the embedding: no alpha. `dead_sublayers` counts the leading
sub-layers k >= 1 with alpha < 0.05, which pass over what was just written; `dead_layers` is half of it, rounded down.

A small alpha says that a sub-layer starts from older sources, not that the sum it leaves aside is never read: later
sub-layers may. Other designs, and blocks of one sub-layer, have no rows.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch

from depthbench.analyses import _documents
from depthbench.analyses._baseline import Baseline, Batch
from depthbench.analyses._sublayers import parts, sites
from depthbench.model.backbone import Model
from depthbench.residuals import attnres_block

DEAD = 0.05
CELLS = ["sublayer", "is_border", "n_sources"]
SUMS = ["alpha", "beta", "n_tokens"]


def measure(base: Baseline) -> pd.DataFrame:
    """Return the sums over the tokens of each document of a batch."""
    model, (n_documents, n_tokens) = base.model, base.batch.tokens.shape
    if not isinstance(model.residual, attnres_block.Residual) or model.residual.b == 1:
        return _documents.frame(base.batch, {name: [] for name in CELLS}, dict.fromkeys(SUMS, torch.empty(0)))
    found = []
    for part in parts(base.batch.tokens):
        reads = [site.read.double() for site in sites(model, part, base.compute) if site.written]
        found.append(torch.stack([torch.stack([w[..., -1].sum(1), w[..., :-1].sum((1, 2))]) for w in reads], 1))
    alpha, beta = torch.cat(found, -1)  # (sub-layers, documents)
    alpha[0], beta[0] = torch.nan, n_tokens
    cells = {
        "sublayer": range(len(reads)),
        "is_border": [k % model.residual.b == 0 for k in range(len(reads))],
        "n_sources": [w.shape[-1] for w in reads],
    }
    sums = {"alpha": alpha, "beta": beta, "n_tokens": torch.full((len(reads), n_documents), n_tokens)}
    return _documents.frame(base.batch, cells, sums)


def table(documents: pd.DataFrame, resamples: int) -> pd.DataFrame:
    """Return the mean weights of each sub-layer, and the interval of alpha."""
    sums = _documents.gather(documents, CELLS, SUMS)
    return sums.cells.assign(
        alpha=sums.ratio("alpha", "n_tokens"),
        beta=sums.ratio("beta", "n_tokens"),
        **sums.interval("alpha", "n_tokens", resamples),
    )


def summary(documents: pd.DataFrame, resamples: int) -> pd.DataFrame:
    """Return the length of the dead segment, in sub-layers and in layers; it has no interval."""
    sums = _documents.gather(documents, CELLS, SUMS)
    dead = int(np.cumprod(sums.ratio("alpha", "n_tokens")[1:] < DEAD).sum())
    rows = pd.DataFrame({"dead_sublayers": [dead], "dead_layers": [dead // 2]})
    return rows[: len(sums.cells)]


def compute(model: Model, batches: Iterable[Batch], resamples: int = 1000, compute: str = "float32") -> pd.DataFrame:
    """Return the table of a model; arguments as in `Baseline`."""
    return table(_documents.stream(model, batches, measure, compute), resamples)

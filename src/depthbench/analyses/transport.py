"""How much of what streams hold survives the way through the depth: the product of the maps of HC and mHC.

    P_k = A_0 A_1 ... A_k,  A[in, out] of each sub-layer, per token;    sigma: its singular values

`effective_rank` = exp(entropy of sigma / sum sigma), 1 .. m; `sigma_i` = sigma_i / sigma_1; `cos_cols`: mean |cosine|
over pairs of columns of P_k, which say what output streams are made of; `cos_rows`: of rows, which say where input
streams go; `dist_uniform` = |P_k - 1 1^T / m| (Frobenius). Means over the tokens of a document, then over documents;
tokens with P_k = 0 or not finite are counted in `n_nan`. `max_row_sum_error`, `max_col_sum_error`: largest |sum - 1|
of a row, a column of A_k alone: 0 where it is doubly stochastic, as mHC's is meant to be. As in DepthBench (arXiv
2609.32534).

Rank 1 says that the carried streams have become copies of one; what branches write later is not in P_k, so the streams
themselves may differ. Other designs have no rows.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from depthbench.analyses import _documents
from depthbench.analyses._baseline import Baseline, Batch
from depthbench.analyses._sublayers import parts, sites
from depthbench.model.backbone import Model
from depthbench.residuals import hc

ERRORS = ["max_row_sum_error", "max_col_sum_error"]


def measure(base: Baseline) -> pd.DataFrame:
    """Return the means over the tokens of each document of a batch."""
    model, cells = base.model, {"n_sublayers": range(1, 2 * base.model.cfg.n_layers + 1)}
    if not isinstance(model.residual, hc.Residual):
        none = torch.empty(0, 1, model.cfg.n_streams, model.cfg.n_streams)
        return _documents.frame(base.batch, {"n_sublayers": []}, _of_documents(none, none))
    found: list[list[dict[str, Tensor]]] = []
    for part in parts(base.batch.tokens):
        product, rows = torch.eye(model.cfg.n_streams, device=part.device), []
        for site in sites(model, part, base.compute):
            if site.written:
                product = product @ site.written.carry
                rows.append(_of_documents(product, site.written.carry))
        found.append(rows)
    # Of each measure a row per product, over the documents of all parts.
    values = {name: torch.cat([torch.stack([row[name] for row in rows]) for rows in found], -1) for name in found[0][0]}
    return _documents.frame(base.batch, cells, values)


def table(documents: pd.DataFrame, resamples: int) -> pd.DataFrame:
    """Return the measures of each product, each with its interval, and what they are means of."""
    names = [name for name in documents.columns if f"has_{name}" in documents.columns]
    sums = _documents.gather(documents, ["n_sublayers"], [*names, *(f"has_{name}" for name in names), "n_nan", *ERRORS])
    columns: dict[str, Any] = {}
    for name in names:
        bounds = sums.interval(name, f"has_{name}", resamples)
        columns |= {name: sums.ratio(name, f"has_{name}"), f"{name}_lo": bounds["lo"], f"{name}_hi": bounds["hi"]}
    return sums.cells.assign(
        **columns,
        **{f"sigma_{i}": np.nan for i in range(1, 5) if f"sigma_{i}" not in columns},  # of fewer streams
        n_docs=sums.values["has_effective_rank"].sum(1),
        n_nan=sums.values["n_nan"].sum(1),
        **{name: sums.values[name].max(1, initial=0) for name in ERRORS},
    )


def compute(model: Model, batches: Iterable[Batch], resamples: int = 1000, compute: str = "float32") -> pd.DataFrame:
    """Return the table of a model; arguments as in `Baseline`."""
    return table(_documents.stream(model, batches, measure, compute), resamples)


def of_products(P: Tensor) -> dict[str, Tensor]:
    """Return the measures of products P (..., m, m), float64; nan where P is zero or not finite."""
    P = P.double()
    P = P.masked_fill(~P.isfinite().all(-1).all(-1)[..., None, None], 0)  # svdvals refuses other numbers
    sigma = torch.linalg.svdvals(P)
    shares = sigma / sigma.sum(-1, keepdim=True)
    found = {"effective_rank": torch.special.entr(shares).sum(-1).exp()}
    found |= {"cos_rows": _cosine(P), "cos_cols": _cosine(P.mT)}
    found |= {f"sigma_{i}": value for i, value in enumerate((sigma / sigma[..., :1]).unbind(-1), start=1)}
    found["dist_uniform"] = torch.linalg.matrix_norm(P - 1 / P.shape[-1])
    return {name: value.masked_fill(sigma[..., 0] == 0, torch.nan) for name, value in found.items()}


def _cosine(P: Tensor) -> Tensor:
    """Return the mean |cosine| over pairs of rows."""
    units = P / torch.linalg.vector_norm(P, dim=-1, keepdim=True)
    i, j = torch.triu_indices(P.shape[-1], P.shape[-1], 1)
    return (units @ units.mT).abs()[..., i, j].mean(-1)


def _of_documents(product: Tensor, carry: Tensor) -> dict[str, Tensor]:
    """(B, T, m, m) -> what is kept of each document, (B,)."""
    found: dict[str, Tensor] = {}
    for name, value in of_products(product).items():
        found[name], found[f"has_{name}"], n_nan = _documents.token_means(value)
        if name == "effective_rank":
            found["n_nan"] = n_nan
    for name, axis in zip(ERRORS, (-1, -2), strict=True):
        found[name] = (carry.sum(axis) - 1).abs().flatten(1).amax(1)
    return found

"""How much of each sub-layer's output every later sub-layer reads.

    u_k = w_{-1->k} x0 + sum_{i < k} w_{i->k} f_i

u_k is the input of sub-layer k before its norm (k = 2L: the readout), f_i the branch output as it enters the residual
rule, x0 the embedding. `weight` is the mean of w over all tokens, `weight_abs` that of |w|. As in DepthBench (arXiv
2609.32534). The weights come from the design's `read_weights` and `write_weights`; `check` rebuilds what branches read.

Weights do not tell how large f_i is, nor whether sub-layer k makes use of it. Where the design adds outputs and norms
nothing around the sum, all weights are 1. Norms around the sum count without gain and centring
(`Residual.exact_pathway` is False there): those weights are approximate.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from depthbench.analyses import _documents
from depthbench.analyses._baseline import Baseline, Batch
from depthbench.analyses._sublayers import Site, parts, sites
from depthbench.errors import UserError
from depthbench.model.backbone import Model
from depthbench.residuals.base import side

CHECKED_TOKENS = 32
ALLOWED = 1e-4
TINY = 1e-30  # a zero vector has no direction


def measure(base: Baseline) -> pd.DataFrame:
    """Return the sums over the tokens of each document of a batch.

    Raises:
        UserError: E-PATH, see `check`.
    """
    model, tokens = base.model, base.batch.tokens
    check(model, tokens[:1, :CHECKED_TOKENS])
    weight, weight_abs = torch.cat([_sums(model, part, base.compute) for part in parts(tokens)], -1)
    pairs = [(source, target) for target in range(2 * model.cfg.n_layers + 1) for source in range(-1, target)]
    cells = dict(zip(("source", "target"), zip(*pairs, strict=True), strict=True))
    n_tokens = torch.full(weight.shape, tokens.shape[1])
    return _documents.frame(base.batch, cells, {"weight": weight, "weight_abs": weight_abs, "n_tokens": n_tokens})


def table(documents: pd.DataFrame, resamples: int) -> pd.DataFrame:
    """Return the mean weights of each pair, and the interval of the signed one."""
    sums = _documents.gather(documents, ["source", "target"], ["weight", "weight_abs", "n_tokens"])
    return sums.cells.assign(
        weight=sums.ratio("weight", "n_tokens"),
        weight_abs=sums.ratio("weight_abs", "n_tokens"),
        **sums.interval("weight", "n_tokens", resamples),
    )


def compute(model: Model, batches: Iterable[Batch], resamples: int = 1000, compute: str = "float32") -> pd.DataFrame:
    """Return the table of a model; arguments as in `Baseline`."""
    return table(_documents.stream(model, batches, measure, compute), resamples)


def check(model: Model, tokens: Tensor) -> None:
    """Compare what the weights rebuild with what each branch reads, in float32, if they claim to be exact.

    Branches read a norm, which hides the length of u_k: directions are compared, behind the design's own norm where
    it has one of the usual name (`attn_norm`, `ffn_norm`, `norm`). The difference is relative to the lengths of the
    rows that u_k sums: where streams cancel, float32 leaves u_k fewer digits.

    Raises:
        UserError: E-PATH with the sub-layer and the difference.
    """
    residual, n_layers = model.residual, model.cfg.n_layers
    if not residual.exact_pathway:
        return
    sources = [model.embed(tokens)]
    for site, made_of in _followed(sites(model, tokens)):
        rows = made_of.double() @ torch.stack(sources, -2).double()
        terms = site.read.double()[..., None] * rows
        u = terms.sum(-2)
        if site.written is None:
            name, read = "norm", residual.finish(site.state, n_layers, model)
        else:
            name, read = f"{side(site.k)}_norm", residual.read(site.state, site.k, site.at)[0]
            sources.append(site.written.f)
        rebuilt, norm = u.to(read.dtype), getattr(site.at, name, None)
        difference = (_direction(norm(rebuilt) if norm else rebuilt) - _direction(read)).norm(dim=-1)
        share = u.norm(dim=-1) / terms.norm(dim=-1).sum(-1).clamp(min=TINY)
        deviation = (difference * share).max()
        if not deviation <= ALLOWED:  # nan is not
            raise UserError(
                "E-PATH",
                f"{model.cfg.design}: sub-layer {site.k}: its pathway weights rebuild an input that differs by "
                f"{deviation:.1e} from what it reads (allowed: {ALLOWED:.0e}); mend read_weights or write_weights "
                f"in residuals/{model.cfg.design}.py, or set exact_pathway = False there",
            )


def _direction(x: Tensor) -> Tensor:
    return F.normalize(x.double(), dim=-1, eps=TINY)


def _sums(model: Model, tokens: Tensor, compute: str) -> Tensor:
    """Return the sums over tokens of w and |w|, float64 (2, pairs, B)."""
    found = []
    for site, made_of in _followed(sites(model, tokens, compute)):
        w = (site.read[..., None, :] @ made_of).squeeze(-2)
        found.append(torch.stack([w.sum(1, dtype=torch.float64), w.abs().sum(1, dtype=torch.float64)]))
    return torch.cat(found, -1).mT


def _followed(found: Iterator[Site]) -> Iterator[tuple[Site, Tensor]]:
    """Yield each site with what the rows in front of it are made of, (..., rows, sources), the embedding first.

    The leading dimensions are those of the carries: none where these are the same for all tokens.
    """
    made_of = None
    for site in found:
        if made_of is None:
            made_of = torch.ones_like(site.read[0, 0, :, None])
        yield site, made_of
        if site.written is not None:
            old, new = site.written.carry.mT @ made_of, site.written.write[..., None]
            shape = np.broadcast_shapes(old.shape[:-1], new.shape[:-1])
            made_of = torch.cat([old.expand(*shape, -1), new.expand(*shape, -1)], -1)

"""Causal score (arXiv 2609.32534): how much the update of a later block changes when an earlier block is left out.

    u_l = z_(l+1) - z_l, the update of block l of the intact model;  v_l: the same with block s < l left out
    r = |u_l - v_l| / |u_l| for each token with |u_l| > 1e-8, |.| the 2-norm over all features
    C(s, l) = mean of r over these tokens of all documents

`score_rom` is the ratio of the means, sum |u_l - v_l| / sum |u_l|. Late pairs above 0.45 count as used (`_pairs`).
A token whose r is not finite counts as inf. The score tells that block l reads what block s changed, not that the model
needs it. It also rises with a mere change of scale or direction of the state, which designs with norms in the stream
bring about.

Leaving out block s changes nothing in front of it: L + L (L - 1) / 2 block evaluations.
"""

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.linalg import vector_norm

from depthbench import stats
from depthbench.analyses import _documents, _pairs
from depthbench.analyses._baseline import Baseline, Batch
from depthbench.model.backbone import Model

FLOOR = 1e-8  # of |u_l|
PAPER = 0.45
CELLS = ("skip_mode", "skipped", "layer")
SUMS = ("n", "ratio_sum", "num", "den", "n_floor", "ratio_max")


def compute(model: Model, batches: Iterable[Batch], resamples: int = 1000, compute: str = "float32") -> pd.DataFrame:
    """Return the table of a calibration set."""
    return table(_documents.stream(model, batches, measure, compute), resamples)


def measure(base: Baseline) -> pd.DataFrame:
    """Return what the tokens of each document add up to, for every mode, skipped block and later layer.

    n tokens lie above the floor and enter the sums of r, |u - v| and |u|; `ratio_max` is the largest r, 0 without one.
    """
    z, modes = base.depth_states, base.model.residual.skip_modes
    den = torch.stack([vector_norm(after - before, dim=-1) for before, after in itertools.pairwise(z)])
    skips = list(itertools.product(modes, range(len(den) - 1)))
    sums = [torch.empty(len(SUMS), 0, den.shape[1], dtype=torch.float64, device=den.device)]
    for mode, skipped in skips:
        change = [vector_norm(z[l + 1] - z[l] - update, dim=-1) for l, update in _updates(base, mode, skipped)]
        sums.append(_sums(torch.stack(change), den[skipped + 1 :]))
    values = dict(zip(SUMS, torch.cat(sums, 1), strict=True))
    counts = {name: values[name].long() for name in ("n", "n_floor")}
    cells = [(mode, skipped, l) for mode, skipped in skips for l in range(skipped + 1, len(den))]
    named = {name: [cell[i] for cell in cells] for i, name in enumerate(CELLS)}
    return _documents.frame(base.batch, named, values | counts)


def table(documents: pd.DataFrame, resamples: int) -> pd.DataFrame:
    """Return the score of each mode, skipped block and later layer."""
    sums = _documents.gather(documents, CELLS, SUMS)
    n = sums.values["n"].sum(1)
    return sums.cells.assign(
        score=sums.ratio("ratio_sum", "n"),
        score_rom=sums.ratio("num", "den"),
        score_max=np.where(n > 0, sums.values["ratio_max"].max(1, initial=0.0), np.nan),
        num_mean=sums.ratio("num", "n"),
        den_mean=sums.ratio("den", "n"),
        n_floor=sums.values["n_floor"].sum(1),
        **_pairs.interval(_resampled(sums, resamples)),
        undefined=n == 0,
    )


def summary(documents: pd.DataFrame, resamples: int) -> pd.DataFrame:
    """Return the share of late pairs above each threshold, for every mode; without pairs, for the mode of all."""
    sums = _documents.gather(documents, CELLS, SUMS)
    score, resampled = sums.ratio("ratio_sum", "n"), _resampled(sums, resamples)
    modes, late = sums.cells["skip_mode"], _pairs.late(sums.cells["skipped"], sums.cells["layer"])
    curves = []
    for mode in modes.unique() if len(modes) else ["mask"]:
        chosen = late & (modes == mode).to_numpy()
        curves.append(_pairs.curve(score[chosen], resampled[:, chosen], PAPER))
        curves[-1].insert(0, "skip_mode", mode)
    return pd.concat(curves, ignore_index=True)


def _resampled(sums: _documents.Sums, resamples: int) -> NDArray:
    """Return the score of each cell for resampled documents, (resamples, cells)."""
    ratio_sum = sums.values["ratio_sum"]
    finite = np.isfinite(ratio_sum)
    # inf times the zero draws of its document would be nan: such documents are counted apart
    parts = (np.where(finite, ratio_sum, 0), sums.values["n"], ~finite)
    drawn, counted, lost = (stats.resampled_sums(part, sums.origins, resamples) for part in parts)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(lost > 0, np.inf, drawn / counted)


def _updates(base: Baseline, mode: str, skipped: int) -> Iterator[tuple[int, Tensor]]:
    """Yield each later layer and its update in the model without block `skipped`."""
    model = base.model
    with base.forward():
        state = model.skip_block(skipped, base.states[skipped], mode)
    before = base.represent(skipped + 1, state)
    for layer in range(skipped + 1, model.cfg.n_layers):
        with base.forward():
            state = model.apply_block(layer, state)
        after = base.represent(layer + 1, state)
        yield layer, after - before
        before = after


def _sums(num: Tensor, den: Tensor) -> Tensor:
    """Return SUMS over the tokens of |u - v| and |u|, both (layers, B, C): (6, layers, B) in float64."""
    counted = den > FLOOR
    ratio = torch.where(counted, num / den, 0).nan_to_num(torch.inf, torch.inf)
    sums = (counted, ratio, num * counted, den * counted, ~counted)
    return torch.stack([*(x.double().sum(-1) for x in sums), ratio.amax(-1).double()])

"""Permutation score (arXiv 2609.32534): how much the loss changes when two blocks trade places.

    P(a, b) = |loss - loss with blocks a and b exchanged| / loss,  a < b

loss is the mean next-token nll [nats] over the C - 1 predictions of all documents. What travels with a block and what
belongs to its place: `model.backbone.placed`. A swapped loss that is not finite scores inf. Late pairs above 0.15
count as depending on their order (`_pairs`). A small score may mean that the two blocks do alike, or that both do
little.

Nothing changes in front of a: with the intact pass L + (L - 1) L (L + 1) / 3 block evaluations. Pairs run one at a
time: several stacked along the batch would round otherwise than the model does, in the last bit.
"""

import itertools
import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from depthbench import stats
from depthbench.analyses import _documents, _pairs
from depthbench.analyses._baseline import Baseline, Batch
from depthbench.errors import UserError
from depthbench.model.backbone import Model

PAPER = 0.15
CELLS = ("layer_a", "layer_b")
MEANS = ("loss", "loss_swap")


def compute(model: Model, batches: Iterable[Batch], resamples: int = 1000, compute: str = "float32") -> pd.DataFrame:
    """Return the table of a calibration set."""
    return table(_documents.stream(model, batches, measure, compute), resamples)


def measure(base: Baseline) -> pd.DataFrame:
    """Return the mean nll of each document, intact and with each pair exchanged [nats].

    Raises:
        UserError: E-BASE if the intact model has no finite loss above 0.
    """
    loss, n_layers = base.document_nll(base.states[-1]), base.model.cfg.n_layers
    mean = loss.mean().item()
    if not 0 < mean < math.inf:
        raise UserError("E-BASE", f"loss of the intact model is {mean}: no change can be measured by it; retrain it")
    pairs = list(itertools.combinations(range(n_layers), 2))
    swapped = torch.stack([_swapped(base, a, b) for a, b in pairs]) if pairs else loss.new_empty(0, len(loss))
    cells = {name: [pair[i] for pair in pairs] for i, name in enumerate(CELLS)}
    return _documents.frame(base.batch, cells, {"loss": loss.expand(len(pairs), -1), "loss_swap": swapped})


def table(documents: pd.DataFrame, resamples: int) -> pd.DataFrame:
    """Return the score of each pair."""
    rows, resampled = _scores(documents, resamples)
    return rows.assign(**_pairs.interval(resampled), nonfinite=~np.isfinite(rows["loss_swap"]))


def summary(documents: pd.DataFrame, resamples: int) -> pd.DataFrame:
    """Return the share of late pairs above each threshold."""
    rows, resampled = _scores(documents, resamples)
    late = _pairs.late(rows["layer_a"], rows["layer_b"])
    curve = _pairs.curve(rows["score"].to_numpy()[late], resampled[:, late], PAPER)
    curve.insert(0, "swap_mode", "own")
    return curve


def _swapped(base: Baseline, a: int, b: int) -> Tensor:
    """Return the mean nll of each document with blocks a < b exchanged."""
    model = base.model
    with base.forward():
        state = model.apply_block(a, base.states[a], params_of=b)
        for position in range(a + 1, model.cfg.n_layers):
            state = model.apply_block(position, state, params_of=a if position == b else None)
    return base.document_nll(state)


def _scores(documents: pd.DataFrame, resamples: int) -> tuple[pd.DataFrame, NDArray]:
    """Return the scores of all pairs, and those of resampled documents, (resamples, pairs)."""
    sums = _documents.gather(documents, CELLS, MEANS)
    each, each_swap = (sums.values[name] for name in MEANS)
    loss, loss_swap = (x.sum(1) / max(1, len(sums.origins)) for x in (each, each_swap))
    finite = np.isfinite(each_swap)
    # An infinite loss times the zero draws of its document would be nan: such documents are counted apart.
    parts = (np.where(finite, each_swap - each, 0), each, ~finite)
    change, intact, lost = (stats.resampled_sums(part, sums.origins, resamples) for part in parts)
    scores = {
        "score": np.where(np.isfinite(loss_swap), abs(loss_swap - loss) / loss, np.inf),
        "signed": (loss_swap - loss) / loss,
        "loss": loss,
        "loss_swap": loss_swap,
    }
    rows = pd.DataFrame({"swap_mode": "own", **sums.cells, **scores})
    return rows, np.where(lost > 0, np.inf, abs(change) / intact)

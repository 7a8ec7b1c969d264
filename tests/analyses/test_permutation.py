import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from models import config, generic
from toy import Toy, batch, drawn

from depthbench.analyses import _documents, permutation
from depthbench.analyses._baseline import Baseline
from depthbench.designs import DESIGNS
from depthbench.errors import UserError


@pytest.mark.parametrize("design", DESIGNS)
def test_equal_blocks_may_trade_places(design):
    """LNS aside: its factor 1 / sqrt(l + 1) travels with the block."""
    model = generic(config(design, n_layers=4), torch.float32)
    with torch.no_grad():
        first = dict(model.blocks[1].named_parameters())
        for name, parameter in model.blocks[2].named_parameters():
            if name in first:
                parameter.copy_(first[name])
    table = permutation.compute(model, [drawn(6)]).set_index(["layer_a", "layer_b"])
    assert (table.score[1, 2] > 1e-4) if design == "lns" else (table.score[1, 2] == 0)
    assert (table.score.drop((1, 2)) > 1e-4).all()


def test_score_by_hand():
    """Blocks 2 h and h + 1 of one feature: h -> 3 h + 1 in order, 3 (h + 1) exchanged; logits (h, 0)."""
    toy = Toy([[1.0], [0.0]], [lambda h: 2 * h, torch.ones_like], head=[[1.0], [0.0]])
    rows = [[0, 1, 0], [0, 0, 1], [1, 1, 1]]

    def loss(state):  # ln(1 + e^z) - z of token 0 and ln(1 + e^z) of token 1, z the state behind the token before
        pairs = [(state(1 - now), following) for row in rows for now, following in itertools.pairwise(row)]
        return np.mean([math.log1p(math.exp(z)) - z * (1 - following) for z, following in pairs])

    intact, exchanged = loss(lambda h: 3 * h + 1), loss(lambda h: 3 * (h + 1))
    row = permutation.compute(toy, [batch(rows)]).iloc[0]
    assert (row.swap_mode, row.layer_a, row.layer_b, row.nonfinite) == ("own", 0, 1, False)
    assert (row.loss, row.loss_swap) == pytest.approx((intact, exchanged), rel=1e-6)
    assert row.signed == pytest.approx((exchanged - intact) / intact, rel=1e-5)
    assert row.score == abs(row.signed)


def test_a_swapped_loss_that_overflows_scores_inf():
    """h -> 0 -> 0 -> 0 in order; with the first block last 1e30 h twice, and inf - inf."""
    toy = Toy([[1.0], [2.0]], [lambda h: -h, lambda h: 1e30 * h, lambda h: 1e30 * h])
    documents = _documents.stream(toy, [batch([[0, 1, 1]] * 6)], permutation.measure, "float32")
    table = permutation.table(documents, 20).set_index(["layer_a", "layer_b"])
    assert table.score.to_dict() == {(0, 1): 0.0, (0, 2): math.inf, (1, 2): 0.0}
    assert table.nonfinite.to_dict() == {(0, 1): False, (0, 2): True, (1, 2): False}
    assert (table.lo[0, 2], table.hi[0, 2]) == (math.inf, math.inf)


def documents(pairs):
    """Six documents that lose 1 nat each; pairs: (a, b) -> their losses exchanged."""
    return pd.DataFrame(
        [
            {"layer_a": a, "layer_b": b, "doc_key": str(j), "origin": "x", "loss": 1.0, "loss_swap": swap}
            for (a, b), swaps in pairs.items()
            for j, swap in enumerate(swaps)
        ]
    )


def test_one_infinite_document_counts_where_it_is_drawn():
    """The last of six documents is in a resample with probability 1 - (5/6)^6 = 0.67."""
    found = documents({(0, 1): [1.0] * 6, (0, 2): [1.0] * 6, (1, 2): [1.5] * 5 + [math.inf]})
    row = permutation.table(found, 400).iloc[2]
    assert (row.score, row.loss_swap, row.lo, row.hi) == (math.inf, math.inf, 0.5, math.inf)
    curve = permutation.summary(found, 400).set_index("tau")
    assert (curve.fraction == 1).all()
    assert (curve.n_pairs == 1).all()
    assert curve.lo[[0.49, 0.5, 1.0]].tolist() == [1, 0, 0]
    assert (curve.hi == 1).all()
    assert curve.index[curve.is_paper].tolist() == [0.15]


def test_a_loss_that_is_no_number_counts_as_infinite():
    row = permutation.table(documents({(0, 1): [1.5] * 5 + [math.nan]}), 400).iloc[0]
    assert (row.score, row.nonfinite, row.lo, row.hi) == (math.inf, True, 0.5, math.inf)


def test_losses_that_fall_and_rise_cancel():
    """The score is of the mean loss, not the mean of the documents' scores."""
    row = permutation.table(documents({(0, 1): [0.5, 1.5, 0.25, 1.75, 1.0, 1.0]}), 20).iloc[0]
    assert row.score == row.signed == 0


@pytest.mark.parametrize("n_layers", [1, 2])
def test_shallow_models_have_no_late_pair(n_layers):
    model = generic(config("preln", n_layers=n_layers), torch.float32)
    found = _documents.stream(model, [drawn(6)], permutation.measure, "float32")
    assert len(permutation.table(found, 20)) == n_layers - 1
    curve = permutation.summary(found, 20)
    assert len(curve) == 101
    assert curve.fraction.isna().all()
    assert set(curve.reason) == {"too_shallow"}


@pytest.mark.parametrize(("head", "loss"), [([[math.nan]] * 2, "nan"), ([[1e4], [0.0]], "0.0")])
def test_an_intact_model_without_loss_is_told(head, loss):
    toy = Toy([[1.0], [1.0]], [torch.zeros_like] * 2, head)
    with pytest.raises(UserError, match=f"E-BASE loss of the intact model is {loss}: .*retrain"):
        permutation.measure(Baseline(toy, batch([[0, 0, 0]] * 2)))

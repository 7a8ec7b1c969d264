import math

import numpy as np
import pandas as pd
import pytest
import torch
from models import config, generic
from toy import Toy, batch, drawn

from depthbench import stats
from depthbench.analyses import _documents, causal


def scale(c):
    return lambda h: c * h


def add(*vector):
    return lambda h: torch.tensor(vector).expand_as(h)


def cells(table, column="score"):
    return {(row.skipped, row.layer): getattr(row, column) for row in table.itertuples()}


def test_updates_that_ignore_the_state_score_0():
    toy = Toy([[1.0, 2.0], [0.5, -1.0]], [add(1.0, 0.0), add(0.0, 2.0), add(-1.0, 4.0)])
    assert cells(causal.compute(toy, [batch([[0, 1, 1]])])) == {(0, 1): 0.0, (0, 2): 0.0, (1, 2): 0.0}


def test_blocks_that_scale_the_state():
    """u_l = c_l h_l, and without block s every later state is divided by 1 + c_s."""
    c = [1.0, -0.5, 0.25, 3.0]
    found = causal.compute(Toy([[1.0, 2.0], [-3.0, 0.5]], [scale(x) for x in c]), [batch([[0, 1, 1], [1, 0, 1]])])
    for (skipped, _), score in cells(found).items():
        assert score == pytest.approx(abs(c[skipped] / (1 + c[skipped])), rel=1e-6)
    assert len(found) == 6


def test_mean_of_ratios_and_ratio_of_means_by_hand():
    """Block 0 adds 1, block 1 adds 2 h: u = 2 (h + 1) and v = 2 h, so |u - v| = 2; where h = -1 there is no u."""
    toy = Toy([[1.0], [3.0], [-1.0]], [add(1.0), scale(2.0)])
    row = causal.compute(toy, [batch([[0, 1, 2, 0], [1, 1, 1, 2]])]).iloc[0]
    assert row.score == (2 * 1 / 2 + 4 * 1 / 4) / 6
    assert row.score_rom == 6 * 2 / (2 * 4 + 4 * 8)
    assert (row.score_max, row.num_mean, row.den_mean, row.n_floor) == (0.5, 2.0, 40 / 6, 2)
    assert not row.undefined


def test_a_block_without_update_is_undefined_later_and_0_skipped():
    toy = Toy([[1.0], [3.0]], [scale(1.0), scale(0.0), scale(2.0)])
    documents = _documents.stream(toy, [batch([[0, 1]] * 6)], causal.measure, "float32")
    found = causal.table(documents, 20)
    assert cells(found, "undefined") == {(0, 1): True, (0, 2): False, (1, 2): False}
    assert cells(found)[1, 2] == 0
    undefined = found.iloc[0]
    assert undefined[["score", "score_rom", "score_max", "num_mean", "den_mean", "lo", "hi"]].isna().all()
    assert undefined.n_floor == 12
    assert causal.summary(documents, 20).query("is_paper").fraction.item() == 0


def test_identity_blocks_have_no_score_at_all():
    documents = _documents.stream(Toy([[1.0]], [scale(0.0)] * 4), [batch([[0, 0]] * 6)], causal.measure, "float32")
    assert causal.table(documents, 20).undefined.all()
    found = causal.summary(documents, 20)
    assert (found.n_pairs == 0).all()
    assert (found.n_undefined == 3).all()  # (1, 2), (1, 3), (2, 3)
    assert found.fraction.isna().all()
    assert set(found.reason) == {"undefined"}


def documents(scores, n=4.0):
    """Six documents; scores: pair -> one number, or one of each document."""
    rows = [
        {
            **{"skip_mode": "mask", "skipped": pair[0], "layer": pair[1], "doc_key": str(j), "origin": "ab"[j % 2]},
            **{"n": n, "ratio_sum": n * value, "num": value, "den": 1.0, "n_floor": 0, "ratio_max": value},
        }
        for pair, of_documents in scores.items()
        for j, value in enumerate(np.broadcast_to(of_documents, 6))
    ]
    return pd.DataFrame(rows)


def test_share_of_late_pairs_strictly_above_each_threshold():
    """L = 5: late from s = 2 on; the three late pairs score 0.25, 0.5 and nothing."""
    early = {(s, l): 9.0 for s in range(2) for l in range(s + 1, 5)}
    found = causal.summary(documents({**early, (2, 3): 0.25, (2, 4): 0.5, (3, 4): math.nan}), 20).set_index("tau")
    assert found.index.tolist() == [float(f"{i / 100:.2f}") for i in range(101)]
    assert found.fraction[[0.0, 0.24, 0.25, 0.49, 0.5, 1.0]].tolist() == [1, 1, 0.5, 0.5, 0, 0]
    assert (found.n_pairs == 2).all()
    assert (found.n_undefined == 1).all()
    assert found.index[found.is_paper].tolist() == [0.45]
    assert set(found.reason) == {""}


def test_intervals_resample_documents():
    values = {(0, 1): 0.1, (0, 2): 0.1, (1, 2): [0.0, 0.1, 0.3, 0.6, 0.7, 1.0]}
    counts = stats.resample_counts((3, 3), 200)
    order = [0, 2, 4, 1, 3, 5]  # origin a, then origin b
    scores = np.array([sum(row * np.array(values[1, 2])[order]) / 6 for row in counts])
    found = causal.table(documents(values), 200).iloc[2]
    assert (found.lo, found.hi) == pytest.approx(tuple(np.percentile(scores, [2.5, 97.5])))
    row = causal.summary(documents(values), 200).query("is_paper")
    expected = np.percentile(1.0 * (scores > 0.45), [2.5, 97.5])
    assert (row.lo.item(), row.hi.item()) == tuple(expected)
    assert row.fraction.item() == (0.45 < 2.7 / 6)


@pytest.mark.parametrize("n_layers", [1, 2])
def test_shallow_models_have_no_late_pair(n_layers):
    model = generic(config("attnres_full", n_layers=n_layers), torch.float32)
    found = _documents.stream(model, [drawn(6)], causal.measure, "float32")
    assert len(causal.table(found, 20)) == {1: 0, 2: 2}[n_layers]
    curve = causal.summary(found, 20)
    assert (
        curve.groupby("skip_mode").size().to_dict() == {1: {"mask": 101}, 2: {"mask": 101, "released": 101}}[n_layers]
    )
    assert curve.fraction.isna().all()
    assert set(curve.reason) == {"too_shallow"}


def test_released_skips_rewire_attention_residuals():
    """The mixture behind a skipped block becomes a copy of its newest source; where that is read, scores differ."""
    model = generic(config("attnres_full", n_layers=4), torch.float32)
    found = causal.compute(model, [drawn(6)])
    mask, released = (cells(rows) for _, rows in found.groupby("skip_mode"))
    assert all(abs(released[s, s + 1] - mask[s, s + 1]) > 0.01 for s in range(3))
    assert (found.score_max >= found.score).all()
    assert (found.score > 0).all()


def test_few_documents_have_no_interval():
    found = causal.compute(Toy([[1.0]], [scale(1.0)] * 3), [batch([[0, 0]] * 4)])
    assert found.score.notna().all()
    assert found[["lo", "hi"]].isna().all(axis=None)


def test_a_skipped_run_that_overflows_scores_inf():
    """As a swapped loss that is not finite does; dropped as undefined, the worst case would count as none."""

    def overflow(h):
        return torch.where(h > 1.5, 1.0, torch.inf)

    row = causal.compute(Toy([[1.0, 1.0]] * 3, [add(1.0, 1.0), overflow]), [batch([[0, 1], [1, 2]] * 3)]).iloc[0]
    assert (row["score"], row["lo"], row["hi"]) == (math.inf, math.inf, math.inf)
    assert not row["undefined"]

import math

import numpy as np
import pytest
import torch
from models import config, generic, through
from toy import batch, documents, given

from depthbench import stats
from depthbench.analyses import angular


def distances(states, resamples=20):
    table = angular.table(angular.measure(given(states)), resamples)
    return table.set_index(["layer", "n"])


def test_identical_orthogonal_and_opposite():
    """Lengths do not matter: 0, 0.5, 1."""
    directions = [(1.0, 0.0), (3.0, 0.0), (0.0, 2.0), (-1e30, 0.0), (1e-30, 0.0)]
    found = distances([torch.tensor(v).expand(2, 3, 2) for v in directions])["distance"]
    expected = {(0, 1): 0, (0, 2): 0.5, (0, 3): 1, (1, 1): 0.5, (1, 2): 1, (2, 1): 0.5, (0, 4): 0, (3, 1): 1}
    for pair, distance in expected.items():
        assert found[pair] == pytest.approx(distance, abs=1e-7), pair
    assert len(found) == 10


@pytest.mark.parametrize("angle", [1e-6, 1e-4, 1.0, math.pi - 1e-4])
def test_an_angle_is_its_share_of_a_half_turn(angle):
    found = distances([torch.tensor(v).expand(1, 1, 2) for v in [(1.0, 0.0), (math.cos(angle), math.sin(angle))]])
    assert found["distance"].item() == pytest.approx(angle / math.pi, abs=5e-8)


def test_tokens_without_a_direction_are_counted_and_left_out():
    """A document of one orthogonal token and one of four equal ones weigh the same; one without any leaves the mean."""
    ones = torch.tensor((1.0, 0.0)).expand(3, 4, 2)
    second = ones.clone()
    second[0, 0] = torch.tensor((0.0, 1.0))
    second[0, 1:], second[2] = 0, 0
    second[0, 1, 0] = math.inf
    row = distances([ones, second]).loc[(0, 1)]
    assert (row["distance"], row["n_docs"], row["n_nan"]) == (pytest.approx(0.25, abs=1e-7), 2, 7)
    row = distances([ones, torch.zeros(3, 4, 2)]).loc[(0, 1)]
    assert (row["n_docs"], row["n_nan"]) == (0, 12)
    assert math.isnan(row["distance"])


@pytest.mark.parametrize("design", ["preln", "hc", "attnres_block"])
def test_all_pairs_of_a_model_against_arccos(design, monkeypatch):
    """In float64, from depth states made one by one; chunks of few tokens change nothing."""
    monkeypatch.setattr(angular, "NUMBERS_PER_CHUNK", 500)
    model, tokens = generic(config(design), torch.float32).eval(), documents()
    found = angular.compute(model, [batch(tokens)], 50).set_index(["layer", "n"])
    assert len(found) == 6
    with torch.no_grad():
        states = [model.represent(l, through(model, model.start(tokens), range(l))).double() for l in range(4)]
    for (l, n), row in found.iterrows():
        cosine = torch.cosine_similarity(states[l], states[l + n], dim=-1)
        by_document = (cosine.arccos() / math.pi).mean(1).numpy()
        assert row["distance"] == pytest.approx(by_document.mean(), abs=1e-6)
        bounds = stats.bootstrap_ratio(by_document, np.ones(6), batch(tokens).origins, 50)
        assert (row["lo"], row["hi"]) == pytest.approx(bounds, abs=1e-6)

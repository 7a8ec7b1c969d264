"""Scores of pairs from resumed runs: to the bit those of whole runs, with fewer block evaluations, and no traces."""

import itertools
import weakref

import _naive
import numpy as np
import pytest
import torch
from models import config, generic, tensors
from toy import Toy, batch, drawn

from depthbench.analyses import _documents, causal, permutation
from depthbench.analyses._baseline import Baseline
from depthbench.designs import DESIGNS
from depthbench.model import ModelConfig, build_model
from depthbench_kernels import _select

CHANGES = [(design, {}) for design in DESIGNS] + [
    ("attnres_block", {"n_layers": 6, "attnres_block_size": b})
    for b in (2, 3, 4)  # borders in front of every place
]


def measured(model, part, module):
    with torch.no_grad():
        return module.measure(Baseline(model, part))


@pytest.mark.parametrize(("design", "changes"), CHANGES)
def test_causal_sums_are_those_of_whole_runs(design, changes):
    model, part = generic(config(design, **{"n_layers": 5} | changes), torch.float32), drawn(3)
    found = measured(model, part, causal)
    assert found.n_floor.sum() == 0
    for mode in model.residual.skip_modes:
        with torch.no_grad():
            expected = _naive.causal(model, part.tokens, mode)
        ratios = found.ratio_sum[found.skip_mode == mode].to_numpy().reshape(expected.shape)
        np.testing.assert_array_equal(ratios, expected.numpy())


@pytest.mark.parametrize(("design", "changes"), CHANGES)
def test_swapped_losses_are_those_of_whole_runs(design, changes):
    model, part = generic(config(design, **{"n_layers": 5} | changes), torch.float32), drawn(3)
    found = measured(model, part, permutation)
    with torch.no_grad():
        expected = _naive.permutation(model, part.tokens)
    np.testing.assert_array_equal(found.loss_swap.to_numpy().reshape(expected.shape), expected.numpy())
    pairs = found[["layer_a", "layer_b"]].drop_duplicates().itertuples(index=False, name=None)
    assert list(pairs) == list(itertools.combinations(range(model.cfg.n_layers), 2))


@pytest.mark.parametrize(
    ("module", "modes", "blocks"),
    [
        (causal, ("mask",), 32 + 32 * 31 // 2),  # 528
        (causal, ("mask", "released"), 32 + 2 * 32 * 31 // 2),
        (permutation, ("mask",), 32 + 31 * 32 * 33 // 3),  # 10,944
    ],
)
def test_block_evaluations(module, modes, blocks, monkeypatch):
    model, calls = Toy([[1.0], [0.5]], [torch.zeros_like] * 32), []
    model.residual.skip_modes, original = modes, model.apply_block
    monkeypatch.setattr(
        model, "apply_block", lambda position, state, **of: calls.append(position) or original(position, state, **of)
    )
    measured(model, batch([[0, 1, 0]]), module)
    assert len(calls) == blocks


@pytest.mark.parametrize("module", [causal, permutation])
def test_order_and_batches_of_documents_do_not_matter(module):
    """Up to float32: kernels round otherwise in batches of other sizes."""
    model, whole = generic(config("mhc"), torch.float32), drawn(7)
    order = [4, 0, 6, 2, 1, 5, 3]
    shuffled = [type(whole)(whole.tokens[[i]], (whole.doc_keys[i],), (whole.origins[i],)) for i in order]
    once, one_by_one = (module.compute(model, parts, 50) for parts in ([whole], shuffled))
    numbers = once.select_dtypes("float").columns
    np.testing.assert_allclose(once[numbers], one_by_one[numbers], rtol=1e-5, atol=1e-6)
    assert once.drop(columns=numbers).equals(one_by_one.drop(columns=numbers))


@pytest.mark.parametrize("module", [causal, permutation])
@pytest.mark.parametrize("design", ["moda", "attnres_block", "hc"])
def test_one_batch_is_in_memory_at_a_time_and_the_model_stays_as_it_is(module, design, monkeypatch):
    model, seen = generic(config(design), torch.float32).eval(), []
    before = {name: value.clone() for name, value in model.state_dict().items()}
    start = model.start

    def checked(tokens):
        assert [ref for ref in seen if ref() is not None] == []
        return start(tokens)

    def measure(base):
        found = module.measure(base)
        seen.extend(weakref.ref(tensor) for state in base.states for tensor in tensors(state))
        seen.extend(weakref.ref(tensor) for tensor in base.depth_states)
        return found

    monkeypatch.setattr(model, "start", checked)
    _documents.stream(model, [batch(drawn(2, seed=i).tokens, 2 * i) for i in range(3)], measure, "float32")
    assert len(seen) > 3 * 4
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks or m.training for m in model.modules())
    assert [block.index for block in model.blocks] == [0, 1, 2]


@pytest.mark.parametrize("design", ["preln", "hc", "deepnorm"])
def test_rounding_of_bfloat16_passes_is_no_update(design):
    """A stream in bfloat16 would give a deep model of small updates several times the score."""
    cfg = ModelConfig(design, d_model=32, n_layers=16, n_heads=2, vocab_size=23)
    model, part = build_model(cfg).eval(), drawn(3)
    with torch.no_grad():
        scores = [causal.table(causal.measure(Baseline(model, part, c)), 1).score for c in ("float32", "bfloat16")]
        assert all(x.dtype == torch.float32 for x in Baseline(model, part, "bfloat16").depth_states)
    np.testing.assert_allclose(scores[1].mean(), scores[0].mean(), rtol=0.1)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_states_that_are_compared_are_not_rounded_to_bfloat16(design, backend, monkeypatch):
    monkeypatch.setattr(_select, "_chosen", backend)
    base = Baseline(generic(config(design), torch.float32), drawn(3), "bfloat16")
    with torch.no_grad():
        z = base.represent(2, base.states[2])
    assert (z != z.bfloat16()).float().mean() > 0.9


@pytest.mark.parametrize("design", DESIGNS)
def test_losses_of_bfloat16_passes_are_near(design):
    model = generic(config(design, d_model=32), torch.float32)
    exact, rounded = (
        permutation.compute(model, [drawn(6)], 20, compute=compute).loss_swap for compute in ("float32", "bfloat16")
    )
    np.testing.assert_allclose(rounded, exact, rtol=0.03)
    assert (rounded != exact).all()

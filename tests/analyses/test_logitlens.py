import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from models import config, generic
from toy import batch, documents, given

from depthbench.analyses import _baseline, logitlens
from depthbench.designs import DESIGNS
from depthbench.errors import UserError

NEVER = -80.0  # a logit of e^-80


def lens_of(layers, tokens):
    """The table of layers whose logits are given, (B, C, V) each."""
    base = given(layers)
    base.batch = batch(tokens)
    base.model = SimpleNamespace(
        residual=SimpleNamespace(finish=lambda state, l, model: state),
        lm_head=lambda x: x,
        cfg=SimpleNamespace(vocab_size=layers[0].shape[-1]),
    )
    return logitlens.table(logitlens.measure(base), 20)


def test_two_tokens_by_hand():
    """P = (1/2, 1/2), q = (1/4, 3/4)."""
    p = torch.tensor([0.0, 0.0, *[NEVER] * 3]).expand(1, 2, 5)
    q = torch.tensor([0.0, math.log(3), *[NEVER] * 3]).expand(1, 2, 5)
    found = lens_of([q, p], torch.tensor([[1, 0]]))
    assert found["kl"].tolist() == pytest.approx([0.5 * math.log(2) + 0.5 * math.log(2 / 3), 0], abs=1e-7)
    assert found["kl_reverse"][0] == pytest.approx(0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2), abs=1e-6)
    assert found["probe_ce"].tolist() == pytest.approx([math.log(4), math.log(2)], rel=1e-6)  # token 0 follows
    assert (found["layer"].tolist(), found["top5"].tolist()) == ([0, 1], [1, 1])


def test_shares_of_likeliest_tokens_by_hand():
    """Token by token: the same five in another order; two of the five in common; no mistake."""
    order = torch.tensor([[9, 8, 7, 6, 5, 4, 3, 2, 1, 0]] * 3)
    other = order.clone()
    other[0, :5] = torch.tensor([5, 6, 7, 8, 9])
    other[1] = torch.tensor([9, 8, 0, 1, 2, 3, 7, 6, 5, 4])
    logits = [
        torch.zeros(3, 10).scatter(1, best, torch.arange(10, 0, -1.0).expand(3, 10))[None] for best in (other, order)
    ]
    found = lens_of(logits, torch.zeros(1, 3, dtype=torch.int64))
    assert found["top1"].tolist() == pytest.approx([2 / 3, 1])
    assert found["top5"].tolist() == pytest.approx([(1 + 2 / 5 + 1) / 3, 1])


@pytest.mark.parametrize("design", DESIGNS)
def test_every_layer_against_the_output_of_the_model(design, monkeypatch):
    """The distribution of `model(tokens)` in float64; the last lens is it."""
    monkeypatch.setattr(_baseline, "LOGITS_PER_CHUNK", 100)
    model, tokens = generic(config(design), torch.float32).eval(), documents()
    found = logitlens.compute(model, [batch(tokens)], 20)
    with torch.no_grad():
        p = model(tokens).double().log_softmax(-1)
        state = model.start(tokens)
        for l in range(4):
            q = model.readout(state, l).double().log_softmax(-1)
            kl = (p.exp() * (p - q)).sum(-1).mean().item()
            assert found["kl"][l] == pytest.approx(kl, abs=1e-5), l
            ce = -q[:, :-1].gather(-1, tokens[:, 1:, None]).mean().item()
            assert found["probe_ce"][l] == pytest.approx(ce, abs=1e-5)
            state = state if l == 3 else model.apply_block(l, state)
    assert found["kl"][3] == pytest.approx(0, abs=1e-5)
    assert (found["kl"][:3] > 0.01).all()


def test_a_layer_that_is_not_finite_is_named():
    model = generic(config("preln"), torch.float32).eval()
    with torch.no_grad():
        model.blocks[1].ffn.w_down.weight[0, 0] = math.nan
    with pytest.raises(UserError, match="E-BASE logit lens: layer 2: not finite; the model is broken: train it again"):
        logitlens.compute(model, [batch(documents())])


def test_one_token_is_followed_by_none():
    model = generic(config("preln"), torch.float32).eval()
    found = logitlens.compute(model, [batch(documents(n_tokens=1))], 20)
    assert found["probe_ce"].isna().all()
    assert np.isfinite(found["kl"]).all()

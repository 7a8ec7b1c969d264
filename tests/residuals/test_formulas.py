"""Each design against its formula written out in float64, generic parameters: whole, skipped, swapped, lens."""

import formulas
import pytest
import torch
from models import config, generic, through

from depthbench.designs import DESIGNS

CONFIGS = {design: config(design) for design in DESIGNS} | {
    "hc, two streams": config("hc", n_streams=2),
    "hc, norm then sum": config("hc", hc_readout="norm_then_sum"),
    "mhc, two streams": config("mhc", n_streams=2),
    "mhc, 20 iterations": config("mhc", sinkhorn_iters=20, sinkhorn_eps=1e-6),
    **{f"attnres_block, {b} outputs": config("attnres_block", attnres_block_size=b) for b in (1, 3, 4, 5, 6)},
    "attnres_block, five blocks": config("attnres_block", n_layers=5),
    "moda, one head each": config("moda", n_kv_heads=4),
    "keel, five blocks": config("keel", n_layers=5),
}
CASES = pytest.mark.parametrize("cfg", CONFIGS.values(), ids=CONFIGS.keys())


def close(got, expected):
    return ((got - expected).norm() / expected.norm()).item() < 1e-9


def literal(model, tokens, **changes):
    with torch.no_grad():
        formula = getattr(formulas, model.cfg.design, None)
        if formula is None:
            pytest.skip(f"write the formula of {model.cfg.design} into tests/residuals/formulas.py")
        return formula(model.state_dict(), model.cfg, tokens, **changes)


@CASES
def test_depth_states_and_logits(cfg, tokens):
    model = generic(cfg)
    depth, logits = literal(model, tokens)
    assert close(model(tokens), logits)
    state = model.start(tokens)
    for l in range(cfg.n_layers):
        assert close(model.represent(l, state), depth[l])
        state = model.apply_block(l, state)
    assert close(model.represent(cfg.n_layers, state), depth[-1])
    assert close(model.readout(state), logits)


@CASES
@pytest.mark.parametrize(("mode", "both"), [("mask", (0, 2)), ("released", (0, 1))])
@pytest.mark.parametrize("skipped", [(0,), (1,), (2,), "both"])
def test_skipped_blocks_do_not_exist(cfg, skipped, both, mode, tokens):
    skipped = both if skipped == "both" else skipped
    model = generic(cfg)
    state = model.start(tokens)
    for l in range(cfg.n_layers):
        state = model.skip_block(l, state, mode) if l in skipped else model.apply_block(l, state)
    depth, logits = literal(model, tokens, skipped=skipped, released=mode == "released")
    assert close(model.represent(cfg.n_layers, state), depth[-1])
    assert close(model.readout(state), logits)


@CASES
@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (0, 0, 1)])
def test_blocks_run_with_the_tensors_of_another(cfg, order, tokens):
    model = generic(cfg)
    order = (*order, *range(3, cfg.n_layers))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    state = model.start(tokens)
    for position, owner in enumerate(order):
        state = model.apply_block(position, state, params_of=owner)
    assert close(model.readout(state), literal(model, tokens, order=order)[1])
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@CASES
@pytest.mark.parametrize("position", [0, 1, 2])
def test_logit_lens_decodes_the_depth_state(cfg, position, tokens):
    model = generic(cfg)
    state = through(model, model.start(tokens), range(position))
    z = model.represent(position, state).unflatten(-1, (-1, cfg.d_model))
    eps = cfg.attnres_eps if cfg.design.startswith("attnres") else cfg.norm_eps
    if cfg.hc_readout == "norm_then_sum":
        head = formulas.rms(z, model.norm.weight, eps).sum(-2)
    else:
        collapsed = z.mean(-2) if cfg.design == "mhc" else z.sum(-2)
        head = formulas.rms(collapsed, model.norm.weight, eps)
    assert close(model.readout(state, position), head @ model.lm_head.weight.T)


@pytest.mark.parametrize("design", DESIGNS)
def test_the_reference_path_gives_the_same_model(design, tokens, monkeypatch):
    from depthbench_kernels import _select

    model = generic(config(design))
    with monkeypatch.context() as patch:
        patch.setattr(_select, "_chosen", "reference")
        assert close(model(tokens), literal(model, tokens)[1])

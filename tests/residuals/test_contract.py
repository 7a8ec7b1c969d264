"""What every residual design must do, run over all files of `depthbench.residuals`."""

import pytest
import torch
from models import config, generic, tensors, through

from depthbench.designs import DESIGNS
from depthbench.errors import UserError
from depthbench.model import build_model
from depthbench.model.backbone import Model, placed

DESIGN = pytest.mark.parametrize("design", DESIGNS)


@DESIGN
def test_no_position_sees_later_tokens(design, tokens):
    model = generic(config(design))
    changed = tokens.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % 23
    with torch.no_grad():
        a, b = model(tokens), model(changed)
    assert torch.allclose(a[:, :4], b[:, :4], rtol=0, atol=1e-12)
    assert ((a - b)[:, 4:].abs().amax((0, 2)) > 1e-3).all()


@DESIGN
def test_every_parameter_gets_a_gradient(design, tokens):
    model = generic(config(design))
    model(tokens).square().sum().backward()
    largest = {name: float(p.grad.abs().max()) for name, p in model.named_parameters()}
    assert [name for name, g in largest.items() if g < 1e-6] == []


def test_hc_read_of_the_first_connector_has_no_gradient(tokens):
    """All streams are equal there and the norm is scale free: the one known exception of HC, up to eps."""
    cfg = config("hc", norm_eps=1e-14, hc_rms_eps=1e-14)
    model = generic(cfg)
    model(tokens).square().sum().backward()
    first = model.blocks[0].attn_hc
    for grad in (first.static_alpha.grad, first.dynamic_alpha_proj.grad):
        assert grad[:, 0].abs().max() < 1e-9 * grad[:, 1:].abs().max()
    second = model.blocks[0].ffn_hc.static_alpha.grad
    assert second[:, 0].abs().max() > 1e-3 * second[:, 1:].abs().max()


def test_mhc_gradients_that_vanish_are_those_of_the_first_and_last_map_and_the_first_read(tokens):
    """The first connector sees equal streams, and the mean of the last streams does not see their map."""
    cfg = config("mhc", norm_eps=1e-14, mhc_rms_eps=1e-14, sinkhorn_iters=20, sinkhorn_eps=1e-14, init="legacy")
    model = generic(cfg)
    model(tokens).square().sum().backward()
    parts = {"read": slice(0, 4), "write": slice(4, 8), "map": slice(8, 24)}
    largest = {
        (k, part): getattr(model.blocks[k // 2], ("attn_mhc", "ffn_mhc")[k % 2]).bias.grad[at].abs().max().item()
        for k in range(6)
        for part, at in parts.items()
    }
    scale = max(largest.values())
    assert {key for key, g in largest.items() if g < 1e-6 * scale} == {(0, "read"), (0, "map"), (5, "map")}


@DESIGN
def test_training_forward_equals_the_resumable_one(design, tokens):
    model = generic(config(design, n_layers=6))
    grads = []
    for logits in (model(tokens), model.readout(through(model, model.start(tokens)))):
        weight = torch.linspace(-1, 1, logits.numel(), dtype=torch.float64).view(logits.shape)
        grads.append([logits, *torch.autograd.grad((logits * weight).sum(), list(model.parameters()))])
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-9 * b.abs().max().item()) for a, b in zip(*grads, strict=True))


@DESIGN
def test_features_are_what_the_head_reads(design, tokens):
    model = generic(config(design))
    assert torch.equal(model.features(tokens) @ model.lm_head.weight.T, model(tokens))


@DESIGN
def test_states_are_never_changed_in_place(design, tokens):
    model = generic(config(design))
    with torch.no_grad():
        state = model.start(tokens)
        for l in range(3):
            before = [t.clone() for t in tensors(state)]
            following = model.apply_block(l, state)
            model.represent(l, state), model.readout(state, l)
            model.skip_block(l, state), model.skip_block(l, state, "released")
            model.apply_block(l, state, params_of=(l + 1) % 3)
            assert all(map(torch.equal, tensors(state), before))
            state = following


def test_a_placed_block_keeps_the_number_of_the_block_that_owns_its_tensors():
    """Designs that scale by the block's number (LNS) read it from there."""
    blocks = build_model(config("attnres_full")).blocks
    view = placed(blocks[0], blocks[2])
    assert (view.index, blocks[0].index) == (2, 0)
    assert view.attn.wq.weight is blocks[2].attn.wq.weight
    assert not hasattr(view, "attn_res")  # block 0 has no mixer in front of its attention


@DESIGN
def test_settled_states_can_be_stacked_along_the_batch(design, tokens):
    model = generic(config(design))
    with torch.no_grad():
        parts = [through(model, model.start(t), (0, 1)) for t in tokens.split(1)]
        flat = [tensors(part) for part in parts]
        assert [t.shape[0] for t in flat[0]] == [1] * len(flat[0])
        rows = iter([torch.cat(pair) for pair in zip(*flat, strict=True)])

        def rebuilt(part):
            if isinstance(part, torch.Tensor):
                return next(rows)
            return type(part)(*map(rebuilt, part)) if hasattr(part, "_fields") else tuple(map(rebuilt, part))

        state = parts[0]
        stacked = type(state)(*(p if p is None or isinstance(p, int | float) else rebuilt(p) for p in state))
        assert torch.allclose(model.readout(through(model, stacked, (2,))), model(tokens), rtol=0, atol=1e-12)


def branch_input(cfg, k, u, norm):
    """What the branch of sub-layer k reads where u is the sum that the pathway weights give; k = 6: the head."""
    if k < 6 and cfg.design == "moda_postln":
        return u
    centred = u - u.mean(-1, keepdim=True) if cfg.design == "deepnorm" and k > 0 else u
    if k < 6 and cfg.design == "deepnorm":
        return centred
    scale = (k // 2 + 1) ** -0.5 if k < 6 and cfg.design == "lns" else 1.0
    return scale * norm.weight * centred / (centred.square().mean(-1, keepdim=True) + cfg.norm_eps).sqrt()


@DESIGN
def test_pathway_weights_rebuild_every_sublayer_input(design, tokens):
    """u_k = sum_i w_{i->k} f_i + w_emb x0; a large eps makes the norm of u_k tell its scale.

    The weights leave out the gains of norms around the sum and DeepNorm's centring: the gains are ones here.
    """
    eps = dict.fromkeys(("norm_eps", "attnres_eps", "hc_rms_eps", "mhc_rms_eps"), 0.1)
    cfg = config(design, attnres_block_size=2, **eps)
    model = generic(cfg)
    with torch.no_grad():
        if design != "sandwich":
            for name, parameter in model.named_parameters():
                if name.endswith("post_norm.weight"):
                    parameter.fill_(1.0)
        residual, state = model.residual, model.start(tokens)
        sources = [model.embed(tokens)]
        first = residual.read_weights(state, 0, model.blocks[0])
        made_of = torch.ones_like(first)[..., None]  # rows x sources: every row starts as the embedding
        for k in range(7):
            at = model.blocks[k // 2] if k < 6 else model
            weights = (residual.read_weights(state, k, at)[..., None, :] @ made_of).squeeze(-2)
            u = torch.einsum("bts,btds->btd", weights, torch.stack(sources, -1))
            norm = model.norm if k == 6 else getattr(at, ("attn_norm", "ffn_norm")[k % 2], None)
            x = residual.finish(state, 3, model) if k == 6 else residual.read(state, k, at)[0]
            assert torch.allclose(x, branch_input(cfg, k, u, norm), rtol=0, atol=1e-9 * float(x.abs().max()))
            if k == 6:
                break
            following, out = model.sublayer(k, state, at)
            carry, write, f = residual.write_weights(state, k, at, out)
            old = carry.transpose(-1, -2) @ made_of
            made_of = torch.cat([old, write[..., None].expand(*old.shape[:-1], 1)], -1)
            sources.append(f)
            state = residual.settle(following)


@DESIGN
def test_bfloat16_autocast_is_close_to_float32(design, tokens):
    model = build_model(config(design, d_model=64, vocab_size=101))
    target = tokens.roll(-1, 1).flatten()

    def loss():
        return torch.nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), target)

    exact = loss()
    with torch.autocast("cpu", torch.bfloat16):
        stream = torch.float32 if design == "keel" else torch.bfloat16
        assert all(t.dtype == stream for t in tensors(model.start(tokens)))
        rounded = loss()
        rounded.backward()
    assert abs(rounded - exact) < 2e-3 * exact
    assert all(p.grad.isfinite().all() for p in model.parameters())


@DESIGN
def test_extreme_parameters_give_finite_numbers(design, tokens):
    """E07: routing and mixing logits far outside the range of an exponential."""
    model = generic(config(design), torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.rpartition(".")[2] not in ("weight",):
                parameter *= 100
    for autocast in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(tokens)
        logits.float().logsumexp(-1).sum().backward()
        assert logits.isfinite().all()
        assert all(p.grad.isfinite().all() for p in model.parameters())


@DESIGN
@pytest.mark.parametrize(
    "shape", [{}, {"n_kv_heads": 4}, {"n_layers": 1}, {"d_model": 88, "n_layers": 5, "d_ff": 264, "n_streams": 3}]
)
def test_parameter_count_in_closed_form(design, shape):
    cfg = config(design, **shape)
    with torch.device("meta"):
        assert cfg.count_params() == sum(p.numel() for p in Model(cfg).parameters())


@DESIGN
def test_no_buffers_and_strict_reload(design, tokens):
    model, other = generic(config(design)), build_model(config(design), seed=3).double()
    assert list(model.buffers()) == []
    other.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(other(tokens), model(tokens))


@DESIGN
@pytest.mark.parametrize("shift", [5])
def test_absolute_positions_matter_to_moda_alone(design, shift, tokens, monkeypatch):
    """Rotations tell distances, but MoDA scores its depth keys, not rotated, with rotated queries."""
    from depthbench.model import layers

    model = generic(config(design))
    before = model(tokens)

    def shifted(n_positions, *others):
        return [table[shift:] for table in layers.rotary_tables(n_positions + shift, *others)]

    monkeypatch.setattr(layers, "_cached_tables", shifted)
    difference = (model(tokens) - before).abs().max() / before.abs().max()
    assert difference > 1e-4 if design.startswith("moda") else difference < 1e-9


@DESIGN
def test_other_skip_modes_are_refused(design, tokens):
    model = generic(config(design))
    with pytest.raises(UserError, match="E-CONFIG skip_mode='zero': unknown; choose one of mask, released"):
        model.skip_block(0, model.start(tokens), mode="zero")

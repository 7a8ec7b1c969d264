"""Names, initial values and decay of every parameter, and the networks that the designs are at the start."""

import pytest
import torch
from models import config, generic

from depthbench.designs import DESIGNS
from depthbench.model import ModelConfig, build_model
from depthbench.optim import decay_groups

TRUNCATED_STD = 0.0197316  # of a normal with std 0.02 cut at 3 std
BLOCK = {
    "attn.wq.weight": (16, 16),
    "attn.wk.weight": (8, 16),
    "attn.wv.weight": (8, 16),
    "attn.wo.weight": (16, 16),
    "ffn.w_gate.weight": (48, 16),
    "ffn.w_up.weight": (48, 16),
    "ffn.w_down.weight": (16, 48),
    "attn_norm.weight": (16,),
    "ffn_norm.weight": (16,),
}
HEAD = {"embed.weight": (23, 16), "norm.weight": (16,), "lm_head.weight": (23, 16)}
HC = {
    "static_alpha": (4, 5),
    "static_beta": (4,),
    "dynamic_alpha_proj": (16, 5),
    "dynamic_beta_proj": (16,),
    "dynamic_alpha_scale": (),
    "dynamic_beta_scale": (),
}
MHC = {"phi": (64, 24), "bias": (24,), "alpha_pre": (), "alpha_post": (), "alpha_res": ()}
MIXER = {"query": (16,), "key_norm.weight": (16,)}
POST_NORMS = {"attn_post_norm.weight": (16,), "ffn_post_norm.weight": (16,)}
BUILT_IN = (
    *("preln", "sandwich", "lns", "deepnorm", "keel", "hc", "mhc"),
    *("attnres_full", "attnres_block", "moda", "moda_postln"),
)


def expected_shapes(design):
    block = dict(BLOCK)
    if design in ("deepnorm", "moda_postln"):
        del block["attn_norm.weight"], block["ffn_norm.weight"]
    if design in ("sandwich", "deepnorm", "keel", "moda_postln"):
        block |= POST_NORMS
    for name, own in (("hc", HC), ("mhc", MHC)):
        if design == name:
            block |= {f"{s}_{name}.{part}": shape for s in ("attn", "ffn") for part, shape in own.items()}
    shapes = HEAD | {f"blocks.{l}.{name}": shape for l in range(3) for name, shape in block.items()}
    if design == "keel":
        del shapes["blocks.0.attn_post_norm.weight"]
    if design.startswith("attnres"):
        sites = [
            "blocks.0.ffn_res",
            *(f"blocks.{l}.{s}_res" for l in (1, 2) for s in ("attn", "ffn")),
            "final_res",
        ]
        shapes |= {f"{site}.{name}": shape for site in sites for name, shape in MIXER.items()}
    if design.startswith("moda"):
        shapes |= {f"blocks.{l}.ffn.w_kv.weight": (16, 16) for l in (0, 1)}
    return shapes


@pytest.mark.parametrize("design", BUILT_IN)
def test_names_and_shapes_of_the_state_dict(design):
    state = build_model(config(design)).state_dict()
    assert {name: tuple(t.shape) for name, t in state.items()} == expected_shapes(design)
    assert all(t.dtype == torch.float32 for t in state.values())


@pytest.mark.parametrize("design", BUILT_IN)
def test_decay_groups(design):
    """All parameters decay, embeddings and gains included, but the static routing of HC and mHC."""
    free = {"hc": {"static_alpha", "static_beta"}, "mhc": {"bias", "alpha_pre", "alpha_post", "alpha_res"}}
    model = build_model(config(design))
    groups = decay_groups(model, model.residual.no_decay)
    assert {name.rpartition(".")[2] for name in groups["no_decay"]} == free.get(design, set())
    assert len(groups["no_decay"]) == 6 * len(free.get(design, ()))


@pytest.mark.parametrize("design", BUILT_IN)
def test_matrices_are_truncated_normals(design):
    """The branch outputs of HC and mHC are halved; DeepNorm scales all of a block but wq and wk."""
    model = build_model(ModelConfig(design, d_model=160, n_layers=2, n_heads=4, vocab_size=1000))
    for name, p in model.named_parameters():
        if name.endswith("norm.weight"):
            assert torch.equal(p, torch.ones_like(p)), name
        elif name.endswith(".weight"):
            scale = 1.0
            if design in ("hc", "mhc") and name.endswith(("wo.weight", "w_down.weight")):
                scale = 0.5
            elif design == "deepnorm" and "blocks" in name and not name.endswith(("wq.weight", "wk.weight")):
                scale = 0.5  # (8 L)^(-1/4), L = 2
            assert p.detach().std().item() == pytest.approx(scale * TRUNCATED_STD, rel=0.02), name
            assert abs(p.detach().mean().item()) < scale * 5e-4, name
            assert scale * 0.055 < p.detach().abs().max().item() <= scale * 0.06, name


def test_hc_connectors_start_as_in_the_paper():
    model = build_model(config("hc", n_streams=3))
    for k in range(6):
        connector = getattr(model.blocks[k // 2], ("attn_hc", "ffn_hc")[k % 2])
        alpha = torch.cat([torch.zeros(3, 1), torch.eye(3)], 1)
        alpha[k % 3, 0] = 1
        assert torch.equal(connector.static_alpha, alpha)
        assert torch.equal(connector.static_beta, torch.ones(3))
        assert not connector.dynamic_alpha_proj.any()
        assert not connector.dynamic_beta_proj.any()
        assert connector.dynamic_alpha_scale == connector.dynamic_beta_scale == torch.tensor(0.01)


def test_mhc_connectors_start_as_in_the_paper():
    model = build_model(config("mhc", n_streams=3))
    for k in range(6):
        connector = getattr(model.blocks[k // 2], ("attn_mhc", "ffn_mhc")[k % 2])
        read, write, carry = connector.bias.split((3, 3, 9))
        assert read.tolist() == [8.0 if s == k % 3 else -8.0 for s in range(3)]
        assert not write.any()
        assert carry.view(3, 3).tolist() == [[0.0 if t == s else -8.0 for s in range(3)] for t in range(3)]
        assert not connector.phi.any()
        assert connector.alpha_pre == connector.alpha_post == connector.alpha_res == torch.tensor(0.01)


def test_mhc_legacy_init():
    """Zero bias, a drawn projection: near-uniform reads and maps."""
    model = build_model(ModelConfig("mhc", d_model=160, n_layers=2, n_heads=4, vocab_size=100, init="legacy"))
    for block in model.blocks:
        for connector in (block.attn_mhc, block.ffn_mhc):
            assert not connector.bias.any()
            assert connector.phi.detach().std().item() == pytest.approx(TRUNCATED_STD, rel=0.02)
            assert connector.alpha_pre == connector.alpha_post == connector.alpha_res == torch.tensor(0.01)
    assert model.blocks[0].attn.wo.weight.detach().std().item() == pytest.approx(TRUNCATED_STD / 2, rel=0.02)


def test_mhc_coefficients_at_the_start(tokens):
    model = build_model(config("mhc", sinkhorn_iters=20, sinkhorn_eps=1e-6))
    for k in range(6):
        connector = getattr(model.blocks[k // 2], ("attn_mhc", "ffn_mhc")[k % 2])
        read, carry, write = connector.weights(torch.randn(2, 3, 4, 16))
        expected = torch.tensor([0.999665 if s == k % 4 else 0.000335 for s in range(4)])
        assert torch.allclose(read, expected.expand(2, 3, 4), rtol=0, atol=5e-7)
        assert torch.equal(write, torch.ones(2, 3, 4))
        off = carry[..., ~torch.eye(4, dtype=torch.bool)]
        assert torch.allclose(off, torch.full_like(off, 3.35e-4), rtol=0, atol=1.5e-6)  # sinkhorn_eps adds 1e-6


@pytest.mark.parametrize("design", ["attnres_full", "attnres_block"])
def test_attnres_queries_start_at_zero(design):
    state = build_model(config(design)).state_dict()
    queries = [t for name, t in state.items() if name.endswith("query")]
    assert len(queries) == 6
    assert not torch.stack(queries).any()


@pytest.mark.parametrize("design", DESIGNS)
def test_weights_depend_on_the_seed_alone(design):
    torch.manual_seed(1)
    first = build_model(config(design), seed=4).state_dict()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = build_model(config(design), seed=4).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(t, second[name]) for name, t in first.items())
    assert not torch.equal(build_model(config(design), seed=5).state_dict()["lm_head.weight"], first["lm_head.weight"])


SMALL_EPS = dict.fromkeys(("norm_eps", "hc_rms_eps", "mhc_rms_eps", "attnres_eps"), 1e-14)


def same_weights(design, other, **changes):
    """Two models in float64; the second has the weights of the first wherever it has one of that name and shape."""
    models = [build_model(config(name, **SMALL_EPS, **changes)).double() for name in (design, other)]
    first, second = (model.state_dict() for model in models)
    models[1].load_state_dict(second | {name: t for name, t in first.items() if name in second})
    return models


@pytest.mark.parametrize("design", ["hc", "attnres_full", "denseformer"])
def test_network_at_the_start_is_preln(design, tokens):
    """HC: all streams stay equal. AttnRes: zero queries mix to the mean, a multiple of the sum."""
    model, plain = same_weights(design, "preln")
    a, b = model(tokens), plain(tokens)
    assert torch.allclose(a, b, rtol=0, atol=1e-8 * b.abs().max().item())


def test_mhc_at_the_start_is_nearly_preln(tokens):
    """Within 1e-4: what the map moves between the streams stays in their mean."""
    model, plain = same_weights("mhc", "preln", sinkhorn_iters=20, sinkhorn_eps=1e-6)
    a, b = model(tokens), plain(tokens)
    assert 0 < (a - b).norm() < 1e-4 * b.norm()


@pytest.mark.parametrize("design", ["lns", "moda"])
def test_one_block_is_preln(design, tokens):
    cfg = config(design, n_layers=1)
    model, plain = generic(cfg), build_model(config("preln", n_layers=1)).double()
    plain.load_state_dict(model.state_dict(), strict=True)
    assert torch.allclose(model(tokens), plain(tokens), rtol=0, atol=1e-12)


def test_lns_is_preln_with_scaled_gains(tokens):
    model, plain = generic(config("lns")), build_model(config("preln")).double()
    state = model.state_dict()
    for l in range(3):
        for name in ("attn_norm", "ffn_norm"):
            state[f"blocks.{l}.{name}.weight"] = state[f"blocks.{l}.{name}.weight"] / (l + 1) ** 0.5
    plain.load_state_dict(state)
    assert torch.allclose(model(tokens), plain(tokens), rtol=0, atol=1e-12)


def test_block_attnres_of_one_output_is_full_attnres(tokens):
    block = generic(config("attnres_block", attnres_block_size=1, n_layers=6))
    full = build_model(config("attnres_full", n_layers=6)).double()
    full.load_state_dict(block.state_dict(), strict=True)
    state, same = block.start(tokens), full.start(tokens)
    for l in range(6):
        assert torch.equal(block.represent(l, state), full.represent(l, same))
        state, same = block.apply_block(l, state), full.apply_block(l, same)
    assert torch.equal(block.readout(state), full.readout(same))
    assert torch.allclose(block(tokens), full(tokens), rtol=1e-12, atol=1e-12)


def test_mhc_keeps_the_mean_of_the_streams(tokens):
    """R keeps it, so the readout is x0 + sum_k mean_s(w) f_k."""
    model = generic(config("mhc", sinkhorn_iters=50, sinkhorn_eps=1e-14, init="legacy"))
    with torch.no_grad():
        state = model.start(tokens)
        total = model.embed(tokens)
        for k in range(6):
            block = model.blocks[k // 2]
            following, out = model.sublayer(k, state, block)
            total = total + model.residual.write_weights(state, k, block, out)[1].mean(-1, keepdim=True) * out
            state = model.residual.settle(following)
    assert torch.allclose(state.carried.mean(-2), total, rtol=0, atol=1e-9 * total.abs().max().item())

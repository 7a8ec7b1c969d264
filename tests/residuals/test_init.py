"""Names, initial values and decay of every parameter, and the networks that the designs are at the start."""

import pytest
import torch
from models import config

from depthbench.designs import DESIGNS
from depthbench.model import ModelConfig, build_model

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
MIXER = {"query": (16,), "key_norm.weight": (16,)}


def expected_shapes(design):
    shapes = HEAD | {f"blocks.{l}.{name}": shape for l in range(3) for name, shape in BLOCK.items()}
    if design == "hc":
        for l in range(3):
            shapes |= {f"blocks.{l}.{s}_hc.{name}": shape for s in ("attn", "ffn") for name, shape in HC.items()}
    if design == "attnres_full":
        sites = [
            "blocks.0.ffn_res",
            *(f"blocks.{l}.{s}_res" for l in (1, 2) for s in ("attn", "ffn")),
            "final_res",
        ]
        shapes |= {f"{site}.{name}": shape for site in sites for name, shape in MIXER.items()}
    return shapes


@pytest.mark.parametrize("design", ["preln", "hc", "attnres_full"])
def test_names_and_shapes_of_the_state_dict(design):
    state = build_model(config(design)).state_dict()
    assert {name: tuple(t.shape) for name, t in state.items()} == expected_shapes(design)
    assert all(t.dtype == torch.float32 for t in state.values())


@pytest.mark.parametrize(
    ("design", "free"), [("preln", set()), ("hc", {"static_alpha", "static_beta"}), ("attnres_full", set())]
)
def test_decay_groups(design, free):
    """All parameters decay, embeddings and gains included, but HC's static routing."""
    model = build_model(config(design))
    assert set(model.residual.no_decay) == free
    names = [name for name, _ in model.named_parameters() if name.rpartition(".")[2] in model.residual.no_decay]
    assert len(names) == (12 if design == "hc" else 0)


@pytest.mark.parametrize("design", ["preln", "hc", "attnres_full"])
def test_matrices_are_truncated_normals(design):
    model = build_model(ModelConfig(design, d_model=160, n_layers=2, n_heads=4, vocab_size=1000))
    for name, p in model.named_parameters():
        if name.endswith(("norm.weight",)):
            assert torch.equal(p, torch.ones_like(p)), name
        elif name.endswith(".weight"):
            halved = design == "hc" and name.endswith(("wo.weight", "w_down.weight"))
            scale = 0.5 if halved else 1.0
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


def test_attnres_queries_start_at_zero():
    state = build_model(config("attnres_full")).state_dict()
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


@pytest.mark.parametrize("design", ["hc", "attnres_full"])
def test_network_at_the_start_is_preln(design, tokens):
    """HC: all streams stay equal. AttnRes: zero queries mix to the mean, a multiple of the sum."""
    eps = {"norm_eps": 1e-14, "hc_rms_eps": 1e-14, "attnres_eps": 1e-14}
    model = build_model(config(design, **eps)).double()
    plain = build_model(config("preln", **eps)).double()
    plain.load_state_dict({name: t for name, t in model.state_dict().items() if name in plain.state_dict()})
    a, b = model(tokens), plain(tokens)
    assert torch.allclose(a, b, rtol=0, atol=1e-8 * b.abs().max().item())

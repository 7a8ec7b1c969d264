"""Against OLMo-core itself, where it is installed: its forward pass, its saver."""

import math

import pytest
import torch
from released_folder import DESIGNS, filled, olmo_core_save, sharded, small, their_config, their_names, write

from depthbench.model import build_model
from depthbench.released import distcp, names
from depthbench.released.settings import model_config

pytest.importorskip("olmo_core", reason="ai2-olmo-core is not installed (extra `released`)")

SHAPES = {
    "preln": [{}, {"n_kv_heads": 4}, {"d_model": 76, "n_heads": 2, "n_kv_heads": 1, "d_ff": 208}],
    "sandwich": [{}],
    "lns": [{}],
}


def theirs(cfg):
    """OLMo-core's model of a config.json, float32, its weights not yet those of ours."""
    from olmo_core.nn.transformer import TransformerConfig

    about = their_config(cfg)["model"]
    for part in (about["block"]["sequence_mixer"], about["block"]["layer_norm"], about["lm_head"]["layer_norm"]):
        part["dtype"] = "float32"
    built = TransformerConfig.from_dict(about).build(init_device="cpu").eval()
    for l, block in enumerate(built.blocks.values()):
        if hasattr(block, "ln_scale"):
            block.ln_scale.fill_(1 / math.sqrt(l + 1))
    return built


def loaded(model, state):
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(name.endswith("ln_scale") for name in missing)
    return model


@pytest.mark.parametrize(("design", "shape"), [(d, s) for d, shapes in SHAPES.items() for s in shapes])
def test_forward(design, shape):
    """Ours in float64; both negative controls, and a stale factor of LNS, are far off."""
    cfg = small(design, **({"d_model": 64, "n_layers": 4, "n_heads": 4, "n_kv_heads": 2, "d_ff": 176} | shape))
    generator = torch.Generator().manual_seed(0)
    ours = at_fan_in_scale(cfg, generator)
    tokens = torch.randint(18, (2, 40), generator=generator)
    with torch.no_grad():
        scale = ours(tokens).square().mean().sqrt()
        ours.lm_head.weight /= scale  # logits of RMS 1
        expected = ours(tokens)
        state = {name: tensor.float() for name, tensor in their_names(ours).items()}
        built = loaded(theirs(cfg), state)
        assert (built(tokens) - expected).abs().max() < 2e-5
        swapped = {name.replace(".w1.", ".w0.").replace(".w3.", ".w1."): t for name, t in state.items()}
        swapped = {name.replace(".w0.", ".w3."): t for name, t in swapped.items()}
        assert (loaded(theirs(cfg), swapped)(tokens) - expected).abs().max() > 1
        mixed = {
            n: interleaved(t, cfg.head_dim) if n.endswith(("w_q.weight", "w_k.weight")) else t for n, t in state.items()
        }
        assert (loaded(theirs(cfg), mixed)(tokens) - expected).abs().max() > 1
        if design == "lns":
            for block in built.blocks.values():
                block.ln_scale.fill_(1.0)
            assert (built(tokens) - expected).abs().max() > 1


def at_fan_in_scale(cfg, generator):
    model = build_model(cfg).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(drawn / math.sqrt(parameter.shape[-1]) if parameter.ndim == 2 else 1 + 0.1 * drawn)
    return model


def interleaved(weight, head_dim):
    """The rows of each head as if channels 2i and 2i + 1 were a pair."""
    rows = weight.unflatten(0, (-1, 2, head_dim // 2))
    return rows.transpose(1, 2).reshape(weight.shape)


@pytest.mark.parametrize("design", DESIGNS)
def test_saver(design, tmp_path):
    model = filled(small(design))
    folder = write(tmp_path / "it", model, olmo_core_save)
    check(folder, model)


def test_two_processes(tmp_path):
    folder = sharded(tmp_path / "it")
    assert len({path.name[:4] for path in (folder / "model_and_optim").glob("__*")}) == 2  # both wrote
    check(folder, filled(small("preln")))


def check(folder, model):
    cfg = model_config(their_config(model.cfg))
    assert cfg == model.cfg
    found = names.ours(distcp.read(folder / "model_and_optim"), cfg)
    expected = model.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name]), name

"""The recipe `released`: bfloat16 weights without a float32 copy, as in the paper's public code."""

import pytest
import torch

from depthbench import checkpoint, config, loading, optim, runs, train
from depthbench.data.loader import Windows
from depthbench.designs import DESIGNS
from depthbench.errors import UserError
from depthbench.model import ModelConfig, build_model
from depthbench.model.backbone import store_bfloat16
from depthbench.schema import Optimizer

RELEASED = {"precision": {"master": "bfloat16", "compute": "bfloat16"}}
SHAPE = {"d_model": 16, "n_layers": 3, "n_heads": 2, "vocab_size": 512}
# architectures.md 2.4: AttnRes queries and key gains, mHC's bias and gains
FLOAT32 = {
    "attnres_full": ("query", "key_norm.weight"),
    "attnres_block": ("query", "key_norm.weight"),
    "mhc": ("bias", "alpha_pre", "alpha_post", "alpha_res"),
}


@pytest.mark.parametrize("design", DESIGNS)
def test_weights_are_rounded_once_but_those_that_the_paper_names(design):
    model, before = (build_model(ModelConfig(design, **SHAPE)) for _ in range(2))
    store_bfloat16(model)
    for name, parameter in model.named_parameters():
        kept = name.endswith(FLOAT32.get(design, ()))
        expected = before.get_parameter(name)
        assert torch.equal(parameter, expected if kept else expected.bfloat16()), name
        assert parameter.dtype == (torch.float32 if kept else torch.bfloat16), name


@pytest.mark.parametrize("rate", [1e-3, 2e-3])
def test_a_gain_of_one_moves_down_only_and_only_from_2e_3_on(rate):
    """The spacing of bfloat16 is 2^-8 below 1 and 2^-7 above: half of either must be passed."""
    model = build_model(ModelConfig("preln", **SHAPE))
    store_bfloat16(model)
    settings = Optimizer(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0)
    optimizer = optim.AdamW(model, (), settings)
    sign = torch.where(torch.arange(16) % 2 == 0, 1.0, -1.0).bfloat16()
    model.norm.weight.grad = sign
    model.lm_head.weight.grad = torch.zeros_like(model.lm_head.weight)
    before = model.lm_head.weight.detach().clone()
    optimizer.step(rate)  # AdamW's first step is the rate times the gradient's sign
    down = 1 - 2**-8 if rate == 2e-3 else 1.0
    assert model.norm.weight.tolist() == [down, 1.0] * 8
    assert torch.equal(model.lm_head.weight, before)  # a decay of 2e-4 rounds back


@pytest.mark.parametrize("design", ["preln", "hc", "mhc", "attnres_full", "keel"])
def test_the_trained_weights_load_as_they_are(prepared, tmp_path, design):
    """Upcast to float32 they give the same loss; stopped and resumed, the same bits."""
    spec = prepared.spec(design, steps=4, **RELEASED)
    windows = Windows(prepared.folder, spec.sequence_length)
    assert train.train(spec, prepared.folder, tmp_path / "run", 4, 600.0)
    halves = train.Training(spec, windows, tmp_path / "halves", 4)
    for _ in range(2):
        halves.advance()
    halves.save()
    halves = train.Training(spec, windows, tmp_path / "halves", 4)
    for _ in range(2):
        last = halves.advance()
    loaded = loading.load(tmp_path / "run")
    state = halves.model.state_dict()
    assert all(torch.equal(value, state[name].float()) for name, value in loaded.model.state_dict().items())
    kept = checkpoint.latest(tmp_path / "halves")[0]
    assert kept["exp_avg.lm_head.weight"].dtype == torch.bfloat16
    tokens = torch.from_numpy(windows.batch(3, 4, 0))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(loaded.model(tokens), halves.model(tokens))
    assert 0 < last["grad_norm"] < float("inf")


def test_weights_in_bfloat16_compute_in_bfloat16(raw):
    raw["recipes"]["released"]["precision"]["compute"] = "float32"
    with pytest.raises(UserError, match=r"recipes\.released\.precision: bfloat16 weights compute in bfloat16"):
        config.load(raw)


def test_control_suites_stand_beside_the_study(raw):
    """Another recipe stands in the path, and only its own keys differ in the spec."""
    loaded = config.load({**raw, "study": "paper"})
    views = runs.controls(loaded)
    assert [len(members) for members in views.values()] == [4, 1]
    assert not {run for members in views.values() for run in members} & set(runs.union(runs.suites(loaded)))
    run = next(run for run in views["released"] if run.design == "attnres_full")
    assert run.path == "attnres_full/400m-released-d1024-l24/lr2e-3-s0"
    assert runs.parse(run.path) == run
    spec = runs.spec(loaded, run).as_dict()
    plain = runs.spec(loaded, runs.parse("attnres_full/400m-d1024-l24/lr2e-3-s0")).as_dict()
    assert spec.pop("precision") == {"master": "bfloat16", "compute": "bfloat16"}
    assert plain.pop("precision") == {"compute": "bfloat16"}  # as before there was a choice
    assert (spec["model"].pop("attnres_eps"), spec["model"].pop("hc_rms_eps")) == (1e-5, 1e-8)
    assert spec.pop("run_id") != plain.pop("run_id")
    assert spec == plain
    readout = runs.spec(loaded, views["hc_readout"][0]).model
    assert (readout["design"], readout["hc_readout"]) == ("hc", "norm_then_sum")

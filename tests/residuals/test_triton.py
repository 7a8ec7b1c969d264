"""Whole models whose operations are Triton kernels, in the interpreter, against the same models on the reference."""

import pytest
import torch
from models import config, generic

from depthbench import train
from depthbench.analyses import Batch
from depthbench.analyses._baseline import Baseline
from depthbench.model import build_model
from depthbench_kernels import _select, paths

pytestmark = pytest.mark.interpret
pytest.importorskip("triton")

# L = 5: ten mixtures, more than one group; Block AttnRes has three sources then, and an open one. Streams carry
# rounding on from block to block: L = 2, with a first, inner and a last boundary.
DESIGNS = ("preln", "sandwich", "lns", "deepnorm", "keel", "hc", "mhc", "attnres_full", "attnres_block")


def step(design, backend, tokens, compute, monkeypatch, build=generic):
    """Loss per token and gradients of one step."""
    monkeypatch.setattr(_select, "_chosen", None)
    assert _select.use(backend) == backend
    model = build(config(design, n_layers=2 if design in ("hc", "mhc") else 5)).float()
    loss = train.Loss(model, compute)(tokens) / tokens[:, 1:].numel()
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("design", DESIGNS)
def test_a_step_is_that_of_the_reference(design, tokens, monkeypatch):
    tokens = tokens[:1]
    expected, theirs = step(design, "reference", tokens, "float32", monkeypatch)
    got, ours = step(design, "triton", tokens, "float32", monkeypatch)
    assert paths()["depth_mix"] == paths()["norms"] == paths()["streams"] == "triton"
    assert abs(got - expected) < 1e-6 * expected
    scale = torch.cat([g.flatten() for g in theirs.values()]).norm()
    errors = {name: (ours[name] - g).norm() / (g.norm() + 1e-3 * scale) for name, g in theirs.items()}
    assert max(errors.values()) < 3e-5, errors


@pytest.mark.parametrize("design", ["keel", "hc", "attnres_full"])
def test_a_bfloat16_step_is_as_close_to_float32_as_that_of_the_reference(design, tokens, monkeypatch):
    """At the initial weights; those of the test above multiply rounding errors from block to block."""
    tokens = tokens[:1]
    exact, gradients = step(design, "reference", tokens, "float32", monkeypatch, build_model)

    def error(backend):
        loss, found = step(design, backend, tokens, "bfloat16", monkeypatch, build_model)
        pairs = [(found[name], g) for name, g in gradients.items()]
        distance = sum((a - b).square().sum() for a, b in pairs).sqrt()
        return abs(loss - exact), distance / sum(b.square().sum() for _, b in pairs).sqrt()

    (loss, gradient), (_, theirs) = error("triton"), error("reference")
    assert loss < 2e-3 * exact
    assert gradient < 1.5 * theirs


@pytest.mark.parametrize("design", DESIGNS)
def test_the_pass_of_the_analyses_takes_float32_states_and_bfloat16_branches(design, tokens, monkeypatch):
    """Their states start wider than what branches add to them; a GPU has both."""
    part = Batch(tokens[:1], ("a",), ("b",))

    def states(backend, compute):
        monkeypatch.setattr(_select, "_chosen", None)
        _select.use(backend)
        with torch.no_grad():
            return Baseline(build_model(config(design, n_layers=3)).float(), part, compute).depth_states

    for ours, exact in zip(states("triton", "bfloat16"), states("reference", "float32"), strict=True):
        assert ours.dtype == torch.float32
        assert (ours - exact).norm() < 2e-2 * exact.norm()

"""`eager` under `torch.compile`: outputs and gradients of the uncompiled, in float32 and under bfloat16 autocast."""

import pytest
import test_depth_attention
import test_mhc
import test_streams
import torch
from comparing import relative_error, results

from depthbench.designs import DESIGNS
from depthbench.model import ModelConfig, build_model
from depthbench_kernels import depth_attention, depth_mix, linear_cross_entropy, norms, streams

COMPILER = "aot_eager"  # traces forward and backward as any other, and needs no C++ compiler


def normal(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def loss(x, weight):
    target = torch.tensor([3, -100, 0, 6, 2])
    return linear_cross_entropy.eager.linear_cross_entropy(x, weight, target)


def mixture(weight, gain, *sources):
    return depth_mix.eager.depth_mix(sources, weight, gain, eps=1e-6)


def workspace(embedding, weights, gain):
    """Three sites, each reading what became of the one before."""
    ws, y = depth_mix.eager.Workspace(embedding, weights, eps=1e-6), embedding
    for _ in range(3):
        y = ws.consume(torch.tanh(y), gain)
    return y


def add_norm(mode):
    def run(x, f, gain, gain2):
        return norms.eager.add_norm(x, f, gain, eps=1e-6, mode=mode, alpha=2.0, scale=0.5, gain2=gain2)

    gains = ((16,), (16,)) if mode in ("sandwich", "keel") else ((16,),)
    return (lambda x, f, gain, gain2=None: run(x, f, gain, gain2)), normal((2, 5, 16), (2, 5, 16), *gains)


OPERATIONS = {
    **{f"norms_{mode}": add_norm(mode) for mode in norms.MODES},
    "norms_alone": (lambda x, gain: norms.eager.rms_norm(x, gain, eps=1e-6), normal((2, 5, 16), (16,))),
    "depth_mix": (mixture, normal((16,), (16,), *[(2, 5, 16)] * 3)),
    "depth_mix_workspace": (workspace, normal((2, 5, 16), (3, 16), (16,))),
    "hc": (test_streams.boundary(streams.eager), test_streams.inputs(4, 16, torch.Generator().manual_seed(0))),
    "mhc": (test_mhc.boundary(streams.eager), test_mhc.inputs(4, 16, torch.Generator().manual_seed(0))),
    "depth_attention": (
        test_depth_attention.operation(depth_attention.eager),
        test_depth_attention.inputs(4, 2, 6, 3, torch.Generator().manual_seed(0)),
    ),
    "linear_cross_entropy": (loss, normal((5, 16), (7, 16))),
}


@pytest.mark.parametrize("autocast", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name, autocast):
    function, inputs = OPERATIONS[name]
    torch.compiler.reset()

    def run(*leaves):
        # activations are bfloat16 under autocast, parameters float32
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return function(*(t.bfloat16() if autocast and t.dim() > 2 else t for t in leaves))

    compiled = torch.compile(run, backend=COMPILER)
    got, expected = results(compiled, inputs, None), results(run, inputs, None)
    assert [t.dtype for t in got[0]] == [t.dtype for t in expected[0]]
    for ours, theirs in zip(got, expected, strict=True):
        assert max(map(relative_error, ours, theirs)) < (1e-3 if autocast else 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS)
def test_models(design):
    torch.compiler.reset()
    model = build_model(ModelConfig(design, d_model=16, n_layers=3, n_heads=2, vocab_size=23))
    tokens = torch.randint(23, (2, 7), generator=torch.Generator().manual_seed(0))

    def step(forward):
        loss = torch.nn.functional.cross_entropy(forward(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        return loss.detach(), torch.autograd.grad(loss, list(model.parameters()))

    (loss, gradients), (loss_, gradients_) = step(torch.compile(model, backend=COMPILER)), step(model)
    assert abs(loss - loss_) < 1e-6 * loss_
    floor = 1e-3 * max(float(g.norm()) for g in gradients_)  # some vanish: what is left of them is rounding
    assert (
        max(float((g - g_).norm() / g_.norm().clamp_min(floor)) for g, g_ in zip(gradients, gradients_, strict=True))
        < 2e-5
    )

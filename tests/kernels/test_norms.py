"""Residual addition with RMSNorm against float64 autograd of the formula."""

import pytest
import torch
from comparing import relative_error, worst_errors

from depthbench_kernels.norms import eager, reference

PATHS = pytest.mark.parametrize("path", [reference, eager])
EPS = 0.1  # large enough to be seen


def formula(x, f, gain):
    x_new = x + f
    return x_new, gain * x_new / (x_new.pow(2).mean(-1, keepdim=True) + EPS).sqrt()


def inputs(d, generator):
    return [torch.randn(s, generator=generator) for s in ((2, 3, d), (2, 3, d), (d,))]


@PATHS
@pytest.mark.parametrize("d", [1, 5, 76])
def test_add_norm_matches_the_formula(path, d, generator):
    both = (lambda x, f, gain: path.add_norm(x, f, gain, eps=EPS)), formula
    assert max(worst_errors(*both, inputs(d, generator))) < 1e-14
    outputs, gradients = worst_errors(*both, inputs(d, generator), torch.float32)
    assert outputs < 2e-6
    assert gradients < 2e-6


@PATHS
def test_norm_alone_matches_the_formula(path, generator):
    x, _, gain = inputs(6, generator)
    errors = worst_errors(
        lambda x, gain: path.rms_norm(x, gain, eps=EPS),
        lambda x, g: formula(x, torch.zeros_like(x), g)[1],
        [x, gain],
    )
    assert max(errors) < 1e-14


@PATHS
def test_gradient_of_the_sum_alone_passes_through(path, generator):
    x, f, gain = (t.requires_grad_() for t in inputs(5, generator))
    path.add_norm(x, f, gain, eps=EPS)[0].sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    assert torch.equal(f.grad, torch.ones_like(f))


@PATHS
def test_bfloat16_input_keeps_the_float32_gain(path, generator):
    x = torch.randn(64, 8, generator=generator).bfloat16()
    gain = torch.full((8,), 1.003)  # bfloat16 would make it 1.0
    y = path.rms_norm(x, gain, eps=EPS)
    expected = formula(x.double(), torch.zeros(1).double(), gain.double())[1]
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, expected.bfloat16())


@PATHS
def test_bfloat16_gradients(path, generator):
    x, f, gain = inputs(96, generator)
    errors = worst_errors(
        lambda x, f, gain: path.add_norm(x, f, gain, eps=EPS),
        formula,
        [x.bfloat16(), f.bfloat16(), gain],
        None,
    )
    assert errors[0] < 4e-3
    assert errors[1] < 6e-3


def test_no_input_is_changed(generator):
    x, f, gain = inputs(5, generator)
    copies = [t.clone() for t in (x, f, gain)]
    eager.add_norm(x, f, gain, eps=EPS)
    assert all(relative_error(a, b) == 0 for a, b in zip((x, f, gain), copies, strict=True))

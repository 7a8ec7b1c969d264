"""Residual addition with norm, in all modes, against float64 autograd of the formula."""

import pytest
import torch
from comparing import relative_error, worst_errors

from depthbench_kernels.norms import add, eager, reference

PATHS = pytest.mark.parametrize("path", [reference, eager])
EPS = 0.1  # large enough to be seen
ALPHA, SCALE = 5.0, 0.6


def rms(x, gain):
    return gain * x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt()


def layer_norm(x, gain):
    centred = x - x.mean(-1, keepdim=True)
    return gain * centred / (centred.pow(2).mean(-1, keepdim=True) + EPS).sqrt()


def pre(x, f, gain):
    return x + f, SCALE * rms(x + f, gain)


def sandwich(x, f, gain, gain2):
    x_new = x + rms(f, gain2)
    return x_new, SCALE * rms(x_new, gain)


def keel(x, f, gain, gain2):
    x_new = rms(ALPHA * x + f, gain2)
    return x_new, SCALE * rms(x_new, gain)


def post(x, f, gain):
    x_new = layer_norm(ALPHA * x + f, gain)
    return x_new, x_new


MODES = pytest.mark.parametrize("formula", [pre, sandwich, keel, post])


def operation(path, formula):
    def run(x, f, gain, gain2=None):
        return path.add_norm(x, f, gain, eps=EPS, mode=formula.__name__, alpha=ALPHA, scale=SCALE, gain2=gain2)

    return run


def inputs(d, generator, formula=pre):
    shapes = [(2, 3, d), (2, 3, d), (d,), (d,)]
    return [torch.randn(s, generator=generator) for s in shapes[: 4 if formula in (sandwich, keel) else 3]]


@PATHS
@MODES
@pytest.mark.parametrize("d", [2, 5, 76])
def test_add_norm_matches_the_formula(path, formula, d, generator):
    both = operation(path, formula), formula
    assert max(worst_errors(*both, inputs(d, generator, formula))) < 1e-13
    outputs, gradients = worst_errors(*both, inputs(d, generator, formula), torch.float32)
    assert outputs < 2e-6
    assert gradients < 5e-6


@PATHS
def test_one_channel(path, generator):
    assert max(worst_errors(operation(path, pre), pre, inputs(1, generator))) < 1e-14


@PATHS
@MODES
def test_bfloat16_streams(path, formula, generator):
    """Statistics, sums and gains are float32; only what is stored is rounded."""
    x, f, *gains = inputs(96, generator, formula)
    errors = worst_errors(operation(path, formula), formula, [x.bfloat16(), f.bfloat16(), *gains], None)
    assert errors[0] < 5e-3
    assert errors[1] < 1e-2


@PATHS
@pytest.mark.parametrize(("mode", "norm"), [("post", layer_norm), ("keel", rms)])
def test_weighted_sum_is_formed_in_float32(path, mode, norm, generator):
    """A branch below 0.3 beside a stream above 128: half of bfloat16's spacing there is 0.5."""
    x = (2 + torch.rand(4, 64, generator=generator)).bfloat16().float()
    f = (0.3 * torch.rand(4, 64, generator=generator)).bfloat16()
    gain = torch.ones(64)
    got = path.add_norm(x, f, gain, eps=EPS, mode=mode, alpha=64.0, gain2=gain)[0]
    exact, without = (norm(64 * x.double() + g.double(), gain.double()) for g in (f, 0 * f))
    assert got.dtype == torch.float32
    assert relative_error(got.double() - without, exact - without) < 1e-3


@MODES
def test_sum_alone_is_that_of_the_formula(formula, generator):
    own = inputs(5, generator, formula)
    got = add(*own[:2], own[-1], eps=EPS, mode=formula.__name__, alpha=ALPHA)
    assert relative_error(got, formula(*own)[0]) < 1e-6


@PATHS
@MODES
def test_gradients_where_one_output_alone_is_read(path, formula, generator):
    x, f, gain, *gain2 = inputs(5, generator, formula)

    def stream(function):  # the gain of y plays no part in it
        fixed = torch.randn(5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        return lambda x, f, *gain2: function(x, f, fixed, *gain2)[0]

    def normed(function):
        return lambda *leaves: function(*leaves)[1]

    both = operation(path, formula), formula
    assert max(worst_errors(*map(stream, both), [x, f, *gain2])) < 1e-13
    assert max(worst_errors(*map(normed, both), [x, f, gain, *gain2])) < 1e-13


@PATHS
def test_norm_alone_matches_the_formula(path, generator):
    x, _, gain = inputs(6, generator)
    for scale in (1.0, SCALE):
        errors = worst_errors(
            lambda x, gain, scale=scale: path.rms_norm(x, gain, eps=EPS, scale=scale),
            lambda x, gain, scale=scale: scale * rms(x, gain),
            [x, gain],
        )
        assert max(errors) < 1e-14


@PATHS
def test_bfloat16_input_keeps_the_float32_gain(path, generator):
    x = torch.randn(64, 8, generator=generator).bfloat16()
    gain = torch.full((8,), 1.003)  # bfloat16 would make it 1.0
    y = path.rms_norm(x, gain, eps=EPS)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, rms(x.double(), gain.double()).bfloat16())


@MODES
def test_no_input_is_changed(formula, generator):
    own = inputs(5, generator, formula)
    copies = [t.clone() for t in own]
    operation(eager, formula)(*own)
    assert all(map(torch.equal, own, copies))

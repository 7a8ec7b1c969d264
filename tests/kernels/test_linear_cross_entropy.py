"""LM head with cross-entropy against `torch.nn.functional.cross_entropy` in float64."""

import pytest
import torch
from comparing import relative_error
from torch.nn import functional as F

from depthbench_kernels.linear_cross_entropy import eager, reference

PATHS = pytest.mark.parametrize("path", [reference, eager])


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(eager, "CHUNK", 4)


def case(n, generator, dtype=torch.float64, ignored=()):
    x = torch.randn(n, 6, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(11, 6, generator=generator, dtype=torch.float64).to(dtype)
    target = torch.randint(11, (n,), generator=generator)
    target[list(ignored)] = -100
    return x.requires_grad_(), weight.requires_grad_(), target


def compare(path, x, weight, target, upstream=1.0):
    loss = path.linear_cross_entropy(x, weight, target)
    got = torch.autograd.grad(upstream * loss, (x, weight))
    exact = [t.detach().double().requires_grad_() for t in (x, weight)]
    expected_loss = F.cross_entropy(exact[0] @ exact[1].T, target, reduction="sum")
    expected = torch.autograd.grad(upstream * expected_loss, exact)
    return loss, [relative_error(loss, expected_loss), *map(relative_error, got, expected)]


@PATHS
@pytest.mark.parametrize("n", [1, 4, 9])
def test_matches_cross_entropy_with_ignored_targets_and_scaling(path, n, generator):
    ignored = () if n == 1 else (0, n - 1)
    _, errors = compare(path, *case(n, generator, ignored=ignored), upstream=0.37)
    assert max(errors) < 1e-13


@PATHS
def test_float32_loss_and_gradients(path, generator):
    loss, errors = compare(path, *case(9, generator, torch.float32))
    assert loss.dtype == torch.float32
    assert loss.shape == ()
    assert max(errors) < 1e-6


@PATHS
def test_all_targets_ignored_is_zero_with_zero_gradients(path, generator):
    x, weight, target = case(5, generator, ignored=range(5))
    loss = path.linear_cross_entropy(x, weight, target)
    loss.backward()
    assert loss == 0
    assert not x.grad.any()
    assert not weight.grad.any()


@PATHS
def test_autocast_keeps_the_softmax_in_float32(path, generator):
    x, weight, target = case(9, generator, torch.float32, ignored=(3,))
    with torch.autocast("cpu", torch.bfloat16):
        loss, errors = compare(path, x, weight, target)
    assert loss.dtype == torch.float32
    assert errors[0] < 4e-3
    assert max(errors[1:]) < 2e-2


def test_extreme_logits_are_finite(generator):
    x, weight, target = case(9, generator, torch.float32)
    _, errors = compare(eager, (x.detach() * 1e3).requires_grad_(), weight, target)
    assert max(errors) < 1e-5


def test_frozen_operands_and_no_grad(generator):
    x, weight, target = case(9, generator)
    frozen = eager.linear_cross_entropy(x, weight.detach(), target)
    frozen.backward()
    dx = x.grad.clone()
    x.grad = None
    eager.linear_cross_entropy(x, weight, target).backward()
    assert torch.equal(dx, x.grad)
    with torch.no_grad():
        evaluated = eager.linear_cross_entropy(x, weight, target)
    assert torch.equal(evaluated, frozen)
    assert not evaluated.requires_grad


def test_logits_of_all_tokens_are_never_held(generator):
    """The largest tensor of forward and backward is one chunk of logits, or an operand."""
    sizes = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, torch.Tensor))
            return out

    x, weight, target = case(40, generator)
    with Sizes():
        eager.linear_cross_entropy(x, weight, target).backward()
    assert max(sizes) == x.numel()  # 240; all logits would be 440, a chunk is 44

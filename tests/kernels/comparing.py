"""Comparison of an operation with float64 autograd of its formula."""

import torch


def relative_error(got, expected):
    """Return ||got - expected|| / ||expected|| in float64."""
    got, expected = got.detach().double(), expected.detach().double()
    return float((got - expected).norm() / expected.norm().clamp_min(1e-30))


def results(function, inputs, dtype):
    """Return the outputs of function(*inputs) and the gradients of a fixed random combination of them.

    Floating inputs are cast to `dtype`, unless `dtype` is None.
    """
    leaves = [t.detach().to(dtype or t.dtype).requires_grad_() for t in inputs]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(5)
    total = sum((o.double() * torch.randn(o.shape, generator=generator, dtype=torch.float64)).sum() for o in outputs)
    return [o.detach() for o in outputs], torch.autograd.grad(total, leaves)


def worst_errors(function, definition, inputs, dtype=torch.float64):
    """Return the largest relative errors of outputs and gradients against the definition in float64."""
    got = results(function, inputs, dtype)
    rounded = [t.to(dtype or t.dtype) for t in inputs]
    expected = results(definition, rounded, torch.float64)
    return [max(map(relative_error, g, e)) for g, e in zip(got, expected, strict=True)]

"""Comparison of an operation with float64 autograd of its formula."""

import torch


def relative_error(got, expected):
    """Return ||got - expected|| / ||expected|| in float64."""
    got, expected = got.detach().double(), expected.detach().double()
    return float((got - expected).norm() / expected.norm().clamp_min(1e-30))


def stored(x, dtype):
    """Return x rounded to a type; its gradient passes as it is."""
    return x + (x.to(dtype).to(x.dtype) - x).detach()


def results(function, inputs, dtype, gradients_in=torch.float64):
    """Return the outputs of function(*inputs) and the gradients of a fixed random combination of them.

    Floating inputs are cast to `dtype`, unless `dtype` is None; the gradients of the outputs are numbers that
    `gradients_in` has.
    """
    leaves = [t.detach().to(dtype or t.dtype).requires_grad_() for t in inputs]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(5)
    weights = [torch.randn(o.shape, generator=generator, dtype=torch.float64) for o in outputs]
    weights = [weight.to(o.device, gradients_in) for weight, o in zip(weights, outputs, strict=True)]
    total = sum((o.double() * weight).sum() for o, weight in zip(outputs, weights, strict=True))
    return [o.detach() for o in outputs], torch.autograd.grad(total, leaves)


def worst_errors(function, definition, inputs, dtype=torch.float64):
    """Return the largest relative errors of outputs and gradients against the definition in float64."""
    got = results(function, inputs, dtype)
    rounded = [t.to(dtype or t.dtype) for t in inputs]
    expected = results(definition, rounded, torch.float64)
    return [max(map(relative_error, g, e)) for g, e in zip(got, expected, strict=True)]


# Errors allowed against float64: relative in norm, and the largest relative to the largest value; None: not asked.
TOLERANCES = {
    torch.float32: {"output": (2e-6, 1e-5), "input": (2e-6, 5e-5), "query": (3e-5, None), "gain": (2e-5, None)},
    torch.bfloat16: {"output": (4e-3, 2e-2), "input": (6e-3, None), "query": (1.5e-2, None), "gain": (2e-2, None)},
}


def assert_close(function, definition, inputs, kinds, dtype):
    """Compare outputs and all gradients with float64; `kinds` are those of the inputs, of which "input" gets dtype."""
    inputs = [t.to(dtype) if kind == "input" else t for t, kind in zip(inputs, kinds, strict=True)]
    got, expected = results(function, inputs, None, dtype), results(definition, inputs, torch.float64, dtype)
    for names, ours, theirs in zip((["output"] * len(got[0]), kinds), got, expected, strict=True):
        for i, (name, a, b) in enumerate(zip(names, ours, theirs, strict=True)):
            relative, largest = TOLERANCES[dtype][name]
            assert a.dtype == (dtype if name in ("output", "input") else torch.float32)
            assert relative_error(a, b) <= relative, (name, i, relative_error(a, b))
            assert largest is None or (a.double() - b).abs().max() <= largest * b.abs().max(), (name, i)

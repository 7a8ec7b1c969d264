"""Each fused operation, each implementation: forward pass, and forward with backward pass.

Before it is timed an implementation is held against the reference in float32 on a few tokens: of one that is wrong, or
that does not run, the line has an `error` and no times. `first_call_s` is the time of that check, compilation
in it. `least_bytes` are those that the operation must move, so `bytes_per_s` is compared with that of a
copy. The baseline is the eager path. On a GPU the reference, which is no path to train with, is not timed.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from depthbench import device
from depthbench.bench import ceilings, protocol
from depthbench.bench.operations import OF_SOURCES, OPERATIONS, Function, Operation, Size
from depthbench.errors import UserError

BASELINE = "eager"
CHECKED_TOKENS = 32
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}  # of the norm; that of gradients of parameters is the widest
# Through a chain of sites rounding grows: what the reference itself loses in the type is let pass, with a margin.
MARGIN = 1.5
SIZES: dict[str, dict[str, Any]] = {
    "cuda": {"tokens": 16384, "widths": (640, 896, 1024), "sources": (9, 49, 141), "dtype": torch.bfloat16},
    "cpu": {"tokens": 512, "widths": (256,), "sources": (9, 49), "dtype": torch.float32},
}
ALL = ("ceilings", *OPERATIONS)


def lines(only: Sequence[str], rounds: int, compiled: bool) -> Iterator[dict[str, Any]]:
    """Measure the named operations, `ceilings` among them, at the sizes of the device."""
    if strangers := [name for name in only if name not in ALL]:
        raise UserError("E-SPEC", f"--only {strangers[0]!r}: no such operation; known: {', '.join(ALL)}")
    at = protocol.choose()
    plan = SIZES[at.type]
    if "ceilings" in only:
        yield from ceilings.lines()
    copy = ceilings.copy_bytes_per_s(at) if set(only) & set(OPERATIONS) else None
    for name in only:
        for sources in plan["sources"] if name in OF_SOURCES else plan["sources"][:1]:
            for width in plan["widths"] if name in OPERATIONS else ():
                size = Size(plan["tokens"], width, sources, at, plan["dtype"], compiled)
                yield from measure(name, size, rounds, copy)


def measure(name: str, size: Size, rounds: int, copy: float | None) -> Iterator[dict[str, Any]]:
    """Yield a line for each implementation and pass of an operation."""
    torch._dynamo.reset()  # or graphs of other sizes, made for any size, would be taken
    few = OPERATIONS[name](size._replace(tokens=CHECKED_TOKENS))
    errors: dict[str, str] = {}
    first: dict[str, float] = {}
    for way, function in few.functions.items():
        started = time.perf_counter()
        if problem := wrong(function, few, size):
            errors[way] = problem
        first[way] = time.perf_counter() - started
    operation = OPERATIONS[name](size)
    ways = [way for way in operation.functions if way != "reference" or size.at.type == "cpu"]
    known = protocol.facts(size.at)
    about = {"case": name, "tokens": size.tokens, "width": size.width}
    about |= {"sources": size.sources} if name in OF_SOURCES else {}
    about["dtype"] = str(size.dtype).removeprefix("torch.")
    for number, (what, make) in enumerate(PASSES.items()):
        calls: dict[str, protocol.Call] = {}
        for way in [way for way in ways if way not in errors]:
            try:
                call = make(operation.functions[way], operation.inputs)
                call()
                device.wait(size.at)
                calls[way] = call
            except Exception as error:
                errors[way] = _words(error)
            if way in errors:
                torch.cuda.empty_cache()  # out here: the error would keep the tensors
        seconds: dict[str, list[float]] = {}
        try:
            seconds = protocol.interleaved(calls, rounds, size.at)
        except Exception as error:
            errors |= dict.fromkeys(calls, f"in the timed rounds: {_words(error)}")
        baseline = BASELINE if BASELINE in seconds else next(iter(seconds), BASELINE)
        for way in ways:
            row: dict[str, Any] = {**about, "pass": what, "implementation": way, "baseline": baseline}
            if way in errors:
                yield {**row, "error": errors[way], **known}
                continue
            row |= {"first_call_s": first[way]} | protocol.times(seconds, way, baseline)
            yield {**row, **_reached(operation, number, row["median_s"], size, copy), **known}


def forward(function: Function, inputs: list[Tensor]) -> protocol.Call:
    """Return a call that gives the outputs alone."""

    def call() -> tuple[Tensor, ...]:
        with torch.no_grad():
            found = function(*inputs)
        return (found,) if isinstance(found, Tensor) else tuple(found)

    return call


def both(function: Function, inputs: list[Tensor]) -> protocol.Call:
    """Return a call that gives outputs and gradients of the inputs, for upstream gradients that are fixed."""
    shapes = forward(function, inputs)()
    upstream = [_normal_like(o) for o in shapes]

    def call() -> tuple[Tensor | None, ...]:
        found = function(*inputs)
        outputs = (found,) if isinstance(found, Tensor) else tuple(found)
        gradients = torch.autograd.grad(outputs, inputs, upstream, allow_unused=True)
        return *(o.detach() for o in outputs), *gradients

    return call


def _normal_like(output: Tensor) -> Tensor:
    generator = torch.Generator(output.device).manual_seed(9)
    return torch.randn(output.shape, generator=generator, device=output.device).to(output.dtype)


PASSES = {"forward": forward, "forward and backward": both}


def wrong(function: Function, few: Operation, size: Size) -> str | None:
    """Return in words why an implementation may not be timed, None where it may."""
    exact_inputs = [t.detach().float().requires_grad_() for t in few.inputs]
    expected = both(few.functions["reference"], exact_inputs)()
    try:
        offs = _offs(both(function, few.inputs)(), expected)
    except Exception as error:
        return _words(error)
    if None in offs:
        return "an input gets no gradient"
    allowed = TOLERANCE[size.dtype]
    if size.dtype != torch.float32:
        own = _offs(both(few.functions["reference"], few.inputs)(), expected)
        allowed = max([allowed, *(MARGIN * off for off in own if off is not None)])
    bad = [off for off in offs if off is not None and not off <= allowed]  # nan is bad, too
    return f"{bad[0]:.1e} off the reference in float32" if bad else None


def _offs(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> list[float | None]:
    """Return the relative errors in norm of what is expected, None where nothing was found."""
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if b is not None]  # None: an input that is not used
    return [None if a is None else ((a.float() - b).norm() / b.norm().clamp_min(1e-12)).item() for a, b in pairs]


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _reached(operation: Operation, number: int, seconds: float, size: Size, copy: float | None) -> dict[str, Any]:
    """Return bytes or FLOPs per second, where the operation has a least."""
    if operation.flops:
        flops = operation.flops * (3 if number else 1)
        return {"flops": flops, "flops_per_s": flops / seconds}
    if operation.least is None:
        return {}
    least = operation.least[number] * size.dtype.itemsize
    rate = least / seconds
    return {"least_bytes": least, "bytes_per_s": rate, "share_of_copy": rate / copy if copy else None}

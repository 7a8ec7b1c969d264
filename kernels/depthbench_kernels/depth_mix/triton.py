"""Depth mixing as Triton kernels: one site over a list of sources, read once each way; `Workspace` is two-phase.

Forward takes the softmax while it reads: with the largest score so far, the sums are scaled down when a larger one
comes. Saved: h in float32, the logsumexp of the scores and the inverse RMS of h. Backward recomputes scores; formulas
as in `eager.py`. D is formed from h in float32, never from its closed form.

The number of sources is an argument at run time: a kernel gets a table of their addresses.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from depthbench_kernels._triton import block, check, launch, programs, rounded, warps
from depthbench_kernels.depth_mix._two_phase import Workspace

__all__ = ["Workspace", "depth_mix"]


def depth_mix(sources: Sequence[Tensor], weight: Tensor, gain: Tensor, *, eps: float) -> Tensor:
    """Return the normalised mixture of one site."""
    return _depth_mix(weight, gain, [v.contiguous() for v in sources], eps)[0]


@triton.jit(do_not_specialize=("n_sources",))
def _forward_kernel(SOURCES, W, GAIN, Y, H, LSE, RSTD, n_sources, d, eps, BLOCK: tl.constexpr):
    """Mix the sources of one token, then norm; SOURCES: addresses of (tokens, d)."""
    t = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, BLOCK)
    m = o < d
    w = tl.load(W + o, mask=m, other=0.0).to(tl.float32)
    h = tl.zeros((BLOCK,), tl.float32)
    top = -float("inf")
    total = 0.0
    for i in range(n_sources):
        source = tl.multiple_of(tl.load(SOURCES + i).to(Y.dtype), 16)
        v = tl.load(source + t * d + o, mask=m, other=0.0).to(tl.float32)
        s = tl.sum(w * v) * tl.rsqrt(tl.sum(v * v) / d + eps)
        new_top = tl.maximum(top, s)
        shrink = tl.exp(top - new_top)
        p = tl.exp(s - new_top)
        h = h * shrink + p * v
        total = total * shrink + p
        top = new_top
    h /= total
    rstd = tl.rsqrt(tl.sum(h * h) / d + eps)
    y = h * rstd * tl.load(GAIN + o, mask=m, other=0.0).to(tl.float32)
    tl.store(LSE + t, top + tl.log(total))
    tl.store(RSTD + t, rstd)
    tl.store(H + t * d + o, h, mask=m)
    tl.store(Y + t * d + o, rounded(y, Y.dtype.element_ty), mask=m)


@triton.jit(do_not_specialize=("n_sources", "tokens"))
def _backward_kernel(
    SOURCES, GRADIENTS, DY, W, GAIN, H, LSE, RSTD, DW, DGAIN, n_sources, tokens, d, eps, BLOCK: tl.constexpr
):
    """Compute the gradients of all sources for the tokens p, p + programs, ... and the program's part of the others."""
    p = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    m = o < d
    w = tl.load(W + o, mask=m, other=0.0).to(tl.float32)
    gain = tl.load(GAIN + o, mask=m, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), tl.float32)
    dgain = tl.zeros((BLOCK,), tl.float32)
    for t in range(p.to(tl.int64), tokens, tl.num_programs(0)):
        at = t * d + o
        h = tl.load(H + at, mask=m, other=0.0)
        dy = tl.load(DY + at, mask=m, other=0.0).to(tl.float32)
        rstd = tl.load(RSTD + t)
        unit = h * rstd
        dgain += dy * unit
        dh = rstd * (dy * gain - unit * (tl.sum(dy * gain * unit) / d))
        D = tl.sum(dh * h)
        lse = tl.load(LSE + t)
        for i in range(n_sources):
            source = tl.multiple_of(tl.load(SOURCES + i).to(DY.dtype), 16)
            v = tl.load(source + at, mask=m, other=0.0).to(tl.float32)
            rho = tl.rsqrt(tl.sum(v * v) / d + eps)
            s = tl.sum(w * v) * rho
            weight = tl.exp(s - lse)
            ds = weight * (tl.sum(dh * v) - D)
            dw += ds * rho * v
            dv = weight * dh + rho * ds * (w - v * (rho * s / d))
            gradient = tl.multiple_of(tl.load(GRADIENTS + i).to(DY.dtype), 16)
            tl.store(gradient + at, rounded(dv, DY.dtype.element_ty), mask=m)
    tl.store(DW + p * d + o, dw, mask=m)
    tl.store(DGAIN + p * d + o, dgain, mask=m)


def _addresses(tensors: Sequence[Tensor]) -> Tensor:
    """Return the addresses of the tensors as a tensor on their device."""
    assert all(t.data_ptr() % 16 == 0 for t in tensors)
    table = torch.tensor([t.data_ptr() for t in tensors])
    # from pinned memory, or the copy would wait for all that the device has to do
    return table.pin_memory().to(tensors[0].device, non_blocking=True) if tensors[0].is_cuda else table


def _outputs(v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y, h, lse and rstd, not filled."""
    scalars = v.new_empty(v.shape[:-1], dtype=torch.float32)
    return torch.empty_like(v), torch.empty_like(v, dtype=torch.float32), scalars, torch.empty_like(scalars)


@torch.library.custom_op("depthbench::depth_mix", mutates_args=())
def _depth_mix(
    weight: Tensor, gain: Tensor, sources: list[Tensor], eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y, h, lse and rstd for contiguous sources."""
    check("depth_mix", weight, gain, *sources)
    first, d = sources[0], sources[0].shape[-1]
    assert all((v.shape, v.dtype) == (first.shape, first.dtype) for v in sources), [v.shape for v in sources]
    assert weight.shape == gain.shape == (d,), (weight.shape, gain.shape)
    sources = [v if v.data_ptr() % 16 == 0 else v.clone() for v in sources]
    outputs = _outputs(first)
    launch(
        _forward_kernel, (first.numel() // d,),
        _addresses(sources), weight.contiguous(), gain.contiguous(), *outputs, len(sources), d, eps,
        BLOCK=block(d), num_warps=warps(block(d)),
    )  # fmt: skip
    return outputs


@torch.library.custom_op("depthbench::depth_mix_backward", mutates_args=())
def _depth_mix_backward(
    dy: Tensor, weight: Tensor, gain: Tensor, statistics: list[Tensor], sources: list[Tensor], eps: float
) -> list[Tensor]:
    """Return the gradients of weight and gain in float32, a row for each program, and those of the sources."""
    d = dy.shape[-1]
    sources = [v if v.data_ptr() % 16 == 0 else v.clone() for v in sources]
    dw, dgain, *dsources = gradients = _gradients(sources)
    launch(
        _backward_kernel, (len(dw),),
        _addresses(sources), _addresses(dsources), dy.contiguous(), weight.contiguous(), gain.contiguous(),
        *statistics, dw, dgain, len(sources), dy.numel() // d, d, eps,
        BLOCK=block(d), num_warps=warps(block(d)),
    )  # fmt: skip
    return gradients


def _gradients(sources: Sequence[Tensor]) -> list[Tensor]:
    """Return dw, dgain and the gradients of the sources, not filled."""
    first, d = sources[0], sources[0].shape[-1]
    dw = first.new_empty(programs(first.numel() // d, first.device), d, dtype=torch.float32)
    return [dw, torch.empty_like(dw), *(torch.empty_like(v) for v in sources)]


@_depth_mix.register_fake
def _(weight: Any, gain: Any, sources: list[Tensor], eps: float) -> Any:
    return _outputs(sources[0])


@_depth_mix_backward.register_fake
def _(dy: Any, weight: Any, gain: Any, statistics: Any, sources: list[Tensor], eps: float) -> Any:
    return _gradients(sources)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    weight, gain, sources, ctx.eps = inputs
    ctx.set_materialize_grads(False)  # zeros as large as h, for outputs that nobody differentiates
    ctx.save_for_backward(weight, gain, *output[1:], *sources)


def _backward(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Any, ...]:
    weight, gain, h, lse, rstd, *sources = ctx.saved_tensors
    if dy is None:
        return None, None, [None] * len(sources), None
    dw, dgain, *dsources = _depth_mix_backward(dy, weight, gain, [h, lse, rstd], sources, ctx.eps)
    return dw.sum(0).to(weight.dtype), dgain.sum(0).to(gain.dtype), dsources, None


_depth_mix.register_autograd(_backward, setup_context=_save)

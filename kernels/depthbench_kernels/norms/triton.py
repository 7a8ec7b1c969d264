"""Residual addition with norm as Triton kernels: every operand is read once, each way.

Formulas and what is saved are those of `eager.py`: x_new (the input itself for the norm alone), or in modes keel and
post the normalised sum without its gain; f in mode sandwich; the inverse norms. Normalised values are recomputed.
Gradients of gains are summed by each program over its own rows, then over programs, so that their order is fixed.

Shapes: rows are tokens, n of them; a program holds one row of d elements in a block of the next power of two.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from depthbench_kernels._triton import block, check, device, launch, programs, rounded, warps


def add_norm(
    x: Tensor,
    f: Tensor,
    gain: Tensor,
    *,
    eps: float,
    mode: str = "pre",
    alpha: float = 1.0,
    scale: float = 1.0,
    gain2: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (x_new, y)."""
    outer = gain if mode == "post" else gain2
    x_new, y, *_ = _add_norm(x.contiguous(), f.contiguous(), gain, outer, mode, alpha, scale, eps)
    return x_new, x_new if mode == "post" else y


def rms_norm(x: Tensor, gain: Tensor, *, eps: float, scale: float = 1.0) -> Tensor:
    """Return scale * gain * x / sqrt(mean(x^2) + eps)."""
    return _add_norm(x.contiguous(), None, gain, None, "norm", 1.0, scale, eps)[1]


@triton.jit
def _forward_kernel(
    X, F, GAIN, GAIN2, X_NEW, Y, KEPT, RSTD, RSTD2, d, alpha, scale, eps, MODE: tl.constexpr, BLOCK: tl.constexpr
):
    """Compute x_new and y of one row; mode post has GAIN2 for its gain and no y, mode norm has no f."""
    row = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, BLOCK)
    m = o < d
    x = tl.load(X + row * d + o, mask=m, other=0.0).to(tl.float32)
    if MODE != "norm":
        f = tl.load(F + row * d + o, mask=m, other=0.0).to(tl.float32)
        if MODE == "pre":
            x += f
        else:
            gain2 = tl.load(GAIN2 + o, mask=m, other=0.0).to(tl.float32)
            total = f if MODE == "sandwich" else alpha * x + f
            if MODE == "post":
                total = tl.where(m, total - tl.sum(total) / d, 0.0)
            rstd2 = tl.rsqrt(tl.sum(total * total) / d + eps)
            tl.store(RSTD2 + row, rstd2)
            if MODE == "sandwich":
                x += total * rstd2 * gain2
            else:  # rounded to storage first, so that backward sees what was used
                kept = rounded(total * rstd2, KEPT.dtype.element_ty)
                tl.store(KEPT + row * d + o, kept, mask=m)
                x = kept.to(tl.float32) * gain2
        stored = rounded(x, X_NEW.dtype.element_ty)
        tl.store(X_NEW + row * d + o, stored, mask=m)
        x = stored.to(tl.float32)
    if MODE != "post":
        rstd = tl.rsqrt(tl.sum(x * x) / d + eps)
        tl.store(RSTD + row, rstd)
        y = x * rstd * (tl.load(GAIN + o, mask=m, other=0.0).to(tl.float32) * scale)
        tl.store(Y + row * d + o, rounded(y, Y.dtype.element_ty), mask=m)


@device
def _norm_gradient(du, unit, rstd, d):
    """Return the gradient of x for du, that of unit = x / rms(x)."""
    return rstd * (du - unit * (tl.sum(du * unit) / d))


@triton.jit(do_not_specialize=("n",))
def _backward_kernel(
    DX_NEW, DY, X_NEW, KEPT, RSTD, RSTD2, GAIN, GAIN2, DX, DF, DGAIN, DGAIN2,
    n, d, alpha, scale, MODE: tl.constexpr, HAS_DX: tl.constexpr, HAS_DY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of x and f for the rows p, p + programs, ... of program p, and its part of the gains'."""
    p = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    m = o < d
    gain = tl.load(GAIN + o, mask=m, other=0.0).to(tl.float32) * scale
    gain2 = tl.load(GAIN2 + o, mask=m, other=0.0).to(tl.float32)
    dgain = tl.zeros((BLOCK,), tl.float32)
    dgain2 = tl.zeros((BLOCK,), tl.float32)
    for row in range(p.to(tl.int64), n, tl.num_programs(0)):
        at = row * d + o
        dx = tl.zeros((BLOCK,), tl.float32)
        if HAS_DX:
            dx = tl.load(DX_NEW + at, mask=m, other=0.0).to(tl.float32)
        if MODE == "keel" or MODE == "post":
            kept = tl.load(KEPT + at, mask=m, other=0.0).to(tl.float32)
        if HAS_DY:
            if MODE == "keel":
                x_new = rounded(kept * gain2, KEPT.dtype.element_ty).to(tl.float32)
            else:
                x_new = tl.load(X_NEW + at, mask=m, other=0.0).to(tl.float32)
            dy = tl.load(DY + at, mask=m, other=0.0).to(tl.float32)
            rstd = tl.load(RSTD + row)
            dgain += dy * x_new * (rstd * scale)
            dx += _norm_gradient(dy * gain, x_new * rstd, rstd, d)
        if MODE == "sandwich":
            rstd2 = tl.load(RSTD2 + row)
            unit = tl.load(KEPT + at, mask=m, other=0.0).to(tl.float32) * rstd2
            dgain2 += dx * unit
            df = _norm_gradient(dx * gain2, unit, rstd2, d)
            tl.store(DF + at, rounded(df, DF.dtype.element_ty), mask=m)
        if MODE == "keel" or MODE == "post":
            dgain2 += dx * kept
            df = _norm_gradient(dx * gain2, kept, tl.load(RSTD2 + row), d)
            if MODE == "post":
                df -= tl.sum(df) / d
            tl.store(DF + at, rounded(df, DF.dtype.element_ty), mask=m)
            dx = alpha * df
        tl.store(DX + at, rounded(dx, DX.dtype.element_ty), mask=m)
    tl.store(DGAIN + p * d + o, dgain, mask=m)
    tl.store(DGAIN2 + p * d + o, dgain2, mask=m)


def _outputs(x: Tensor, mode: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return x_new, y, kept, rstd, rstd2, not filled; those that the mode has not are empty."""

    def rows(there: bool) -> Tensor:
        return torch.empty_like(x) if there else x.new_empty(0)

    def scalars(there: bool) -> Tensor:
        return x.new_empty(x.shape[:-1] if there else 0, dtype=torch.float32)

    return (
        rows(mode != "norm"),
        rows(mode != "post"),
        rows(mode in ("keel", "post")),
        scalars(mode != "post"),
        scalars(mode in ("sandwich", "keel", "post")),
    )


def _gradients(like: Tensor, f_dtype: torch.dtype, mode: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return dx, df, dgain, dgain2, not filled."""
    d = like.shape[-1]
    dgain = like.new_empty(programs(like.numel() // d, like.device), d, dtype=torch.float32)
    df = torch.empty_like(like, dtype=f_dtype) if mode in ("sandwich", "keel", "post") else like.new_empty(0)
    return torch.empty_like(like), df, dgain, torch.empty_like(dgain)


@torch.library.custom_op("depthbench::add_norm", mutates_args=())
def _add_norm(
    x: Tensor, f: Tensor | None, gain: Tensor, gain2: Tensor | None, mode: str, alpha: float, scale: float, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return x_new, y, kept, rstd, rstd2 for contiguous x and f."""
    d = x.shape[-1]
    f, gain2 = x if f is None else f, gain if gain2 is None else gain2
    check("add_norm", x, f, gain, gain2)
    assert x.shape == f.shape, (x.shape, f.shape)
    assert gain.shape == gain2.shape == (d,), (gain.shape, gain2.shape)
    outputs, BLOCK = _outputs(x, mode), block(d)
    launch(
        _forward_kernel, (x.numel() // d,), x, f, gain.contiguous(), gain2.contiguous(), *outputs,
        d, alpha, scale, eps, MODE=mode, BLOCK=BLOCK, num_warps=warps(BLOCK),
    )  # fmt: skip
    return outputs


@torch.library.custom_op("depthbench::add_norm_backward", mutates_args=())
def _add_norm_backward(
    dx_new: Tensor | None,
    dy: Tensor | None,
    saved: list[Tensor],
    gain2: Tensor | None,
    f_dtype: torch.dtype,
    mode: str,
    alpha: float,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return dx, df (empty where it is dx), and dgain, dgain2 in float32, a row for each program."""
    x_new, kept, rstd, rstd2, gain = saved
    like = kept if mode in ("keel", "post") else x_new
    d = like.shape[-1]
    n = like.numel() // d
    dx, df, dgain, dgain2 = gradients = _gradients(like, f_dtype, mode)
    BLOCK = block(d)
    launch(
        _backward_kernel, (len(dgain),),
        *(like if g is None else g.contiguous() for g in (dx_new, dy)), x_new, kept, rstd, rstd2,
        gain.contiguous(), gain if gain2 is None else gain2.contiguous(), dx, df, dgain, dgain2,
        n, d, alpha, scale, MODE=mode, HAS_DX=dx_new is not None, HAS_DY=dy is not None,
        BLOCK=BLOCK, num_warps=warps(BLOCK),
    )  # fmt: skip
    return gradients


@_add_norm.register_fake
def _(x: Tensor, f: Any, gain: Any, gain2: Any, mode: str, alpha: float, scale: float, eps: float) -> Any:
    return _outputs(x, mode)


@_add_norm_backward.register_fake
def _(dx_new: Any, dy: Any, saved: Any, gain2: Any, f_dtype: Any, mode: str, alpha: float, scale: float) -> Any:
    return _gradients(saved[1] if mode in ("keel", "post") else saved[0], f_dtype, mode)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, f, gain, gain2, ctx.mode, ctx.alpha, ctx.scale, _ = inputs
    x_new, _, kept, rstd, rstd2 = output
    ctx.set_materialize_grads(False)
    ctx.dtypes = x.dtype, x.dtype if f is None else f.dtype
    x_new = {"norm": x, "keel": kept.new_empty(0), "post": kept.new_empty(0)}.get(ctx.mode, x_new)
    ctx.save_for_backward(x_new, f if ctx.mode == "sandwich" else kept, rstd, rstd2, gain, gain2)


def _backward(ctx: Any, dx_new: Tensor | None, dy: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if dx_new is None and dy is None:
        return (None,) * 8
    *saved, gain2 = ctx.saved_tensors
    dx, df, dgain, dgain2 = _add_norm_backward(dx_new, dy, saved, gain2, ctx.dtypes[1], ctx.mode, ctx.alpha, ctx.scale)
    if ctx.mode == "pre":
        df = dx.to(ctx.dtypes[1])
    gains = dgain.sum(0).to(saved[4].dtype), None if gain2 is None else dgain2.sum(0).to(gain2.dtype)
    if ctx.mode == "post":
        gains = None, gains[1]
    return dx, None if ctx.mode == "norm" else df, *gains, None, None, None, None


_add_norm.register_autograd(_backward, setup_context=_save)

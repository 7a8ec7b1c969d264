"""Residual addition with norm: few passes over the data, closed-form backward.

With r = 1 / sqrt(mean(x^2) + eps) and upstream gradient u of y = gain x r:

    dx = r (gain u) - x r^3 mean(gain u x);    dgain = sum over tokens of r u x

Modes keel and post keep the normalised sum without its gain, n = x r, in place of x_new; for it

    dx = r (gain u - n mean(gain u n));    dgain = sum over tokens of u n

and LayerNorm takes the mean of dx off, as n has none. A gain is never divided by.

`torch.nn.functional.rms_norm` has no fused CPU kernel: its decomposed backward takes several times as long.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from depthbench_kernels._dtypes import arithmetic


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
    if mode == "post":
        x_new = _PostNorm.apply(x, f, gain, alpha, eps)
        return x_new, x_new
    return _AddNorm.apply(x, f, gain, gain2, mode, alpha, scale, eps)


def rms_norm(x: Tensor, gain: Tensor, *, eps: float, scale: float = 1.0) -> Tensor:
    """Return scale * gain * x / sqrt(mean(x^2) + eps)."""
    return _Norm.apply(x, gain, scale, eps)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """Return 1 / sqrt(mean(x^2) + eps) over the last dimension, kept as size 1; no squared copy of x."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def norm_backward(dy: Tensor, x: Tensor, rstd: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """Return (dx, dgain) of y = gain * x * rstd(x); all in the arithmetic dtype."""
    product = dy * x
    dgain = (rstd.reshape(1, -1) @ product.flatten(0, -2)).squeeze(0)
    slope = (product @ gain).unsqueeze(-1) * rstd.pow(3).div_(x.shape[-1])
    return (dy * gain).mul_(rstd).addcmul_(x, slope, value=-1), dgain


def _normalise(x: Tensor, gain: Tensor, eps: float, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the norm of x, unrounded, and the inverse RMS."""
    wide = x.to(arithmetic(x))
    rstd = inverse_rms(wide, eps)
    return (wide * rstd).mul_(gain.to(wide.dtype) * scale), rstd


def _backward(dy: Tensor, x: Tensor, rstd: Tensor, gain: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the gradients of `_normalise`, dx unrounded."""
    wide = rstd.dtype
    with torch.autocast(x.device.type, enabled=False):
        dx, dgain = norm_backward(dy.to(wide), x.to(wide), rstd, gain.to(wide) * scale)
    return dx, dgain.mul_(scale).to(gain.dtype)


def _unit_backward(dy: Tensor, unit: Tensor, rstd: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """Return (dx, dgain) of y = gain * unit with unit = x * rstd(x), dx unrounded."""
    dunit, dgain = _backward(dy, unit, torch.ones_like(rstd), gain)
    return dunit.mul_(rstd), dgain


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, scale: float, eps: float) -> Tensor:
        y, rstd = _normalise(x, gain, eps, scale)
        ctx.save_for_backward(x, rstd, gain)
        ctx.scale = scale
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, rstd, gain = ctx.saved_tensors
        dx, dgain = _backward(dy, x, rstd, gain, ctx.scale)
        return dx.to(x.dtype), dgain, None, None


class _AddNorm(torch.autograd.Function):
    """Modes pre, sandwich and keel; `kept` and rstd2 are what the gradient of the norm with gain2 needs."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        f: Tensor,
        gain: Tensor,
        gain2: Tensor,  # None in mode pre
        mode: str,
        alpha: float,
        scale: float,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        kept = rstd2 = None
        if mode == "pre":
            x_new = (x + f).to(x.dtype)
        elif mode == "sandwich":
            inner, rstd2 = _normalise(f, gain2, eps)
            kept, x_new = f, inner.add_(x).to(x.dtype)
        else:
            kept = torch.add(f.to(arithmetic(x)), x, alpha=alpha)
            rstd2 = inverse_rms(kept, eps)
            x_new = (kept.mul_(rstd2) * gain2).to(x.dtype)
        y, rstd = _normalise(x_new, gain, eps, scale)
        ctx.save_for_backward(None if mode == "keel" else x_new, rstd, gain, kept, rstd2, gain2)
        ctx.mode, ctx.alpha, ctx.scale, ctx.dtypes = mode, alpha, scale, (x.dtype, f.dtype)
        return x_new, y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx_new: Tensor | None, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        x_new, rstd, gain, kept, rstd2, gain2 = ctx.saved_tensors
        x_dtype, f_dtype = ctx.dtypes
        dx, dgain, dgain2 = dx_new, None, None
        if dy is not None:
            if x_new is None:
                x_new = (kept * gain2).to(x_dtype)
            dx, dgain = _backward(dy, x_new, rstd, gain, ctx.scale)
            if dx_new is not None:
                dx = dx.add_(dx_new)
        if dx is None:
            return (None,) * 8
        df = dx
        if ctx.mode == "sandwich":
            df, dgain2 = _backward(dx, kept, rstd2, gain2)
        elif ctx.mode == "keel":
            df, dgain2 = _unit_backward(dx, kept, rstd2, gain2)
            dx = df * ctx.alpha
        return dx.to(x_dtype), df.to(f_dtype), dgain, dgain2, None, None, None, None


class _PostNorm(torch.autograd.Function):
    """LayerNorm of alpha x + f."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Tensor, gain: Tensor, alpha: float, eps: float) -> Tensor:
        total = torch.add(f.to(arithmetic(x)), x, alpha=alpha)
        total -= total.mean(-1, keepdim=True)
        rstd = inverse_rms(total, eps)
        unit = total.mul_(rstd).to(x.dtype)  # rounded to storage first, so that backward sees what was used
        ctx.save_for_backward(unit, rstd, gain)
        ctx.alpha, ctx.f_dtype = alpha, f.dtype
        return (unit * gain).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        unit, rstd, gain = ctx.saved_tensors
        total, dgain = _unit_backward(dy, unit, rstd, gain)
        total -= total.mean(-1, keepdim=True)
        return (total * ctx.alpha).to(unit.dtype), total.to(ctx.f_dtype), dgain, None, None

"""Residual addition with RMSNorm: few passes over the data, closed-form backward.

With r = 1 / sqrt(mean(x^2) + eps) and upstream gradient u of y = gain x r:

    dx = r (gain u) - x r^3 mean(gain u x);    dgain = sum over tokens of r u x

`torch.nn.functional.rms_norm` has no fused CPU kernel: its decomposed backward takes several times as long.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from depthbench_kernels._dtypes import arithmetic


def add_norm(x: Tensor, f: Tensor, gain: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Return (x + f, RMSNorm of it)."""
    return _AddNorm.apply(x, f, gain, eps)


def rms_norm(x: Tensor, gain: Tensor, *, eps: float) -> Tensor:
    """Return gain * x / sqrt(mean(x^2) + eps)."""
    return _Norm.apply(x, gain, eps)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """Return 1 / sqrt(mean(x^2) + eps) over the last dimension, kept as size 1; no squared copy of x."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def norm_backward(dy: Tensor, x: Tensor, rstd: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """Return (dx, dgain) of y = gain * x * rstd(x); all in the arithmetic dtype."""
    product = dy * x
    dgain = (rstd.reshape(1, -1) @ product.flatten(0, -2)).squeeze(0)
    slope = (product @ gain).unsqueeze(-1) * rstd.pow(3).div_(x.shape[-1])
    return (dy * gain).mul_(rstd).addcmul_(x, slope, value=-1), dgain


def _normalise(x: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    wide = x.to(arithmetic(x))
    rstd = inverse_rms(wide, eps)
    return (wide * rstd).mul_(gain).to(x.dtype), rstd


def _backward(dy: Tensor, x: Tensor, rstd: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast(x.device.type, enabled=False):
        wide = rstd.dtype
        dx, dgain = norm_backward(dy.to(wide), x.to(wide), rstd, gain.to(wide))
    return dx, dgain.to(gain.dtype)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        y, rstd = _normalise(x, gain, eps)
        ctx.save_for_backward(x, rstd, gain)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, rstd, gain = ctx.saved_tensors
        dx, dgain = _backward(dy, x, rstd, gain)
        return dx.to(x.dtype), dgain, None


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        x_new = (x + f).to(x.dtype)
        y, rstd = _normalise(x_new, gain, eps)
        ctx.save_for_backward(x_new, rstd, gain)
        ctx.f_dtype = f.dtype
        return x_new, y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx_new: Tensor | None, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        x, rstd, gain = ctx.saved_tensors
        dx, dgain = dx_new, None
        if dy is not None:
            dx, dgain = _backward(dy, x, rstd, gain)
            if dx_new is not None:
                dx = dx.add_(dx_new)
        if dx is None:
            return None, None, None, None
        return dx.to(x.dtype), dx.to(ctx.f_dtype), dgain, None

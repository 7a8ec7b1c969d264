"""Definition of the residual addition with RMSNorm, in plain PyTorch."""

import torch
from torch import Tensor

from depthbench_kernels._dtypes import arithmetic


def add_norm(x: Tensor, f: Tensor, gain: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Return (x + f, RMSNorm of it)."""
    x_new = (x + f).to(x.dtype)
    return x_new, rms_norm(x_new, gain, eps=eps)


def rms_norm(x: Tensor, gain: Tensor, *, eps: float) -> Tensor:
    """Return gain * x / sqrt(mean(x^2) + eps)."""
    wide = x.to(arithmetic(x))
    return (gain * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps))).to(x.dtype)

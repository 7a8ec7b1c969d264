"""Definition of the residual addition with norm, in plain PyTorch."""

import torch
from torch import Tensor

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
        x_new = add(x, f, gain, eps=eps, mode=mode, alpha=alpha)
        return x_new, x_new
    x_new = add(x, f, gain2, eps=eps, mode=mode, alpha=alpha)
    return x_new, rms_norm(x_new, gain, eps=eps, scale=scale)


def add(
    x: Tensor, f: Tensor, gain: Tensor | None = None, *, eps: float, mode: str = "pre", alpha: float = 1.0
) -> Tensor:
    """Return x_new alone; `gain` is that of the norm inside or around the sum."""
    if mode == "pre":
        return (x + f).to(x.dtype)
    assert gain is not None, mode
    wide = arithmetic(x)
    if mode == "sandwich":
        return (x + rms_norm(f.to(wide), gain, eps=eps)).to(x.dtype)
    norm = {"keel": rms_norm, "post": layer_norm}[mode]
    return norm(alpha * x.to(wide) + f, gain, eps=eps).to(x.dtype)


def rms_norm(x: Tensor, gain: Tensor, *, eps: float, scale: float = 1.0) -> Tensor:
    """Return scale * gain * x / sqrt(mean(x^2) + eps)."""
    wide = x.to(arithmetic(x))
    return (scale * (gain * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)))).to(x.dtype)


def layer_norm(x: Tensor, gain: Tensor, *, eps: float) -> Tensor:
    """Return gain * (x - mean x) / sqrt(mean((x - mean x)^2) + eps)."""
    return rms_norm(x - x.mean(-1, keepdim=True), gain, eps=eps)

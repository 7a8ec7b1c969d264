"""Residual addition and RMSNorm in one operation.

    x_new = x + f;    y = gain * x_new / sqrt(mean(x_new^2) + eps)

Statistics and the product with the gain are float32 (float64 for float64 input); y and x_new keep the dtype
of x.
"""

from torch import Tensor

from depthbench_kernels._select import implementation
from depthbench_kernels.norms import eager, reference


def add_norm(x: Tensor, f: Tensor, gain: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Return (x + f, RMSNorm of it); x, f: (..., d), gain: (d,)."""
    return implementation(reference, eager).add_norm(x, f, gain, eps=eps)


def rms_norm(x: Tensor, gain: Tensor, *, eps: float) -> Tensor:
    """Return the RMSNorm of x: (..., d), gain: (d,)."""
    return implementation(reference, eager).rms_norm(x, gain, eps=eps)

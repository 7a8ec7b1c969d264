"""Residual addition and norm in one operation, and the norm alone.

With rms_g(x) = g x / sqrt(mean(x^2) + eps), and ln_g(x) = g (x - mean x) / sqrt(mean((x - mean x)^2) + eps):

    mode        x_new                         y
    pre         x + f                         scale rms_gain(x_new)
    sandwich    x + rms_gain2(f)              scale rms_gain(x_new)
    keel        rms_gain2(alpha x + f)        scale rms_gain(x_new)
    post        ln_gain(alpha x + f)          x_new itself

Statistics, products with gains and the sums with alpha are float32 (float64 for float64 input); y and x_new
keep the dtype of x. Sources: arXiv 2002.04745 (pre), 2502.02732 (sandwich), 2203.00555 (post); keel as in the
DepthBench paper (arXiv 2609.32534).
"""

from torch import Tensor

from depthbench_kernels._select import implementation
from depthbench_kernels.norms import eager, reference
from depthbench_kernels.norms.reference import add

__all__ = ["add", "add_norm", "rms_norm"]

MODES = ("pre", "sandwich", "keel", "post")


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
    """Return (x_new, y); x, f: (..., d), gain, gain2: (d,)."""
    assert mode in MODES, mode
    operation = implementation(reference, eager).add_norm
    return operation(x, f, gain, eps=eps, mode=mode, alpha=alpha, scale=scale, gain2=gain2)


def rms_norm(x: Tensor, gain: Tensor, *, eps: float, scale: float = 1.0) -> Tensor:
    """Return scale times the RMSNorm of x: (..., d), gain: (d,)."""
    return implementation(reference, eager).rms_norm(x, gain, eps=eps, scale=scale)

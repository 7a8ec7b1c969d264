"""LM head and cross-entropy with the fused operation of liger-kernel 0.8.5.

Not run on a device so far: on a machine with CUDA, `pytest -m gpu tests/kernels/test_liger.py` compares it with the
reference. The gradient of the weight is summed over chunks in float32. Liger forms no gradient at all where x needs
none, and computes in float32 what is float64; both are refused. Its backward scales what it keeps: one pass only.
"""

import torch
from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy
from torch import Tensor

from depthbench_kernels._select import BackendError


def linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, ignore_index: int = -100) -> Tensor:
    """Return the summed negative log-likelihood."""
    if torch.float64 in (x.dtype, weight.dtype):
        raise BackendError("linear_cross_entropy: kernels=liger does not take float64; choose kernels=reference")
    if torch.is_grad_enabled() and weight.requires_grad and not x.requires_grad:
        raise BackendError(
            "linear_cross_entropy: kernels=liger forms no gradient of the weight where x needs none; "
            "choose kernels=eager"
        )
    return liger_fused_linear_cross_entropy(
        x, weight, target, ignore_index=ignore_index, reduction="sum", accum_dtype=torch.float32
    )

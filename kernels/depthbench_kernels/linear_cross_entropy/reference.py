"""Definition of the LM head with cross-entropy, in plain PyTorch."""

from torch import Tensor
from torch.nn import functional as F

from depthbench_kernels._dtypes import arithmetic


def linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, ignore_index: int = -100) -> Tensor:
    """Return the summed negative log-likelihood."""
    logits = F.linear(x, weight)
    return F.cross_entropy(logits.to(arithmetic(logits)), target, ignore_index=ignore_index, reduction="sum")

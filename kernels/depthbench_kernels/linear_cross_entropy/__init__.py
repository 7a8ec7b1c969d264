"""LM head and cross-entropy in one operation that never holds the logits of all tokens.

    logits = x weight^T
    loss   = sum over tokens with target != ignore_index of logsumexp(logits) - logits[target]

The log-softmax is float32 (float64 for float64 input), the matrix products run in the dtype that autocast or
the operands ask for.
"""

from torch import Tensor

from depthbench_kernels._select import implementation
from depthbench_kernels.linear_cross_entropy import eager, reference


def linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, ignore_index: int = -100) -> Tensor:
    """Return the summed negative log-likelihood in nats, a float32 scalar.

    Shapes: x (N, d), weight (V, d), target (N,) int64.
    """
    return implementation(reference, eager).linear_cross_entropy(x, weight, target, ignore_index)

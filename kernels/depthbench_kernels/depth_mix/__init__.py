"""Softmax mixture over the sources of a depth-wise attention residual, and its normalisation.

Sources v_0 .. v_{S-1}: (..., d). A mixing site with weight w = query * key gain (d,) computes

    s_i = w . v_i / sqrt(mean(v_i^2) + eps);    p = softmax(s)
    h   = sum_i p_i v_i;                        y = gain h / sqrt(mean(h^2) + eps)

Scores, softmax and statistics are float32 (float64 for float64 sources); h and y keep the dtype of the sources.
Source: attention residuals as in the DepthBench paper (arXiv 2609.32534), Appendix A.
"""

from collections.abc import Sequence

from torch import Tensor

from depthbench_kernels._select import implementation
from depthbench_kernels.depth_mix import eager, reference
from depthbench_kernels.depth_mix.reference import depth_weights

__all__ = ["depth_mix", "depth_weights", "workspace"]


def depth_mix(sources: Sequence[Tensor], weight: Tensor, gain: Tensor | None = None, *, eps: float) -> Tensor:
    """Return y of one site, or its mixture h where no gain is given, (..., d); for short lists and analyses."""
    if gain is None:
        return reference.depth_mix(sources, weight, eps=eps)
    return implementation(reference, eager).depth_mix(sources, weight, gain, eps=eps)


def workspace(embedding: Tensor, weights: Tensor, *, eps: float) -> "eager.Workspace | reference.Workspace":
    """Return the sources of one forward pass: v_0 = embedding (..., d), and weights (Q, d) of its Q sites.

    `consume(newest, gain)` appends one source and returns y of the next site over all sources; it is called Q
    times, each time with the output of the sub-layer that read the y before. One backward pass is allowed.
    """
    return implementation(reference, eager).Workspace(embedding, weights, eps=eps)

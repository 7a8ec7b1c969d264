"""Causal attention that also reads key/value slots of its own token, in one softmax (MoDA).

Queries q: (B, T, H, e), keys k and values v: (B, T, G, e), slots j: depth_keys K_j and depth_values V_j, each
(B, T, G, e) and read at their own position only. Query head h uses key/value head floor(h / (H / G)):

    logits  q_t . k_s / sqrt(e) for s <= t,  and q_t . K_j,t / sqrt(e) for all j
    p       = softmax over both sets;    out_t = sum_s p_s v_s + sum_j p_j V_j,t

Softmax and the sums over slots are float32 (float64 for float64 input); out keeps the dtype of q. Source: mixture
of depths attention as in the DepthBench paper (arXiv 2609.32534).
"""

from collections.abc import Sequence

from torch import Tensor

from depthbench_kernels._select import implementation
from depthbench_kernels.depth_attention import eager, reference


def depth_attention(
    q: Tensor, k: Tensor, v: Tensor, depth_keys: Sequence[Tensor], depth_values: Sequence[Tensor]
) -> Tensor:
    """Return the attention output, (B, T, H, e)."""
    return implementation(reference, eager).depth_attention(q, k, v, depth_keys, depth_values)

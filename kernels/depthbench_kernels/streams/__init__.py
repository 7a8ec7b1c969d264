"""The sub-layer boundary of Hyper-Connections (arXiv 2409.19606): write, routing, read, norm in one operation.

Streams H: (..., m, d). With the pending branch output f and its write weights w, and the next connector's
parameters:

    H_s   = carried_s + w_s f
    n_s   = H_s / sqrt(mean(H_s^2) + routing_eps)
    C     = static_alpha + dynamic_alpha_scale * tanh(n @ dynamic_alpha_proj)
    r     = C[..., 0];    A = C[..., 1:]
    w'    = static_beta + dynamic_beta_scale * tanh(n @ dynamic_beta_proj)
    y     = RMSNorm_gain(sum_s r_s H_s);    carried'_t = sum_s A[s, t] H_s

Routing is float32 (float64 for float64 streams); streams and y keep the dtype of the streams.
"""

from torch import Tensor

from depthbench_kernels._select import implementation
from depthbench_kernels.streams import eager, reference
from depthbench_kernels.streams.reference import HCRouting, hc_routing, write_streams

__all__ = ["HCRouting", "hc_boundary", "hc_routing", "write_streams"]


def hc_boundary(
    carried: Tensor,
    pending: tuple[Tensor, Tensor] | None,
    routing: HCRouting,
    gain: Tensor,
    *,
    routing_eps: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (carried', w', y): streams (..., m, d), write weights (..., m), branch input (..., d).

    `pending` is (f, w) of the sub-layer before, shapes (..., d) and (..., m), or None at the first connector.
    """
    boundary = implementation(reference, eager).hc_boundary
    return boundary(carried, pending, routing, gain, routing_eps=routing_eps, eps=eps)

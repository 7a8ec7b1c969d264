"""The sub-layer boundary of designs with m streams: write, routing, read, norm in one operation.

Streams H: (..., m, d). With the pending branch output f and its write weights w, and read weights r, map A and
write weights w' that the next connector makes of H:

    H_s = carried_s + w_s f;    y = RMSNorm_gain(sum_s r_s H_s);    carried'_t = sum_s A[s, t] H_s

Hyper-Connections, HC (arXiv 2409.19606):

    n_s   = H_s / sqrt(mean(H_s^2) + routing_eps)
    C     = static_alpha + dynamic_alpha_scale * tanh(n @ dynamic_alpha_proj)
    r     = C[..., 0];    A = C[..., 1:]
    w'    = static_beta + dynamic_beta_scale * tanh(n @ dynamic_beta_proj)

Manifold-constrained Hyper-Connections, mHC (arXiv 2512.24880), z in the order read m, write m, map m * m:

    z     = vec(H) / sqrt(mean(vec(H)^2) + routing_eps) @ phi,  index of vec(H): stream * d + channel
    r     = sigmoid(alpha_pre z + bias);    w' = 2 sigmoid(alpha_post z + bias)
    A     = R^T,  R[out, in] = Sinkhorn(alpha_res z + bias): softmax over `in` + sinkhorn_eps, then `iters` times the
            columns and, in between, the rows divided by their sums + sinkhorn_eps

Routing is float32 (float64 for float64 streams); streams and y keep the dtype of the streams.
"""

from torch import Tensor

from depthbench_kernels._select import implementation
from depthbench_kernels.streams import eager, reference
from depthbench_kernels.streams.reference import HCRouting, MHCRouting, hc_routing, mhc_routing, write_streams

__all__ = ["HCRouting", "MHCRouting", "hc_boundary", "hc_routing", "mhc_boundary", "mhc_routing", "write_streams"]


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


def mhc_boundary(
    carried: Tensor,
    pending: tuple[Tensor, Tensor] | None,
    routing: MHCRouting,
    gain: Tensor,
    *,
    routing_eps: float,
    eps: float,
    iters: int,
    sinkhorn_eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `hc_boundary` does, with the routing of mHC."""
    boundary = implementation(reference, eager).mhc_boundary
    sinkhorn = {"iters": iters, "sinkhorn_eps": sinkhorn_eps}
    return boundary(carried, pending, routing, gain, routing_eps=routing_eps, eps=eps, **sinkhorn)

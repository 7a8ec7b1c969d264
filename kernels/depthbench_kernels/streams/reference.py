"""Definition of the Hyper-Connections boundary, in plain PyTorch."""

from typing import NamedTuple

import torch
from torch import Tensor

from depthbench_kernels._dtypes import arithmetic
from depthbench_kernels.norms.reference import rms_norm


class HCRouting(NamedTuple):
    """Parameters of one connector, m streams of width d."""

    static_alpha: Tensor  # (m, m + 1), column 0 reads, columns 1.. are the map [in, out]
    static_beta: Tensor  # (m,)
    dynamic_alpha_proj: Tensor  # (d, m + 1)
    dynamic_beta_proj: Tensor  # (d,)
    dynamic_alpha_scale: Tensor  # ()
    dynamic_beta_scale: Tensor  # ()


def write_streams(carried: Tensor, pending: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return the streams carried_s + w_s f; pending = (f, w)."""
    if pending is None:
        return carried
    f, w = pending
    return (carried + w.unsqueeze(-1) * f.unsqueeze(-2)).to(carried.dtype)


def hc_routing(streams: Tensor, routing: HCRouting, *, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return read weights (..., m), map (..., m, m) as [in, out] and write weights (..., m)."""
    wide = arithmetic(streams)
    with torch.autocast(streams.device.type, enabled=False):
        p = HCRouting(*(t.to(wide) for t in routing))
        n = streams.to(wide)
        n = n * torch.rsqrt(n.square().mean(-1, keepdim=True) + eps)
        C = p.static_alpha + p.dynamic_alpha_scale * torch.tanh(n @ p.dynamic_alpha_proj)
        w = p.static_beta + p.dynamic_beta_scale * torch.tanh(n @ p.dynamic_beta_proj)
    return C[..., 0], C[..., 1:], w


def hc_boundary(
    carried: Tensor,
    pending: tuple[Tensor, Tensor] | None,
    routing: HCRouting,
    gain: Tensor,
    *,
    routing_eps: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (carried', w', y)."""
    streams = write_streams(carried, pending)
    read, transport, w = hc_routing(streams, routing, eps=routing_eps)
    wide = streams.to(read.dtype)
    u = torch.einsum("...s,...sd->...d", read, wide)
    carried = torch.einsum("...st,...sd->...td", transport, wide)
    return carried.to(streams.dtype), w, rms_norm(u, gain, eps=eps).to(streams.dtype)

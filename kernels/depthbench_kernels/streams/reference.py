"""Definition of the boundaries of HC and mHC, in plain PyTorch."""

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


class MHCRouting(NamedTuple):
    """Parameters of one mHC connector; columns of `phi` and entries of `bias`: read m, write m, map m * m."""

    phi: Tensor  # (m d, m^2 + 2 m)
    bias: Tensor  # (m^2 + 2 m,)
    alpha_pre: Tensor  # ()
    alpha_post: Tensor  # ()
    alpha_res: Tensor  # ()


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
    return _mixed(streams, read, transport, w, gain, eps)


def sinkhorn(logits: Tensor, iters: int, eps: float) -> Tensor:
    """Return the map R[out, in] of logits (..., m, m): columns normalised last."""
    P = logits.softmax(-1) + eps
    P = P / (P.sum(-2, keepdim=True) + eps)
    for _ in range(iters - 1):
        P = P / (P.sum(-1, keepdim=True) + eps)
        P = P / (P.sum(-2, keepdim=True) + eps)
    return P


def mhc_routing(
    streams: Tensor, routing: MHCRouting, *, eps: float, iters: int, sinkhorn_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return read weights (..., m), map (..., m, m) as [in, out] and write weights (..., m)."""
    wide, m = arithmetic(streams), streams.shape[-2]
    with torch.autocast(streams.device.type, enabled=False):
        p = MHCRouting(*(t.to(wide) for t in routing))
        y = streams.to(wide).flatten(-2)
        z = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)) @ p.phi
        (z_read, z_write, z_map), (b_read, b_write, b_map) = (t.split((m, m, m * m), -1) for t in (z, p.bias))
        read = torch.sigmoid(p.alpha_pre * z_read + b_read)
        write = 2 * torch.sigmoid(p.alpha_post * z_write + b_write)
        R = sinkhorn((p.alpha_res * z_map + b_map).unflatten(-1, (m, m)), iters, sinkhorn_eps)
    return read, R.transpose(-1, -2), write


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
    """Return (carried', w', y)."""
    streams = write_streams(carried, pending)
    read, transport, w = mhc_routing(streams, routing, eps=routing_eps, iters=iters, sinkhorn_eps=sinkhorn_eps)
    return _mixed(streams, read, transport, w, gain, eps)


def _mixed(
    streams: Tensor, read: Tensor, transport: Tensor, w: Tensor, gain: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    with torch.autocast(streams.device.type, enabled=False):  # or einsum rounds to bfloat16
        wide = streams.to(read.dtype)
        u = torch.einsum("...s,...sd->...d", read, wide)
        carried = torch.einsum("...st,...sd->...td", transport, wide)
        return carried.to(streams.dtype), w, rms_norm(u, gain, eps=eps).to(streams.dtype)

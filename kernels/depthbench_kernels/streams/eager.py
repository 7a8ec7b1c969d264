"""The boundaries of HC and mHC with few passes over the streams and a closed-form backward.

HC. The inverse RMS rho of each stream multiplies the m + 2 routing logits, not the stream; all logits come from
one matrix product, read and map from one batched product. Saved for backward: the streams and about 3 m^2
numbers per token. With M = [r | A] (m, m + 1), logits l = rho (H theta), z = tanh(l), gains g, and upstream
dY = [dx; dcarried']:

    dM = H dY^T;    dl = [dM | dw'] g (1 - z^2);    dtheta = H^T (rho dl)
    dH = M dY + rho dl theta^T - H rho^2 (dl . l) / d;    df = sum_s w_s dH_s;    dw_s = f . dH_s

mHC. One inverse RMS for all m d numbers of a token, one matrix product for its m^2 + 2 m logits. Coefficients have
the tokens innermost, (columns, tokens), so that a step of Sinkhorn is a few operations on long rows.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from depthbench_kernels._dtypes import arithmetic
from depthbench_kernels.norms.eager import inverse_rms, norm_backward
from depthbench_kernels.streams.reference import HCRouting, MHCRouting
from depthbench_kernels.streams.sinkhorn import sinkhorn, sinkhorn_backward


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
    return _flat(_HCBoundary, carried, pending, gain, routing_eps, eps, *routing)


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
    return _flat(_MHCBoundary, carried, pending, gain, routing_eps, eps, iters, sinkhorn_eps, *routing)


def _flat(
    function: Any, carried: Tensor, pending: tuple[Tensor, Tensor] | None, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply the function to (tokens, m, d)."""
    tokens, (m, d) = carried.shape[:-2], carried.shape[-2:]
    f, w = (None, None) if pending is None else (pending[0].reshape(-1, d), pending[1].reshape(-1, m))
    H, w, y = function.apply(carried.reshape(-1, m, d), f, w, *others)
    return H.view(carried.shape), w.view(*tokens, m), y.view(*tokens, d)


def _written(carried: Tensor, f: Tensor | None, w: Tensor | None, wide: torch.dtype) -> Tensor:
    """Return the streams, rounded to storage, so that backward sees what was used."""
    if f is None or w is None:
        return carried
    return torch.addcmul(carried.to(wide), w.unsqueeze(2), f.unsqueeze(1).to(wide)).to(carried.dtype)


def _combined(weights: Tensor, streams: Tensor) -> Tensor:
    """Return sum_s weights_s streams_s, (tokens, d); a batched product with one row each takes three times as long."""
    total = weights[:, :1] * streams[:, 0]
    for s in range(1, streams.shape[1]):
        total.addcmul_(weights[:, s, None], streams[:, s])
    return total


def _write_backward(dH: Tensor, f: Tensor | None, w: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return (df, dw)."""
    if f is None:
        return None, None
    return _combined(w, dH).to(f.dtype), torch.bmm(dH, f.to(dH.dtype).unsqueeze(2)).squeeze(2)


def _columns(routing: HCRouting, wide: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return static part (m, m + 2), projection (d, m + 2) and gains (m + 2,) of all routing columns."""
    r = HCRouting(*(t.to(wide) for t in routing))
    static = torch.cat([r.static_alpha, r.static_beta.unsqueeze(1)], 1)
    theta = torch.cat([r.dynamic_alpha_proj, r.dynamic_beta_proj.unsqueeze(1)], 1)
    gains = torch.cat([r.dynamic_alpha_scale.expand(static.shape[1] - 1), r.dynamic_beta_scale.reshape(1)])
    return static, theta, gains


class _HCBoundary(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        carried: Tensor,
        f: Tensor | None,
        w: Tensor | None,
        gain: Tensor,
        routing_eps: float,
        eps: float,
        *routing: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        (m, d), wide = carried.shape[1:], arithmetic(carried)
        with torch.autocast(carried.device.type, enabled=False):
            H = _written(carried, f, w, wide)
            static, theta, gains = _columns(HCRouting(*routing), wide)
            streams = H.to(wide)
            rho = inverse_rms(streams, routing_eps)
            logits = (streams.reshape(-1, d) @ theta).view(-1, m, m + 2).mul_(rho)
            C = torch.addcmul(static, logits.tanh(), gains)
            mixed = torch.bmm(C[:, :, :-1].transpose(1, 2), streams)
            u = mixed[:, 0]
            rstd = inverse_rms(u, eps)
            y = (u * rstd).mul_(gain).to(carried.dtype)
        ctx.save_for_backward(H, f, w, gain, rho, logits, C, rstd, *routing)
        return mixed[:, 1:].to(carried.dtype), C[:, :, -1], y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dcarried: Tensor, dw_next: Tensor, dy: Tensor) -> tuple[Tensor | None, ...]:
        H, f, w, gain, rho, logits, C, rstd, *routing = ctx.saved_tensors
        (m, d), wide = H.shape[1:], rho.dtype
        with torch.autocast(H.device.type, enabled=False):
            _, theta, gains = _columns(HCRouting(*routing), wide)
            streams, M = H.to(wide), C[:, :, :-1]
            u = _combined(M[:, :, 0], streams)
            du, dgain = norm_backward(dy.to(wide), u, rstd, gain.to(wide))
            dmixed = torch.cat([du.unsqueeze(1), dcarried.to(wide)], 1)
            dC = torch.cat([torch.bmm(streams, dmixed.transpose(1, 2)), dw_next.unsqueeze(2)], 2)
            z = logits.tanh()
            dlogits = (dC * gains).mul_(1 - z.square())
            slope = (dlogits * logits).sum(-1, keepdim=True).mul_(rho.square() / d)
            dlogits = dlogits.mul_(rho).view(-1, m + 2)
            dH = torch.bmm(M, dmixed)
            dH.view(-1, d).addmm_(dlogits, theta.T)
            dH.addcmul_(streams, slope, value=-1)
            dtheta = streams.reshape(-1, d).T @ dlogits
            dstatic, dgains = dC.sum(0), dC.mul_(z).sum((0, 1))
            df, dw = _write_backward(dH, f, w)
        droutings = HCRouting(
            static_alpha=dstatic[:, :-1],
            static_beta=dstatic[:, -1],
            dynamic_alpha_proj=dtheta[:, :-1],
            dynamic_beta_proj=dtheta[:, -1],
            dynamic_alpha_scale=dgains[:-1].sum(),
            dynamic_beta_scale=dgains[-1],
        )
        own = (g.to(p.dtype) for g, p in zip(droutings, routing, strict=True))
        return dH.to(H.dtype), df, dw, dgain.to(gain.dtype), None, None, *own


class _MHCBoundary(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        carried: Tensor,
        f: Tensor | None,
        w: Tensor | None,
        gain: Tensor,
        routing_eps: float,
        eps: float,
        iters: int,
        sinkhorn_eps: float,
        *routing: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        m, wide = carried.shape[1], arithmetic(carried)
        with torch.autocast(carried.device.type, enabled=False):
            H = _written(carried, f, w, wide)
            phi, bias, gains = _mhc_columns(MHCRouting(*routing), m, wide)
            streams = H.to(wide)
            rho = inverse_rms(streams.flatten(1), routing_eps).T  # (1, tokens)
            z = (phi.T @ streams.flatten(1).T).mul_(rho)
            logits = torch.addcmul(bias, z, gains)
            read, write = logits[:m].sigmoid(), logits[m : 2 * m].sigmoid().mul_(2)
            R, divisors = sinkhorn(logits[2 * m :].view(m, m, -1), iters, sinkhorn_eps)
            M = torch.cat([read, R.flatten(0, 1)]).T.contiguous().view(-1, m + 1, m)
            mixed = torch.bmm(M, streams)
            u = mixed[:, 0]
            rstd = inverse_rms(u, eps)
            y = (u * rstd).mul_(gain).to(carried.dtype)
        ctx.save_for_backward(H, f, w, gain, rho, z, write, M, rstd, *routing, *divisors)
        ctx.sinkhorn_eps = sinkhorn_eps
        return mixed[:, 1:].to(carried.dtype), write.T.contiguous(), y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dcarried: Tensor, dw_next: Tensor, dy: Tensor) -> tuple[Tensor | None, ...]:
        H, f, w, gain, rho, z, write, M, rstd, *others = ctx.saved_tensors
        routing, divisors = others[: len(MHCRouting._fields)], others[len(MHCRouting._fields) :]
        m, wide = H.shape[1], rho.dtype
        with torch.autocast(H.device.type, enabled=False):
            phi, bias, gains = _mhc_columns(MHCRouting(*routing), m, wide)
            streams = H.to(wide)
            u = _combined(M[:, 0], streams)
            du, dgain = norm_backward(dy.to(wide), u, rstd, gain.to(wide))
            dmixed = torch.cat([du.unsqueeze(1), dcarried.to(wide)], 1)
            dM = torch.bmm(dmixed, streams.transpose(1, 2)).flatten(1).T.contiguous()
            # a copy also for a single token, of which the transpose is contiguous: R is overwritten below
            coefficients = M.flatten(1).T.clone(memory_format=torch.contiguous_format)
            read, R = coefficients[:m], coefficients[m:].view(m, m, -1)
            dlogits = torch.empty_like(z)
            dlogits[:m] = dM[:m] * read * (1 - read)
            dlogits[m : 2 * m] = dw_next.T * write * (1 - write / 2)
            map_logits = torch.addcmul(bias[2 * m :], z[2 * m :], gains[2 * m :]).view(m, m, -1)
            dR = sinkhorn_backward(map_logits, R, divisors, dM[m:].view(m, m, -1), ctx.sinkhorn_eps)
            dlogits[2 * m :] = dR.flatten(0, 1)
            dbias, dgains = dlogits.sum(1), (dlogits * z).sum(1).split((m, m, m * m))
            dz = dlogits.mul_(gains)
            slope = (dz * z).sum(0, keepdim=True).mul_(rho.square() / phi.shape[0])
            dz = dz.mul_(rho)
            dphi = (dz @ streams.flatten(1)).T
            dH = torch.bmm(M.transpose(1, 2), dmixed)
            dH.flatten(1).addmm_(dz.T, phi.T)
            dH.addcmul_(streams, slope.view(-1, 1, 1), value=-1)
            df, dw = _write_backward(dH, f, w)
        droutings = MHCRouting(dphi, dbias, *(g.sum() for g in dgains))
        own = (g.to(p.dtype) for g, p in zip(droutings, routing, strict=True))
        return dH.to(H.dtype), df, dw, dgain.to(gain.dtype), None, None, None, None, *own


def _mhc_columns(routing: MHCRouting, m: int, wide: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return projection (m d, m^2 + 2 m), bias and gains (m^2 + 2 m, 1)."""
    phi, bias, pre, post, res = (t.to(wide) for t in routing)
    return phi, bias.unsqueeze(1), torch.cat([pre.expand(m), post.expand(m), res.expand(m * m)]).unsqueeze(1)

"""The Hyper-Connections boundary with few passes over the streams and a closed-form backward.

The inverse RMS rho of each stream multiplies the m + 2 routing logits, not the stream; all logits come from
one matrix product, read and map from one batched product. Saved for backward: the streams and about 3 m^2
numbers per token. With M = [r | A] (m, m + 1), logits l = rho (H theta), z = tanh(l), gains g, and upstream
dY = [dx; dcarried']:

    dM = H dY^T;    dl = [dM | dw'] g (1 - z^2);    dtheta = H^T (rho dl)
    dH = M dY + rho dl theta^T - H rho^2 (dl . l) / d;    df = sum_s w_s dH_s;    dw_s = f . dH_s
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from depthbench_kernels._dtypes import arithmetic
from depthbench_kernels.norms.eager import inverse_rms, norm_backward
from depthbench_kernels.streams.reference import HCRouting


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
    tokens, (m, d) = carried.shape[:-2], carried.shape[-2:]
    f, w = (None, None) if pending is None else (pending[0].reshape(-1, d), pending[1].reshape(-1, m))
    H = carried.reshape(-1, m, d)
    H, w, y = _Boundary.apply(H, f, w, gain, routing_eps, eps, *routing)
    return H.view(carried.shape), w.view(*tokens, m), y.view(*tokens, d)


def _columns(routing: HCRouting, wide: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return static part (m, m + 2), projection (d, m + 2) and gains (m + 2,) of all routing columns."""
    r = HCRouting(*(t.to(wide) for t in routing))
    static = torch.cat([r.static_alpha, r.static_beta.unsqueeze(1)], 1)
    theta = torch.cat([r.dynamic_alpha_proj, r.dynamic_beta_proj.unsqueeze(1)], 1)
    gains = torch.cat([r.dynamic_alpha_scale.expand(static.shape[1] - 1), r.dynamic_beta_scale.reshape(1)])
    return static, theta, gains


class _Boundary(torch.autograd.Function):
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
        H, (m, d), wide = carried, carried.shape[1:], arithmetic(carried)
        with torch.autocast(carried.device.type, enabled=False):
            if f is not None and w is not None:
                H = torch.addcmul(H.to(wide), w.unsqueeze(2), f.unsqueeze(1).to(wide)).to(carried.dtype)
            static, theta, gains = _columns(HCRouting(*routing), wide)
            streams = H.to(wide)  # rounded to storage first, so that backward sees what was used
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
            u = torch.bmm(M[:, :, :1].transpose(1, 2), streams).squeeze(1)
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
            df = dw = None
            if f is not None:
                df = torch.bmm(w.unsqueeze(1), dH).squeeze(1).to(f.dtype)
                dw = torch.bmm(dH, f.to(wide).unsqueeze(2)).squeeze(2)
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

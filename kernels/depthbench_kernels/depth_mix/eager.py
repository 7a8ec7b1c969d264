"""Depth mixing for training: sources are kept once, read once per group of sites, and gradients are pulled.

Sites, sources and their buffer are those of `_workspace.py`.

Forward, two phases. At the first site of a group the mixtures of all its sites over the sources present are formed
in one read (`partial`, `lse0`); each site then merges the sources born inside the group:

    lse = logsumexp(s);    h = exp(lse0 - lse) partial + sum over sources of the group of exp(s_i - lse) v_i

Backward of site c, dh being the gradient of its mixture as stored, D = dh . h. With n_i = rho_i v_i the source over
its root mean square, source i collects over the sites c that read it:

    p_ic  = exp(s_ic - lse_c);    ds_ic = p_ic (dh_c . v_i - D_c)
    U_i   = sum_c ds_ic w_c;      dw_c += sum over tokens of ds_ic n_i
    dv_i  = sum_c p_ic dh_c + rho_i (U_i - n_i mean(U_i n_i))

Contributions from behind a group are pulled for all its sources in one read. Scores are recomputed in backward,
not kept. D is formed from the rounded dh and the unrounded h: its closed form, nearly zero, would lose the query
gradients.

`depth_mix` is one site over a list of sources, for short lists: sources are read where they lie, one after the
other, and each gets its gradient at once.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from depthbench_kernels._dtypes import arithmetic
from depthbench_kernels.depth_mix import _workspace
from depthbench_kernels.norms.eager import inverse_rms, norm_backward

GROUP = 8  # sites


def depth_mix(sources: Sequence[Tensor], weight: Tensor, gain: Tensor, *, eps: float) -> Tensor:
    """Return the normalised mixture of one site."""
    return _Mix.apply(weight, gain, eps, *sources)


class Workspace(_workspace.Workspace):
    """Group of sites at a time; rho (tokens, Q + 1): inverse RMS of the sources."""

    def __init__(self, embedding: Tensor, weights: Tensor, *, eps: float, group: int = GROUP):
        super().__init__(embedding, weights, eps=eps, group=group)
        self.rho = self.lse.new_empty(self.V.shape[:2])

    def append(self, slot: int, v: Tensor) -> None:
        """Store a source and its inverse RMS."""
        self.V[:, slot] = v
        self.rho[:, slot] = inverse_rms(self.V[:, slot].to(self.rho.dtype), self.eps).squeeze(1)

    def read(self, c: int, newest: Tensor, gain: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store source c + 1; return y of site c, its mixture h and the inverse RMS of h."""
        self.append(c + 1, newest)
        h = self.mix(c)
        rstd = inverse_rms(h, self.eps)
        return (h * rstd).mul_(gain), h, rstd

    def all_read(self) -> None:
        """Free what only forward needs."""
        del self.partial, self.lse0, self.group_scores

    def scores(self, v: Tensor, slots: slice, sites: slice) -> Tensor:
        """Return scores (tokens, slots, sites) of the sources v, which stand or stood in `slots`."""
        s = v.flatten(0, 1) @ self.W[sites].T
        return s.view(*v.shape[:2], -1) * self.rho[:, slots, None]

    def mix(self, c: int) -> Tensor:
        """Return the mixture of site c over the sources 0 .. c + 1, (tokens, d), unrounded."""
        first, last = self.bounds(c)
        if c == first:
            v = self.V[:, : c + 2].to(self.W.dtype).contiguous()
            s = self.scores(v, slice(0, c + 2), slice(first, last))
            self.lse0 = s.logsumexp(1)
            self.partial = torch.bmm(s.sub_(self.lse0[:, None]).exp_().transpose(1, 2), v)
            self.group_scores = s.new_empty(len(v), 0, last - first)
            self.lse[:, c] = self.lse0[:, 0]
            return self.partial[:, 0]
        j = c - first
        newest = self.V[:, c + 1 : c + 2].to(self.W.dtype)
        s = self.scores(newest, slice(c + 1, c + 2), slice(first, last))
        self.group_scores = torch.cat([self.group_scores, s], 1)
        mine = torch.cat([self.lse0[:, None, j], self.group_scores[:, :, j]], 1)
        lse = mine.logsumexp(1, keepdim=True)
        self.lse[:, c] = lse[:, 0]
        p = mine.sub_(lse).exp_()
        v = self.V[:, first + 2 : c + 2].to(self.W.dtype)
        return torch.bmm(p[:, None, 1:], v).squeeze(1).addcmul_(p[:, :1], self.partial[:, j])

    def give_back(self, c: int, dy: Tensor, h: Tensor, rstd: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        """Take the gradient of y of site c; return the gradients of source c + 1 and of the gain."""
        first, last = self.bounds(c)
        dh, dgain = norm_backward(dy.to(h.dtype), h, rstd, gain.to(h.dtype))
        v = self.V[:, c + 1].to(self.W.dtype, copy=True)[:, None]
        self.V[:, c + 1] = dh
        dh = self.V[:, c + 1].to(self.W.dtype)
        self.D[:, c] = (dh * h).sum(-1)
        if c == last - 1 and last < self.n_sites:
            sources = torch.cat([self.V[:, first + 1 : last].to(self.W.dtype), v], 1)
            self.pulled = self.pull(sources, slice(first + 1, last + 1), slice(last, self.n_sites))
        dv, U = self.pull(v, slice(c + 1, c + 2), slice(c, last))
        if last < self.n_sites:
            dv, U = dv + self.pulled[0][:, c - first, None], U + self.pulled[1][:, c - first, None]
        return self.finish(v, c + 1, dv, U), dgain

    def give_back_embedding(self) -> Tensor:
        """Return the gradient of source 0; all others are done, so the buffers go."""
        v = self.V[:, :1].to(self.W.dtype)
        dv = self.finish(v, 0, *self.pull(v, slice(0, 1), slice(0, self.n_sites)))
        del self.V, self.rho, self.lse, self.D  # a loss that is kept would keep them
        return dv

    def pull(self, v: Tensor, slots: slice, sites: slice) -> tuple[Tensor, Tensor]:
        """Return sum_c p dh and U for the sources v, which stood in `slots`; add to dW."""
        G = self.V[:, sites.start + 1 : sites.stop + 1].to(self.W.dtype)
        p = self.scores(v, slots, sites).sub_(self.lse[:, None, sites]).exp_()
        ds = torch.bmm(v, G.transpose(1, 2)).sub_(self.D[:, None, sites]).mul_(p)
        unit = v * self.rho[:, slots, None]
        self.dW[sites].addmm_(ds.flatten(0, 1).T, unit.flatten(0, 1))
        return torch.bmm(p, G), (ds.flatten(0, 1) @ self.W[sites]).view(v.shape)

    def finish(self, v: Tensor, slot: int, dv: Tensor, U: Tensor) -> Tensor:
        """Return the gradient of one source: the pulled part, and U through the key norm."""
        rho = self.rho[:, slot, None, None]
        slope = (U * v).mean(-1, keepdim=True).mul_(rho.pow(3))
        return dv.addcmul(rho, U).addcmul_(v, slope, value=-1).squeeze(1).to(self.V.dtype)


class _Mix(torch.autograd.Function):
    """(query-gain product, gain, sources) -> normalised mixture."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, gain: Tensor, eps: float, *sources: Tensor) -> Tensor:
        shape, wide = sources[0].shape, arithmetic(sources[0])
        with torch.autocast(weight.device.type, enabled=False):
            V = [v.reshape(-1, shape[-1]).to(wide) for v in sources]
            rho = torch.stack([inverse_rms(v, eps) for v in V])  # (S, tokens, 1)
            s = torch.stack([v @ weight.to(wide) for v in V]).unsqueeze(-1).mul_(rho)
            p = s.softmax(0)
            h = p[0] * V[0]
            for p_i, v in zip(p[1:], V[1:], strict=True):
                h.addcmul_(p_i, v)
            rstd = inverse_rms(h, eps)
            y = (h * rstd).mul_(gain)
        ctx.save_for_backward(weight, gain, rho, s, p, h, rstd, *sources)
        return y.to(sources[0].dtype).view(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        weight, gain, rho, s, p, h, rstd, *sources = ctx.saved_tensors
        wide, d = h.dtype, h.shape[-1]
        with torch.autocast(dy.device.type, enabled=False):
            w = weight.to(wide)
            dh, dgain = norm_backward(dy.reshape(h.shape).to(wide), h, rstd, gain.to(wide))
            V = [v.reshape(h.shape).to(wide) for v in sources]
            dp = torch.stack([(v * dh).sum(-1, keepdim=True) for v in V])
            ds = dp.sub_((dh * h).sum(-1, keepdim=True)).mul_(p).mul_(rho)  # times rho: the score is rho w . v
            slope = ds * rho * s / d
            dw = torch.zeros_like(w)
            dsources = []
            for i, v in enumerate(V):
                dw += ds[i, :, 0] @ v
                dv = (p[i] * dh).addcmul_(ds[i], w).addcmul_(slope[i], v, value=-1)
                dsources.append(dv.to(dy.dtype).view(dy.shape))
        return dw.to(weight.dtype), dgain.to(gain.dtype), None, *dsources

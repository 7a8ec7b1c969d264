"""Depth mixing for training: sources are kept once, read once per group of sites, and gradients are pulled.

Site c = 0 .. Q-1 mixes sources 0 .. c+1; its newest source c + 1 is the output of the sub-layer that read site
c - 1.

Forward, two phases. At the first site of a group the mixtures of all its sites over the sources present are formed
in one read (`partial`, `lse0`); each site then merges the sources born inside the group:

    lse = logsumexp(s);    h = exp(lse0 - lse) partial + sum over sources of the group of exp(s_i - lse) v_i

Backward of site c, dh being the gradient of its mixture as stored, D = dh . h. With n_i = rho_i v_i the source over
its root mean square, source i collects over the sites c that read it:

    p_ic  = exp(s_ic - lse_c);    ds_ic = p_ic (dh_c . v_i - D_c)
    U_i   = sum_c ds_ic w_c;      dw_c += sum over tokens of ds_ic n_i
    dv_i  = sum_c p_ic dh_c + rho_i (U_i - n_i mean(U_i n_i))

When the backward of site c runs, it is the last that reads source c + 1: the source is taken out, dh_c is put into
its slot, and the gradient of the source is pulled from the slots c + 1 .. Q. So one buffer serves both.
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
from depthbench_kernels.norms.eager import inverse_rms, norm_backward

GROUP = 8  # sites


def depth_mix(sources: Sequence[Tensor], weight: Tensor, gain: Tensor, *, eps: float) -> Tensor:
    """Return the normalised mixture of one site."""
    return _Mix.apply(weight, gain, eps, *sources)


class Workspace:
    """The sources of one forward pass, (tokens, Q + 1, d), in their own dtype, and the statistics of its sites."""

    def __init__(self, embedding: Tensor, weights: Tensor, *, eps: float, group: int = GROUP):
        wide, d, Q = arithmetic(embedding), embedding.shape[-1], len(weights)
        tokens = embedding.numel() // d
        self.first: tuple[Tensor | None, Tensor | None] = (embedding, weights)
        self.W, self.eps, self.group, self.n_sites = weights.detach().to(wide), eps, group, Q
        self.dW = torch.zeros_like(self.W)
        self.V = embedding.new_empty(tokens, Q + 1, d)
        self.rho = self.V.new_empty(tokens, Q + 1, dtype=wide)
        self.lse = self.V.new_empty(tokens, Q, dtype=wide)
        self.D = torch.empty_like(self.lse)
        self.n_consumed, self.n_pending = 0, Q

    def consume(self, newest: Tensor, gain: Tensor) -> Tensor:
        """Append a source and return the normalised mixture of the next site."""
        if torch.compiler.is_compiling():  # the compiler cannot see a buffer that backward reuses
            return torch.compiler.disable(self._consume)(newest, gain)
        return self._consume(newest, gain)

    def _consume(self, newest: Tensor, gain: Tensor) -> Tensor:
        c = self.n_consumed
        if c == self.n_sites:
            raise RuntimeError(f"depth mixing: all {self.n_sites} sites of this workspace have been read")
        self.n_consumed += 1
        y = _Consume.apply(self, c, newest, gain, *self.first)
        self.first = (None, None)  # the first site takes embedding and weights; their gradients come last
        if self.n_consumed == self.n_sites:
            del self.partial, self.lse0, self.group_scores
        return y

    def append(self, slot: int, v: Tensor) -> None:
        """Store a source and its inverse RMS."""
        self.V[:, slot] = v.reshape(len(self.V), -1)
        self.rho[:, slot] = inverse_rms(self.V[:, slot].to(self.rho.dtype), self.eps).squeeze(1)

    def bounds(self, c: int) -> tuple[int, int]:
        """Return first and last + 1 site of the group of site c."""
        first = c - c % self.group
        return first, min(first + self.group, self.n_sites)

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

    def give_back(self, c: int, dh: Tensor, h: Tensor) -> Tensor:
        """Take the gradient of the mixture of site c; return the gradient of source c + 1."""
        first, last = self.bounds(c)
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
        return self.finish(v, c + 1, dv, U)

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


class _Consume(torch.autograd.Function):
    """(newest source, gain; at the first site embedding and weights too) -> normalised mixture of a site."""

    @staticmethod
    def forward(
        ctx: Any,
        ws: Workspace,
        c: int,
        newest: Tensor,
        gain: Tensor,
        embedding: Tensor | None,
        weights: Tensor | None,
    ) -> Tensor:
        with torch.autocast(newest.device.type, enabled=False):
            if embedding is not None:
                ws.append(0, embedding)
            ws.append(c + 1, newest)
            h = ws.mix(c)
            rstd = inverse_rms(h, ws.eps)
            y = (h * rstd).mul_(gain)
        ctx.ws, ctx.c = ws, c
        ctx.save_for_backward(h, rstd, gain)
        return y.to(newest.dtype).view(newest.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        ws, c = ctx.ws, ctx.c
        if ws.n_pending != c + 1:
            raise RuntimeError(
                "depth mixing: one backward pass is allowed, through all sites in order; run forward again"
            )
        ws.n_pending = c
        h, rstd, gain = ctx.saved_tensors
        with torch.autocast(dy.device.type, enabled=False):
            dh, dgain = norm_backward(dy.reshape(h.shape).to(h.dtype), h, rstd, gain.to(h.dtype))
            dnewest = ws.give_back(c, dh, h).view(dy.shape)
            dembedding = ws.give_back_embedding().view(dy.shape) if c == 0 else None
        return None, None, dnewest, dgain.to(gain.dtype), dembedding, ws.dW if c == 0 else None


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

"""The order of work on the sources of one forward pass, whatever computes on them.

Site c = 0 .. Q-1 mixes sources 0 .. c+1; its newest source c + 1 is the output of the sub-layer that read site
c - 1. So the sites are read in order, and their backwards run in the opposite order: when that of site c runs, it is
the last that reads source c + 1. The source is taken out of its slot then, the gradient of the mixture of site c is
put there, and the gradient of the source is pulled from the slots c + 1 .. Q: one buffer serves both.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from depthbench_kernels._dtypes import arithmetic


class Workspace:
    """The sources of one forward pass, (tokens, Q + 1, d), in their own dtype, and the statistics of its sites."""

    def __init__(self, embedding: Tensor, weights: Tensor, *, eps: float, group: int):
        wide, d, Q = arithmetic(embedding), embedding.shape[-1], len(weights)
        tokens = embedding.numel() // d
        self.first: tuple[Tensor | None, Tensor | None] = (embedding, weights)
        self.W, self.eps, self.group, self.n_sites = weights.detach().to(wide).contiguous(), eps, group, Q
        self.dW = torch.zeros_like(self.W)
        self.V = embedding.new_empty(tokens, Q + 1, d)
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
            self.all_read()
        return y

    def bounds(self, c: int) -> tuple[int, int]:
        """Return first and last + 1 site of the group of site c."""
        first = c - c % self.group
        return first, min(first + self.group, self.n_sites)

    def append(self, slot: int, v: Tensor) -> None:
        """Store a source, (tokens, d)."""
        raise NotImplementedError

    def read(self, c: int, newest: Tensor, gain: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store source c + 1; return y of site c, its mixture h unrounded and the inverse RMS of h."""
        raise NotImplementedError

    def all_read(self) -> None:
        """Free what only forward needs."""
        raise NotImplementedError

    def give_back(self, c: int, dy: Tensor, h: Tensor, rstd: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        """Take the gradient of y of site c; return the gradients of source c + 1 and of the gain."""
        raise NotImplementedError

    def give_back_embedding(self) -> Tensor:
        """Return the gradient of source 0; all others are done, so the buffers go."""
        raise NotImplementedError


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
        rows = (-1, newest.shape[-1])
        with torch.autocast(newest.device.type, enabled=False):
            if embedding is not None:
                ws.append(0, embedding.reshape(rows))
            y, h, rstd = ws.read(c, newest.reshape(rows), gain)
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
            dnewest, dgain = ws.give_back(c, dy.reshape(h.shape), h, rstd, gain)
            dembedding = ws.give_back_embedding().view(dy.shape) if c == 0 else None
        return None, None, dnewest.view(dy.shape), dgain.to(gain.dtype), dembedding, ws.dW if c == 0 else None

"""The two-phase workspace on the kernels of `_two_phase_kernels.py`."""

import torch
import triton
from torch import Tensor

from depthbench_kernels._triton import block, check, launch, programs, warps
from depthbench_kernels.depth_mix import _two_phase_kernels as kernels
from depthbench_kernels.depth_mix import _workspace

GROUP = 8  # sites, a power of two
CHUNK = 128  # columns of a product


class Workspace(_workspace.Workspace):
    """Groups of eight sites."""

    def __init__(self, embedding: Tensor, weights: Tensor, *, eps: float):
        check("depth_mix", embedding, weights)
        super().__init__(embedding, weights, eps=eps, group=GROUP)
        self.pulled: Tensor | None = None  # for the group whose backward runs
        self.tokens, self.slots, self.d = self.V.shape
        self.chunk = {"B": GROUP, "CHUNK": min(max(block(self.d), 16), CHUNK)}
        self.row = {"B": GROUP, "BLOCK": block(self.d), "num_warps": warps(GROUP * block(self.d))}

    def append(self, slot: int, v: Tensor) -> None:
        """Store a source."""
        self.V[:, slot] = v

    def read(self, c: int, newest: Tensor, gain: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store source c + 1; return y of site c, its mixture h and the inverse RMS of h."""
        first, last = self.bounds(c)
        if c == first:
            scores = self._scratch(GROUP, self.slots)
            self.partial, self.lse0 = self._scratch(GROUP, self.d), self._scratch(GROUP)
            launch(
                kernels.partial, (self.tokens,), self.V, self.W, scores, self.partial, self.lse0,
                first, last, self.slots, self.d, self.eps, **self.chunk,
            )  # fmt: skip
        newest = newest.to(self.V.dtype).contiguous()
        y, h, rstd = torch.empty_like(newest), self._scratch(self.d), self._scratch()
        launch(
            kernels.merge, (self.tokens,),
            self.V, newest, self.W, gain.contiguous(), self.partial, self.lse0, self.lse, y, h, rstd,
            c, first, self.slots, self.d, self.eps, **self.row,
        )  # fmt: skip
        return y, h, rstd

    def all_read(self) -> None:
        """Free what only forward needs."""
        del self.partial, self.lse0

    def give_back(self, c: int, dy: Tensor, h: Tensor, rstd: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        """Take the gradient of y of site c; return the gradients of source c + 1 and of the gain."""
        first, last = self.bounds(c)
        later = last < self.n_sites
        if later and c == last - 1:
            self.pulled = self._pull(first + 1, last - first, last)
        dnewest = torch.empty_like(dy, dtype=self.V.dtype, memory_format=torch.contiguous_format)
        n_programs = programs(self.tokens, self.V.device)
        dw, dgain = (self.W.new_empty(n_programs, *rows, self.d) for rows in ((GROUP,), ()))
        launch(
            kernels.give_back, (n_programs,),
            self.V, dy.contiguous(), h, rstd, gain.contiguous(), self.W, self.lse, self.D,
            self.pulled if later else h, dnewest, dw, dgain, c, first, last, self.tokens, self.slots, self.d, self.eps,
            HAS_PULLED=later, **self.row,
        )  # fmt: skip
        self.dW[c:last] += dw.sum(0)[: last - c]
        return dnewest, dgain.sum(0)

    def give_back_embedding(self) -> Tensor:
        """Return the gradient of source 0; all others are done, so the buffers go."""
        gradient = self._pull(0, 1, 0)[:, 0].to(self.V.dtype)
        self.pulled = None
        del self.V, self.lse, self.D
        return gradient

    def _pull(self, slot: int, n_sources: int, site: int) -> Tensor:
        """Return what the sources from `slot` on get from the sites from `site` on, (tokens, B, d); add to dW."""
        n = self.n_sites - site
        weight, ds = self._scratch(GROUP, n), self._scratch(GROUP, n)
        pulled = self._scratch(GROUP, self.d)
        launch(
            kernels.pull, (self.tokens,),
            self.V, self.W, self.lse, self.D, weight, ds, pulled, slot, n_sources, site, self.slots, self.d, self.eps,
            **self.chunk,
        )  # fmt: skip
        SITES, ROWS = 64, 32
        tiles = triton.cdiv(n, SITES), triton.cdiv(self.d, self.chunk["CHUNK"])
        parts = max(programs(self.tokens, self.V.device) // (tiles[0] * tiles[1]), 1)
        dw = self.W.new_empty(parts, n, self.d)
        launch(
            kernels.weight_gradient, (parts, *tiles),
            self.V, ds, dw, slot, n_sources, self.tokens, self.slots, n, self.d, ROWS=ROWS, SITES=SITES, **self.chunk,
        )  # fmt: skip
        self.dW[site:] += dw.sum(0)
        return pulled

    def _scratch(self, *shape: int) -> Tensor:
        return self.W.new_empty(self.tokens, *shape)

"""Pre-LN (arXiv 2002.04745): the baseline.

h <- x0;    for k: h <- h + F_k(RMSNorm(h));    readout: h
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from depthbench.residuals import base
from depthbench_kernels.norms import add_norm


class State(NamedTuple):
    """One stream."""

    h: Tensor  # (B, T, d)
    pending: Tensor | None = None  # branch output that is still to be added


class Residual(base.Residual):
    """h <- h + F(norm(h))."""

    def start(self, x0: Tensor, model: nn.Module, once: bool = False) -> State:
        return State(x0)

    def read(self, state: State, k: int, block: nn.Module) -> tuple[Tensor, Tensor]:
        h, x = self._normalised(state, getattr(block, base.side(k) + "_norm"))
        return x, h

    def write(self, memo: Tensor, k: int, block: nn.Module, out: Tensor) -> State:
        return State(memo, out)

    def settle(self, state: State) -> State:
        return state if state.pending is None else State(state.h + state.pending)

    def represent(self, state: State, position: int, model: nn.Module) -> Tensor:
        return state.h

    def finish(self, state: State, position: int, model: Any) -> Tensor:
        return self._normalised(state, model.norm)[1]

    def read_weights(self, state: State, k: int, at: nn.Module) -> Tensor:
        return torch.ones_like(state.h[..., :1])

    def write_weights(self, state: State, k: int, block: nn.Module, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one = torch.ones_like(out[..., :1])
        return one[..., None], one, out

    @staticmethod
    def _normalised(state: State, norm: Any) -> tuple[Tensor, Tensor]:
        """Return the stream with the pending write added, and its norm."""
        if state.pending is None:
            return state.h, norm(state.h)
        return add_norm(state.h, state.pending, norm.weight, eps=norm.eps)

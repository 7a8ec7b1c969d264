"""Pre-LN (arXiv 2002.04745): the baseline, and the base of the other designs with one stream.

h <- x0;    for k: h <- h + F_k(RMSNorm(h));    readout: h
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from depthbench.residuals import base
from depthbench_kernels.norms import add, add_norm, rms_norm


class Write(NamedTuple):
    """A write that is still to be carried out; the fields are those of `depthbench_kernels.norms`."""

    out: Tensor  # branch output (B, T, d)
    mode: str = "pre"
    alpha: float = 1.0
    gain: Tensor | None = None  # of the norm inside or around the sum


class State(NamedTuple):
    """One stream."""

    h: Tensor  # (B, T, d)
    pending: Write | None = None


class Residual(base.Residual):
    """h <- h + F(norm(h))."""

    def scale(self, block: Any) -> float:
        """Return the factor of the branch inputs of a block."""
        return 1.0

    def pending(self, k: int, block: nn.Module, out: Tensor) -> Write:
        """Return the write of sub-layer k."""
        return Write(out)

    def start(self, x0: Tensor, model: nn.Module, once: bool = False) -> Any:
        return State(x0)

    def read(self, state: Any, k: int, block: nn.Module) -> tuple[Tensor, Any]:
        h, x = self._normalised(state, getattr(block, base.side(k) + "_norm"), self.scale(block))
        return x, state._replace(h=h, pending=None)

    def write(self, memo: Any, k: int, block: nn.Module, out: Tensor) -> Any:
        return memo._replace(pending=self.pending(k, block, out))

    def settle(self, state: Any) -> Any:
        if state.pending is None:
            return state
        out, mode, alpha, gain = state.pending
        return state._replace(h=add(state.h, out, gain, mode=mode, alpha=alpha, eps=self.cfg.norm_eps), pending=None)

    def represent(self, state: Any, position: int, model: nn.Module) -> Tensor:
        return state.h

    def finish(self, state: Any, position: int, model: Any) -> Tensor:
        return self._normalised(state, model.norm)[1]

    def read_weights(self, state: Any, k: int, at: nn.Module) -> Tensor:
        return torch.ones_like(state.h[..., :1])

    def write_weights(self, state: Any, k: int, block: nn.Module, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one = torch.ones_like(out[..., :1])
        return one[..., None], one, out

    @staticmethod
    def _normalised(state: Any, norm: Any, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return the stream with the pending write carried out, and its norm."""
        if state.pending is None:
            return state.h, rms_norm(state.h, norm.weight, eps=norm.eps, scale=scale)
        out, mode, alpha, gain = state.pending
        return add_norm(state.h, out, norm.weight, mode=mode, alpha=alpha, gain2=gain, eps=norm.eps, scale=scale)

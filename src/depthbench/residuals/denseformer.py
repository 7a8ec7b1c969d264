"""DenseFormer (arXiv 2402.02622): Pre-LN with an average over all block outputs so far behind each block.

    Y_0 = X_0 = x0;    X_{l+1} = block l (Pre-LN) on Y_l;    Y_{l+1} = sum_{j <= l+1} a_{l,j} X_j;    readout: Y_L

The weights start as (0 .. 0, 1), where the network is Pre-LN. A block that is left out leaves Y as it is, and later
averages do without its output. Not among the designs of the DepthBench paper: see `docs/add-a-design.md`.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthbench.residuals import preln


class Average(nn.Module):
    """Weights of the sources X_0 .. X_{l+1}."""

    def __init__(self, l: int):
        super().__init__()
        self.weights = nn.Parameter(F.one_hot(torch.tensor(l + 1), l + 2).float())


class State(NamedTuple):
    """Y and the sources that it is made of, each (B, T, d)."""

    h: Tensor
    pending: preln.Write | None = None
    outputs: tuple[Tensor, ...] = ()


class Residual(preln.Residual):
    """h <- h + F(norm(h)), and h <- the average of all block outputs behind each block."""

    def modules(self, l: int) -> dict[str, nn.Module]:
        own = super().modules(l)
        if l < self.cfg.n_layers:
            own[f"average_{l}"] = Average(l)  # a name of its own keeps it in its place when blocks are exchanged
        return own

    def start(self, x0: Tensor, model: nn.Module, once: bool = False) -> State:
        return State(x0, None, (x0,))

    def write(self, memo: State, k: int, block: nn.Module, out: Tensor) -> State:
        if k % 2 == 0:
            return super().write(memo, k, block, out)
        outputs = (*memo.outputs, memo.h + out)
        average = sum(a * x for a, x in zip(self._weights(k, block), outputs, strict=True))
        return State(average, None, outputs)

    def skip(self, state: State, position: int, mode: str) -> State:
        return state._replace(outputs=(*state.outputs, torch.zeros_like(state.h)))

    def read_weights(self, state: State, k: int, at: nn.Module) -> Tensor:
        first = F.one_hot(torch.tensor(0, device=state.h.device), 1 + len(state.outputs)).to(state.h.dtype)
        return first.expand(*state.h.shape[:-1], -1)

    def write_weights(self, state: State, k: int, block: nn.Module, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.eye(1 + len(state.outputs), dtype=out.dtype, device=out.device)  # Y, X_0, X_1, ...
        if k % 2 == 0:
            return rows, rows[0], out
        *old, new = self._weights(k, block)
        carry = torch.cat([torch.stack([new, *old])[:, None], rows[:, 1:], rows[:, :1]], 1)
        return carry, carry[0], out

    def _weights(self, k: int, block: nn.Module) -> Tensor:
        return getattr(block, f"average_{k // 2}").weights

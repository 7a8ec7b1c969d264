"""Full attention residuals (arXiv 2609.32534, Appendix A): every sub-layer reads a mixture of all outputs.

    sources: x0, f_0, f_1, ...;    u_0 = x0;    u_k = softmax mixture over [x0, f_0 .. f_{k-1}]
    f_k = F_k(RMSNorm(u_k)), nothing is added anywhere;    readout: mixture over all 2L + 1 sources

The mixture is `depthbench_kernels.depth_mix`; each site has its own query and key gain. With zero queries the
mixture is the mean of the sources and the network is Pre-LN up to eps. A training forward keeps its sources
in a workspace.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from depthbench.model.layers import RMSNorm
from depthbench.residuals import base
from depthbench_kernels.depth_mix import depth_mix, depth_weights, workspace


class Mixer(nn.Module):
    """Query and key gain of one mixing site; they act only through their product."""

    def __init__(self, d: int, eps: float):
        super().__init__()
        self.query, self.key_norm = nn.Parameter(torch.zeros(d)), RMSNorm(d, eps)

    def product(self) -> Tensor:
        """Return query * key gain, (d,)."""
        return self.query * self.key_norm.weight


class State(NamedTuple):
    """All sources so far, each (B, T, d)."""

    sources: tuple[Tensor, ...]


class Work(NamedTuple):
    """The state of a training forward: used once, in order."""

    workspace: Any
    newest: Tensor  # the embedding, then the last branch output


class Residual(base.Residual):
    """u_k is a softmax mixture of the embedding and all earlier branch outputs."""

    def modules(self, l: int) -> dict[str, nn.Module]:
        d, eps = self.cfg.d_model, self.cfg.attnres_eps
        if l == self.cfg.n_layers:
            return {"norm": RMSNorm(d, eps), "final_res": Mixer(d, eps)}
        own: dict[str, nn.Module] = {"ffn_norm": RMSNorm(d, eps), "ffn_res": Mixer(d, eps)}
        if l == 0:  # its attention reads the embedding itself: no mixture, and the backbone's eps
            return own | {"attn_norm": RMSNorm(d, self.cfg.norm_eps)}
        return own | {"attn_norm": RMSNorm(d, eps), "attn_res": Mixer(d, eps)}

    def start(self, x0: Tensor, model: Any, once: bool = False) -> State | Work:
        if not once:
            return State((x0,))
        sites = range(1, 2 * self.cfg.n_layers + 1)
        weights = torch.stack(
            [self._mixer(k, model.blocks[k // 2] if k < len(sites) else model).product() for k in sites]
        )
        return Work(workspace(x0, weights, eps=self.cfg.attnres_eps), x0)

    def read(self, state: State | Work, k: int, block: nn.Module) -> tuple[Tensor, State | Work]:
        norm = getattr(block, base.side(k) + "_norm")
        if k == 0:
            return norm(state.sources[0] if isinstance(state, State) else state.newest), state
        return self._mixed(state, k, block, norm), state

    def write(self, memo: State | Work, k: int, block: nn.Module, out: Tensor) -> State | Work:
        if isinstance(memo, Work):
            return Work(memo.workspace, out)
        return State((*memo.sources, out))

    def represent(self, state: State, position: int, model: Any) -> Tensor:
        if position == 0:
            return state.sources[0]
        mixer = self._mixer(2 * position, self._at(position, model))
        return depth_mix(state.sources, mixer.product(), eps=self.cfg.attnres_eps)

    def finish(self, state: State | Work, position: int, model: Any) -> Tensor:
        if isinstance(state, State) and position == 0:
            return model.norm(state.sources[0])
        return self._mixed(state, 2 * position, self._at(position, model), model.norm)

    def read_weights(self, state: State, k: int, at: nn.Module) -> Tensor:
        if k == 0:
            return torch.ones_like(state.sources[0][..., :1])
        return depth_weights(state.sources, self._mixer(k, at).product(), eps=self.cfg.attnres_eps)

    def write_weights(self, state: State, k: int, block: nn.Module, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n = len(state.sources)
        rows = torch.eye(n + 1, dtype=out.dtype, device=out.device)
        return rows[:n], rows[n], out

    def _mixed(self, state: State | Work, k: int, at: nn.Module, norm: Any) -> Tensor:
        """Return the normalised mixture of site k."""
        if isinstance(state, Work):
            return state.workspace.consume(state.newest, norm.weight)
        return depth_mix(state.sources, self._mixer(k, at).product(), norm.weight, eps=self.cfg.attnres_eps)

    def _at(self, position: int, model: Any) -> nn.Module:
        return model.blocks[position] if position < self.cfg.n_layers else model

    def _mixer(self, k: int, at: nn.Module) -> Mixer:
        """Return the mixer of site k, which `at` owns: a block, or the model for the readout k = 2L."""
        return getattr(at, "final_res" if k == 2 * self.cfg.n_layers else base.side(k) + "_res")

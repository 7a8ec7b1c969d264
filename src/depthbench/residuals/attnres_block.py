"""Block attention residuals (arXiv 2609.32534, Appendix A): mixtures over sums of b sub-layer outputs.

    sources: x0, then the sums of the outputs f_k with the same k // b, the last of them still growing
    u_0 = x0;    u_k = softmax mixture over the sources;    f_k = F_k(RMSNorm(u_k))
    readout: mixture over all sources

The mixture is `depthbench_kernels.depth_mix`; each site has its own query and key gain. The newest source is open
for outputs of its own k // b, the embedding for none: so an empty sum is never a source, and a boundary inside a
block that is left out needs no action. b = 1 is Full AttnRes.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from depthbench.model.config import ModelConfig
from depthbench.model.layers import RMSNorm
from depthbench.residuals import base
from depthbench_kernels.depth_mix import depth_mix, depth_weights


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
    open: int = -1  # the newest source grows by the outputs k with k // b == open
    copy_newest: bool = False  # released skip rule: a mixture at a boundary is a copy of the newest source


class Residual(base.Residual):
    """u_k = softmax mixture of x0 and the sums of b outputs f;  f_k = F_k(norm(u_k))."""

    float32_parameters = ("attn_res", "ffn_res", "final_res")
    skip_modes = ("mask", "released")

    def __init__(self, cfg: ModelConfig):
        super().__init__(cfg)
        self.b = cfg.attnres_block_size

    def modules(self, l: int) -> dict[str, nn.Module]:
        d, eps = self.cfg.d_model, self.cfg.attnres_eps
        if l == self.cfg.n_layers:
            return {"norm": RMSNorm(d, eps), "final_res": Mixer(d, eps)}
        own: dict[str, nn.Module] = {"ffn_norm": RMSNorm(d, eps), "ffn_res": Mixer(d, eps)}
        if l == 0:  # its attention reads the embedding itself: no mixture, and the backbone's eps
            return own | {"attn_norm": RMSNorm(d, self.cfg.norm_eps)}
        return own | {"attn_norm": RMSNorm(d, eps), "attn_res": Mixer(d, eps)}

    def start(self, x0: Tensor, model: Any, once: bool = False) -> Any:
        return State((x0,))

    def read(self, state: Any, k: int, block: nn.Module) -> tuple[Tensor, Any]:
        return self._mixed(state, k, block, getattr(block, base.side(k) + "_norm")), state

    def write(self, memo: Any, k: int, block: nn.Module, out: Tensor) -> Any:
        out = out.to(memo.sources[0].dtype)  # analyses start in float32, with branches in bfloat16
        if k // self.b == memo.open:
            return State((*memo.sources[:-1], memo.sources[-1] + out), memo.open)
        return State((*memo.sources, out), k // self.b)

    def skip(self, state: State, position: int, mode: str) -> State:
        if mode == "mask":
            return state
        sources = state.sources if position else state.sources * 2  # the embedding becomes a source twice
        # Nothing is frozen inside the block: the newest source is the open one behind it.
        return State(sources, (2 * position + 1) // self.b, copy_newest=True)

    def represent(self, state: State, position: int, model: Any) -> Tensor:
        k = 2 * position
        if self._reads_newest(state, k):
            return state.sources[-1]
        return depth_mix(state.sources, self.mixer(k, self._at(position, model)).product(), eps=self.cfg.attnres_eps)

    def finish(self, state: Any, position: int, model: Any) -> Tensor:
        return self._mixed(state, 2 * position, self._at(position, model), model.norm)

    def read_weights(self, state: State, k: int, at: nn.Module) -> Tensor:
        if k == 0:
            return torch.ones_like(state.sources[0][..., :1])
        return depth_weights(state.sources, self.mixer(k, at).product(), eps=self.cfg.attnres_eps)

    def write_weights(self, state: State, k: int, block: nn.Module, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n = len(state.sources)
        rows = torch.eye(n if k // self.b == state.open else n + 1, dtype=out.dtype, device=out.device)
        return rows[:n], rows[-1], out

    def mixer(self, k: int, at: Any) -> Mixer:
        """Return the mixer of site k, which `at` owns: a block, or the model for the readout k = 2L."""
        return getattr(at, "final_res" if k == 2 * self.cfg.n_layers else base.side(k) + "_res")

    def _mixed(self, state: State, k: int, at: nn.Module, norm: Any) -> Tensor:
        """Return the normalised mixture of site k."""
        if self._reads_newest(state, k):
            return norm(state.sources[-1])
        return depth_mix(state.sources, self.mixer(k, at).product(), norm.weight, eps=self.cfg.attnres_eps)

    def _reads_newest(self, state: State, k: int) -> bool:
        return k == 0 or (state.copy_newest and (k % self.b == 0 or k == 2 * self.cfg.n_layers))

    def _at(self, position: int, model: Any) -> nn.Module:
        return model.blocks[position] if position < self.cfg.n_layers else model

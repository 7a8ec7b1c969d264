"""MoDA, mixture of depths attention, as in the DepthBench paper (arXiv 2609.32534): Pre-LN that attends to depth.

    h <- h + F_k(RMSNorm(h));    readout: h

The attention of block l also reads, in the same softmax, depth slots 0 .. 2l - 1 of its own token: slot 2j holds
K (before rotation) and V of attention j, slot 2j + 1 holds [K; V] = n Wkv^T of the FFN input n of block j. Depth keys
are not rotated, so alone among the designs MoDA depends on absolute positions. The last FFN has no Wkv.
The joint softmax is `depthbench_kernels.depth_attention`.
"""

from typing import Any, NamedTuple

from torch import Tensor, nn

from depthbench.model.layers import Linear, rotate
from depthbench.residuals import preln
from depthbench_kernels.depth_attention import depth_attention


class State(NamedTuple):
    """One stream, and the depth slots so far, each (B, T, G, e)."""

    h: Tensor  # (B, T, d)
    pending: preln.Write | None = None
    keys: tuple[Tensor, ...] = ()
    values: tuple[Tensor, ...] = ()


class Residual(preln.Residual):
    """h <- h + F(norm(h)), attention over sequence and depth."""

    skip_modes = ("mask", "released")

    def modules(self, l: int) -> dict[str, nn.Module]:
        own = super().modules(l)
        if l < self.cfg.n_layers - 1:
            own["ffn.w_kv"] = Linear(self.cfg.d_model, 2 * self.cfg.n_kv_heads * self.cfg.head_dim)
        return own

    def start(self, x0: Tensor, model: nn.Module, once: bool = False) -> State:
        return State(x0)

    def branch(self, x: Tensor, k: int, block: Any, memo: State) -> tuple[Tensor, State]:
        if k % 2 == 0:
            q, key, value = block.attn.heads(x)
            q, rotated = (rotate(t, self.cfg.rope_theta) for t in (q, key))
            out = block.attn.wo(depth_attention(q, rotated, value, memo.keys, memo.values).flatten(2))
        else:
            out = block.ffn(x)
            if k == 2 * self.cfg.n_layers - 1:
                return out, memo
            key, value = block.ffn.w_kv(x).unflatten(-1, (2, -1, self.cfg.head_dim)).unbind(2)
        return out, memo._replace(keys=(*memo.keys, key), values=(*memo.values, value))

    def skip(self, state: State, position: int, mode: str) -> State:
        if mode == "mask":
            return state
        zero = state.h.new_zeros(*state.h.shape[:2], self.cfg.n_kv_heads, self.cfg.head_dim)
        return state._replace(keys=(*state.keys, zero, zero), values=(*state.values, zero, zero))

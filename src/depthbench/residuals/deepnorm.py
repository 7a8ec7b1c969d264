"""DeepNorm (arXiv 2203.00555): Post-LN with a weighted stream and smaller initial branches.

    h <- LayerNorm(alpha h + F_k(h)),  alpha = (2 L)^(1/4);    readout: h, then the RMSNorm of the head

The norm centres and has no bias. wv, wo and the FFN start with std (8 L)^(-1/4) times the usual one.
"""

from typing import Any

import torch
from torch import Tensor, nn

from depthbench.model.config import ModelConfig
from depthbench.residuals import base, preln
from depthbench_kernels.norms import add_norm

SCALED = ("wv.weight", "wo.weight", "w_gate.weight", "w_up.weight", "w_down.weight")


class LayerNorm(nn.Module):
    """Gain of a LayerNorm without bias; `add_norm` applies it."""

    def __init__(self, d: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))


class Residual(preln.Residual):
    """h <- LayerNorm(alpha h + F(h)),  alpha = (2 L)^(1/4)."""

    exact_pathway = False

    def __init__(self, cfg: ModelConfig):
        super().__init__(cfg)
        self.alpha = (2 * cfg.n_layers) ** 0.25

    def modules(self, l: int) -> dict[str, nn.Module]:
        if l == self.cfg.n_layers:
            return super().modules(l)
        return {name: LayerNorm(self.cfg.d_model) for name in ("attn_post_norm", "ffn_post_norm")}

    def init_std(self, name: str, std: float | None) -> float | None:
        if std is not None and name.endswith(SCALED):
            return std * (8 * self.cfg.n_layers) ** -0.25
        return std

    def read(self, state: Any, k: int, block: nn.Module) -> tuple[Tensor, Any]:
        return state.h, state

    def write(self, memo: Any, k: int, block: nn.Module, out: Tensor) -> Any:
        gain = getattr(block, base.side(k) + "_post_norm").weight
        return memo._replace(h=add_norm(memo.h, out, gain, mode="post", alpha=self.alpha, eps=self.cfg.norm_eps)[0])

    def write_weights(self, state: Any, k: int, block: nn.Module, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total = self.alpha * state.h + out
        inverse = base.inverse_rms(
            total - total.mean(-1, keepdim=True), self.cfg.norm_eps
        )  # gain and centring left out
        return self.alpha * inverse[..., None], inverse, out

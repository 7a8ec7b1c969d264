"""Sandwich-LN, also Peri-LN (arXiv 2105.13290, 2502.02732): a norm on both sides of every branch.

h <- h + RMSNorm_post(F_k(RMSNorm(h)));    readout: h
"""

from typing import Any

from torch import Tensor, nn

from depthbench.model.layers import RMSNorm
from depthbench.residuals import base, preln


class Residual(preln.Residual):
    """h <- h + norm_post(F(norm(h)))."""

    def modules(self, l: int) -> dict[str, nn.Module]:
        own = super().modules(l)
        if l < self.cfg.n_layers:
            for name in ("attn_post_norm", "ffn_post_norm"):
                own[name] = RMSNorm(self.cfg.d_model, self.cfg.norm_eps)
        return own

    def pending(self, k: int, block: nn.Module, out: Tensor) -> preln.Write:
        return preln.Write(out, "sandwich", gain=getattr(block, base.side(k) + "_post_norm").weight)

    def write_weights(self, state: Any, k: int, block: nn.Module, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().write_weights(state, k, block, getattr(block, base.side(k) + "_post_norm")(out))

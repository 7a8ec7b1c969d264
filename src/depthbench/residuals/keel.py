"""KEEL: a norm around the weighted sum, Pre-LN branches. As in the DepthBench paper (arXiv 2609.32534).

    h <- RMSNorm_post(2 L h + F_k(RMSNorm(h)));    readout: h
    k = 0: h <- h + F(RMSNorm(h));    k = 1: h <- RMSNorm_post(h + F(RMSNorm(h)))

The stream stays float32: near 2 L = 140 neighbouring bfloat16 numbers lie 1 apart, as much as a branch adds.
"""

from typing import Any

from torch import Tensor, nn

from depthbench.residuals import base, preln, sandwich


class Residual(sandwich.Residual):
    """h <- norm_post(2 L h + F(norm(h)))."""

    float32_stream = True
    exact_pathway = False

    def modules(self, l: int) -> dict[str, nn.Module]:
        own = super().modules(l)
        if l == 0:
            del own["attn_post_norm"]
        return own

    def pending(self, k: int, block: nn.Module, out: Tensor) -> preln.Write:
        if k == 0:
            return preln.Write(out)
        alpha = 1.0 if k == 1 else 2.0 * self.cfg.n_layers
        return preln.Write(out, "keel", alpha, getattr(block, base.side(k) + "_post_norm").weight)

    def write_weights(self, state: Any, k: int, block: nn.Module, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        write = self.pending(k, block, out)
        carry, one, f = preln.Residual.write_weights(self, state, k, block, out)
        if k == 0:
            return carry, one, f
        inverse = base.inverse_rms(write.alpha * state.h + out, self.cfg.norm_eps)  # the norm without its gain
        return write.alpha * inverse[..., None], inverse, f

"""MoDA with Post-LN (DepthBench, arXiv 2609.32534, Table 5): the norm stands behind the addition.

    h <- RMSNorm_post(h + F_k(h));    readout: h, then the norm of the head

There are no pre-norms: attention and depth slots read h itself.
"""

from typing import Any

from torch import Tensor, nn

from depthbench.residuals import base, moda
from depthbench_kernels.norms import add_norm


class Residual(moda.Residual):
    """h <- norm_post(h + F(h)), attention over sequence and depth."""

    exact_pathway = False

    def modules(self, l: int) -> dict[str, nn.Module]:
        return {name.replace("_norm", "_post_norm"): module for name, module in super().modules(l).items()}

    def read(self, state: moda.State, k: int, block: nn.Module) -> tuple[Tensor, moda.State]:
        return state.h, state

    def write(self, memo: moda.State, k: int, block: nn.Module, out: Tensor) -> moda.State:
        norm: Any = getattr(block, base.side(k) + "_post_norm")
        return memo._replace(h=add_norm(memo.h, out, norm.weight, eps=norm.eps)[1])

    def write_weights(self, state: moda.State, k: int, block: nn.Module, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inverse = base.inverse_rms(state.h + out, self.cfg.norm_eps)  # the norm without its gain
        return inverse[..., None], inverse, out

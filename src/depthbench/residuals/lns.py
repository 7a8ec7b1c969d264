"""LayerNorm Scaling (arXiv 2502.05795): Pre-LN whose branches read a norm that shrinks with depth.

    h <- h + F_k(RMSNorm(h) / sqrt(l + 1)),  l = 0, 1, ...;    readout: h, not scaled

The factor is part of the block's function: it stays with the block's tensors wherever they stand.
"""

from typing import Any

from depthbench.residuals import preln


class Residual(preln.Residual):
    """h <- h + F(norm(h) / sqrt(l + 1))."""

    def scale(self, block: Any) -> float:
        return (block.index + 1) ** -0.5

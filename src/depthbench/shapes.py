"""Shapes of equal size: for each depth the width whose size comes nearest to a budget (arXiv 2609.32534, Section 3).

Every width gives an even head size, so it is a multiple of 2 n_heads; d_ff = 8 d / 3 rounded up to a multiple of 16, or
`ffn_ratio` d. Sizes are those of the paper's tables: matrices only, no norm gains, Pre-LN.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from depthbench.errors import UserError
from depthbench.model.config import ModelConfig


@dataclass(frozen=True)
class Rule:
    """What all shapes of a budget share."""

    n_heads: int
    vocab_size: int
    n_kv_heads: int | None = None
    ffn_ratio: int | None = None

    def model(self, n_layers: int, d_model: int) -> ModelConfig:
        """Return the Pre-LN model of a shape.

        Raises:
            UserError: E-CONFIG if the width does not suit the heads.
        """
        ffn: dict[str, Any] = {"d_ff": self.ffn_ratio * d_model} if self.ffn_ratio else {}
        return ModelConfig(
            design="preln",
            d_model=d_model,
            n_layers=n_layers,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads or self.n_heads,
            vocab_size=self.vocab_size,
            **ffn,
        )


def solve(rule: Rule, depths: Sequence[int], budget: int, backbone: bool = False) -> list[ModelConfig]:
    """Return for each depth the model nearest to `budget` parameters: of all matrices, or of the backbone.

    Raises:
        UserError: E-CONFIG if even the narrowest model of a depth is more than twice the budget.
    """
    return [_nearest(rule, n_layers, budget, backbone) for n_layers in depths]


def _nearest(rule: Rule, n_layers: int, budget: int, backbone: bool) -> ModelConfig:
    def size(width: int) -> int:
        model = rule.model(n_layers, width)
        return model.backbone_params() if backbone else model.table_params()

    step = 2 * rule.n_heads
    width = step
    if size(width) > 2 * budget:
        raise UserError(
            "E-CONFIG", f"budget {budget:,}: {n_layers} layers of width {step} have {size(step):,} parameters already; "
            "take fewer heads, fewer layers or a larger budget"
        )  # fmt: skip
    while size(width + step) <= budget:  # the size grows with the width
        width += step
    best = min((width, width + step), key=lambda d: abs(size(d) - budget))
    return rule.model(n_layers, best)

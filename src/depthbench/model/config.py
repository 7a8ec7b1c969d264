"""Shape and options of a model, and its parameter counts in closed form. No torch here: planning stays fast.

Matrices, as the paper's tables count them (L blocks, width d, H query and G key/value heads of width e, FFN
width f):

    table = 2 V d + L (2 d H e + 2 d G e + 3 d f)

The true count adds the norm gains, (2 L + 1) d, and what the design has of its own.
Source: DepthBench (arXiv 2609.32534), Tables 3, 6, 7, 8 and 9.
"""

from dataclasses import dataclass, fields
from math import isfinite
from typing import Any

from depthbench.designs import DESIGNS
from depthbench.errors import UserError

DERIVED: Any = None  # filled from other keys
CHOICES = {"hc_readout": ("sum_then_norm", "norm_then_sum"), "init": ("default", "legacy")}


@dataclass(frozen=True)
class ModelConfig:
    """All that decides a model's architecture; keys that are left out follow from the others.

    Raises UserError E-CONFIG with one line per key that cannot be used.
    """

    design: str
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int = DERIVED  # n_heads
    head_dim: int = DERIVED  # d_model / n_heads
    d_ff: int = DERIVED  # 8 d_model / 3, rounded up to a multiple of 16
    vocab_size: int = 50280
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    init_std: float = 0.02
    n_streams: int = 4
    hc_rms_eps: float = DERIVED  # norm_eps
    mhc_rms_eps: float = DERIVED  # norm_eps
    sinkhorn_iters: int = 20
    sinkhorn_eps: float = 1e-6
    attnres_eps: float = DERIVED  # norm_eps
    attnres_block_size: int = DERIVED  # 2 n_layers / 8, rounded up: at most 8 blocks
    hc_readout: str = "sum_then_norm"
    init: str = "default"  # "legacy": mHC with a zero bias and a drawn projection

    @classmethod
    def read(cls, values: dict[str, Any]) -> "ModelConfig":
        """Return the configuration of plain values, as a spec holds them; raises UserError E-CONFIG."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise UserError("E-CONFIG", f"model: unknown {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        if lacking := [key for key in ("design", "d_model", "n_layers", "n_heads") if key not in values]:
            raise UserError("E-CONFIG", f"model: {', '.join(lacking)} missing; give them")
        return cls(**values)

    def __post_init__(self) -> None:
        self._check_values()
        derived = {
            "n_kv_heads": self.n_heads,
            "head_dim": self.d_model // self.n_heads,
            "d_ff": -(-8 * self.d_model // 48) * 16,
            "hc_rms_eps": self.norm_eps,
            "mhc_rms_eps": self.norm_eps,
            "attnres_eps": self.norm_eps,
            "attnres_block_size": -(-2 * self.n_layers // 8),
        }
        for key, value in derived.items():
            if getattr(self, key) is DERIVED:
                object.__setattr__(self, key, value)
        self._check_heads()

    def _check_values(self) -> None:
        problems = []
        if self.design not in DESIGNS:
            problems.append(f"design={self.design!r}: unknown; choose one of {', '.join(DESIGNS)}")
        for key, known in CHOICES.items():
            if getattr(self, key) not in known:
                problems.append(f"{key}={getattr(self, key)!r}: unknown; choose one of {', '.join(known)}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is str or value is DERIVED:
                continue
            if field.type is int and (type(value) is not int or value < 1):
                problems.append(f"{field.name}={value!r}: not a whole number above 0; give one")
            elif type(value) not in (int, float) or not isfinite(value) or value <= 0:
                problems.append(f"{field.name}={value!r}: not a number above 0; give one")
        if problems:
            raise UserError("E-CONFIG", *problems)

    def _check_heads(self) -> None:
        problems = []
        if self.d_model != self.n_heads * self.head_dim:
            problems.append(
                f"d_model={self.d_model}: not n_heads x head_dim = {self.n_heads} x {self.head_dim}; "
                "choose a multiple of n_heads and leave head_dim out"
            )
        if self.head_dim % 2:
            problems.append(
                f"head_dim={self.head_dim}: odd, rotary positions need an even one; change d_model or n_heads"
            )
        if self.n_heads % self.n_kv_heads:
            problems.append(
                f"n_kv_heads={self.n_kv_heads}: does not divide n_heads={self.n_heads}; choose a divisor of n_heads"
            )
        if problems:
            raise UserError("E-CONFIG", *problems)

    def table_params(self) -> int:
        """Return the size as the paper's tables print it: backbone and both embeddings, no norm gains."""
        return 2 * self.vocab_size * self.d_model + self.backbone_params()

    def backbone_params(self) -> int:
        """Return the matrices of the blocks alone, the paper's "backbone"."""
        d, heads = self.d_model, 2 * (self.n_heads + self.n_kv_heads)
        return self.n_layers * (d * heads * self.head_dim + 3 * d * self.d_ff)

    def count_params(self) -> int:
        """Return the true number of parameters; other than built-in designs are counted on the meta device."""
        d, L, m = self.d_model, self.n_layers, self.n_streams
        kv = 2 * d * self.n_kv_heads * self.head_dim * (L - 1)
        own = dict.fromkeys(("preln", "lns", "deepnorm"), 0) | {
            "sandwich": 2 * d * L,
            "keel": (2 * L - 1) * d,
            "hc": 2 * L * ((m + 2) * d + m * m + 2 * m + 2),
            "mhc": 2 * L * ((m * m + 2 * m) * (m * d + 1) + 3),
            "attnres_full": 4 * d * L,
            "attnres_block": 4 * d * L,
            "moda": kv,
            "moda_postln": kv,
        }
        if self.design in own:
            return self.table_params() + (2 * L + 1) * d + own[self.design]
        import torch

        from depthbench.model.backbone import Model

        with torch.device("meta"):
            return sum(p.numel() for p in Model(self).parameters())

"""What a residual design is: how sub-layers read from and write to a state that runs through the depth.

k = 0 .. 2L-1 counts sub-layers (even: attention, odd: FFN) and is the position; `block` owns the learned
tensors and may be one that stands elsewhere (`block.index`). A state is a tuple of tensors (batch first),
numbers and None, and is never changed in place. `write` may leave its write pending in the state, so that
"write of k, read of k + 1, norm" is one call of one fused operation; `settle` resolves it.
"""

from typing import Any

from torch import Tensor, nn

from depthbench.model.config import ModelConfig
from depthbench.model.layers import RMSNorm


def side(k: int) -> str:
    """Return which branch sub-layer k is."""
    return ("attn", "ffn")[k % 2]


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """Return 1 / sqrt(mean(x^2) + eps) over the last dimension, kept as size 1."""
    return x.square().mean(-1, keepdim=True).add(eps).rsqrt()


class Residual:
    """Base of all designs; `cfg` is the model's configuration."""

    no_decay: tuple[str, ...] = ()  # last parts of the names of parameters without weight decay
    float32_parameters: tuple[str, ...] = ()  # parts of names that stay float32 when weights are bfloat16
    float32_stream = False  # True: the state stays float32 under autocast
    skip_modes: tuple[str, ...] = ("mask",)  # those of `model.backbone.SKIP_MODES` that differ for this design
    exact_pathway = True  # False: the pathway weights leave out gains or centring of norms around the sum

    def __init__(self, cfg: ModelConfig):
        self.cfg = cfg

    def modules(self, l: int) -> dict[str, nn.Module]:
        """Return the own modules of block l by name ("ffn.x" goes inside the FFN).

        l = L: those of the head, `norm` included.
        """
        names = ("attn_norm", "ffn_norm") if l < self.cfg.n_layers else ("norm",)
        return {name: RMSNorm(self.cfg.d_model, self.cfg.norm_eps) for name in names}

    def init_std(self, name: str, std: float | None) -> float | None:
        """Return the std to draw `name` with; the default comes in, None keeps the value as built."""
        return std

    def start(self, x0: Tensor, model: nn.Module, once: bool = False) -> Any:
        """Return the state that holds the embedding x0 (B, T, d).

        `once` promises that each state is used once and in order, as in a training forward: a workspace is
        allowed.
        """
        raise NotImplementedError

    def read(self, state: Any, k: int, block: nn.Module) -> tuple[Tensor, Any]:
        """Return the normalised input of sub-layer k and a memo: all that `write` needs."""
        raise NotImplementedError

    def branch(self, x: Tensor, k: int, block: nn.Module, memo: Any) -> tuple[Tensor, Any]:
        """Return the output of sub-layer k and the memo."""
        return getattr(block, side(k))(x), memo

    def write(self, memo: Any, k: int, block: nn.Module, out: Tensor) -> Any:
        """Return the state behind sub-layer k."""
        raise NotImplementedError

    def settle(self, state: Any) -> Any:
        """Return the same state without a pending write; settled states can be stacked along the batch."""
        return state

    def skip(self, state: Any, position: int, mode: str) -> Any:
        """Return the settled state behind `position` with the block there left out.

        `mode` is one of `model.backbone.SKIP_MODES`: "mask" takes the block out of everything that later
        blocks read, "released" follows the paper's public code where that differs.
        """
        return state

    def represent(self, state: Any, position: int, model: nn.Module) -> Tensor:
        """Return the depth state z_position of a settled state."""
        raise NotImplementedError

    def finish(self, state: Any, position: int, model: nn.Module) -> Tensor:
        """Return the normalised input of the LM head made from z_position; L: the model's own readout."""
        raise NotImplementedError

    # For the pathway analyses: how sub-layer inputs are made of branch outputs, coefficients held fixed. In the
    # state of `start` every row is the embedding.

    def read_weights(self, state: Any, k: int, at: nn.Module) -> Tensor:
        """Return (B, T, rows): u_k is this combination of the rows; k = 2L: the readout, `at` the model."""
        raise NotImplementedError

    def write_weights(self, state: Any, k: int, block: nn.Module, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return carry (..., rows, rows'), write (..., rows') and f: rows' <- carry^T rows + write f.

        f is the branch output as it enters the residual rule.
        """
        raise NotImplementedError

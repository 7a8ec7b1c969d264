"""One pass through all sub-layers, with the weights that each reads and writes with.

A state is a list of rows (streams, sources), all of them the embedding at the start:

    u_k = sum_r read_r row_r;    f_k = F_k(norm(u_k));    rows' = carry^T rows + write f_k
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from depthbench.analyses._baseline import start
from depthbench.device import compute_type
from depthbench.model.backbone import Model

TOKENS_AT_ONCE = 2048  # AttnRes stacks its 2L + 1 sources at every site


class Write(NamedTuple):
    """What `residuals.base.Residual.write_weights` returns, float32."""

    carry: Tensor  # (..., rows, rows'), without the leading dimensions where it is the same for all tokens
    write: Tensor  # (..., rows')
    f: Tensor  # (B, T, d)


class Site(NamedTuple):
    """Sub-layer k, or the readout k = 2L, which writes nothing."""

    k: int
    at: nn.Module  # the block, or the model
    state: Any  # in front of it, settled
    read: Tensor  # (B, T, rows), float32
    written: Write | None


def sites(model: Model, tokens: Tensor, compute: str = "float32") -> Iterator[Site]:
    """Yield all sub-layers and the readout of a model that reads `tokens` (B, T)."""
    residual = model.residual
    with compute_type(compute, tokens.device):
        state = start(model, tokens)
    for k in range(2 * model.cfg.n_layers):
        block = model.blocks[k // 2]
        with compute_type(compute, tokens.device):
            read = residual.read_weights(state, k, block).float()
            following, out = model.sublayer(k, state, block)
            written = Write(*(part.float() for part in residual.write_weights(state, k, block, out)))
        yield Site(k, block, state, read, written)
        state = residual.settle(following)
    k = 2 * model.cfg.n_layers
    with compute_type(compute, tokens.device):
        read = residual.read_weights(state, k, model).float()
    yield Site(k, model, state, read, None)


def parts(tokens: Tensor) -> tuple[Tensor, ...]:
    """Return a batch a few documents at a time."""
    return tokens.split(max(1, TOKENS_AT_ONCE // tokens.shape[1]))

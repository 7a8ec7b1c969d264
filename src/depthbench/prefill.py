"""Prefill: one forward pass over a prompt that fills the key/value cache and gives the logits of its last position.

Residual designs act on each token alone, so the prompt may be taken in chunks: the state through the depth (sources
of AttnRes, streams of HC) then exists for one chunk at a time, and only keys and values stay. Attention of a chunk
that begins at position s reads the cache up to its own end:

    out_t = softmax(q_t . K_{0..t} / sqrt(e)) V_{0..t},    t = s .. s + n - 1

All chunks together give what the whole pass gives, up to rounding.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from depthbench.errors import UserError
from depthbench.model.backbone import Model
from depthbench.model.config import ModelConfig
from depthbench.model.layers import Attention, rotary_tables, turn
from depthbench.residuals.base import Residual

BUFFER_BYTES = 2**29  # of the widest state of a chunk
LEAST_CHUNKS = 4


class Prefill(NamedTuple):
    """What a prefill leaves."""

    logits: Tensor  # (B, V), of the last position
    keys: Tensor  # (L, B, T, G, e), rotated
    values: Tensor  # (L, B, T, G, e)


def chunk_tokens(cfg: ModelConfig, n_positions: int, batch: int, bytes_per_number: int) -> int:
    """Return the length of a chunk: a quarter of the prompt, less where a state would not stay within 0.5 GiB.

    The state counted is the widest of all designs, the 2 L + 1 sources of Full AttnRes or m streams: designs of one
    shape are compared at one length.
    """
    per_position = batch * max(2 * cfg.n_layers + 1, cfg.n_streams) * cfg.d_model * bytes_per_number
    return max(1, min(-(-n_positions // LEAST_CHUNKS), BUFFER_BYTES // per_position))


@torch.no_grad()
def prefill(model: Model, tokens: Tensor, chunk: int | None = None) -> Prefill:
    """Run the prompts, (B, T) int64, in chunks of `chunk` positions; None: all at once.

    Raises:
        UserError: E-PREFILL for a design that replaces the branch functions, as MoDA does.
    """
    residual = model.residual
    if type(residual).branch is not Residual.branch:
        raise UserError(
            "E-PREFILL", f"{model.cfg.design}: its attention is its own and keeps no cache; take another design"
        )
    cached, start = _Cached(model, tokens), 0
    for part in tokens.split(chunk or tokens.shape[1], dim=1):
        features = cached.run(start, part)
        start += part.shape[1]
    return Prefill(model.lm_head(features[:, -1]), cached.keys, cached.values)


class _Cached:
    """A model with the cache and the rotary tables of one prefill."""

    def __init__(self, model: Model, tokens: Tensor):
        cfg, self.model, device = model.cfg, model, tokens.device.type
        under_autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if under_autocast else model.lm_head.weight.dtype
        size = (cfg.n_layers, *tokens.shape, cfg.n_kv_heads, cfg.head_dim)
        self.keys, self.values = (torch.empty(size, dtype=dtype, device=tokens.device) for _ in range(2))
        wide = torch.promote_types(dtype, torch.float32)
        self.tables = rotary_tables(tokens.shape[1], cfg.head_dim, cfg.rope_theta, wide, tokens.device)

    def run(self, start: int, tokens: Tensor) -> Tensor:
        """Return the normalised input of the LM head of one chunk, (B, n, d)."""
        model, residual = self.model, self.model.residual
        state = residual.start(model.embedded(tokens), model, once=True)
        for k in range(2 * model.cfg.n_layers):
            block: Any = model.blocks[k // 2]
            x, memo = residual.read(state, k, block)
            if k % 2:
                out, memo = residual.branch(x, k, block, memo)
            else:
                out = self.attend(block.attn, k // 2, start, x)
            state = residual.write(memo, k, block, out)
        return residual.finish(state, model.cfg.n_layers, model)

    def attend(self, attn: Attention, layer: int, start: int, x: Tensor) -> Tensor:
        """Return the attention of one chunk over the cache, which takes its keys and values in."""
        end = start + x.shape[1]
        q, key, value = attn.heads(x)
        q, key = (turn(t, *(table[start:end] for table in self.tables)) for t in (q, key))
        self.keys[layer, :, start:end], self.values[layer, :, start:end] = key, value
        k, v = (cache[layer, :, :end].transpose(1, 2) for cache in (self.keys, self.values))
        # `is_causal` is for queries that begin where the keys do
        mask = torch.ones(end - start, end, dtype=torch.bool, device=x.device).tril(start) if start else None
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=attn.grouped
        )
        return attn.wo(out.transpose(1, 2).flatten(2))

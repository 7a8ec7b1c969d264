"""Norm, rotary positions and the two branch functions of a LLaMA-like block; no biases anywhere.

    attention:  q, k, v = n Wq^T, n Wk^T, n Wv^T;  q, k rotated
                F(n) = concat over heads (softmax(q k^T / sqrt(e) + causal mask) v) Wo^T
    FFN:        F(n) = (silu(n Wgate^T) * (n Wup^T)) Wdown^T
    rotation:   channel i < e/2 pairs with i + e/2 ("rotate half"), angle t theta^(-2i/e), t from 0

Shapes: B batch, T positions, d width, H query heads, G key/value heads, e head width. Query head h uses
key/value head floor(h / (H / G)).
"""

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthbench.model.config import ModelConfig
from depthbench_kernels.norms import rms_norm


class Linear(nn.Linear):
    """A linear layer without bias whose weight `build_model` draws."""

    def __init__(self, d_in: int, d_out: int):
        super().__init__(d_in, d_out, bias=False)

    def reset_parameters(self) -> None:
        """Draw nothing: PyTorch's own draw would use the global generator."""


class Embedding(nn.Embedding):
    """A token embedding whose weight `build_model` draws."""

    def reset_parameters(self) -> None:
        """Draw nothing: PyTorch's own draw would use the global generator."""


class RMSNorm(nn.Module):
    """gain * x / sqrt(mean(x^2) + eps) over the last dimension."""

    def __init__(self, d: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised x in its own dtype."""
        return rms_norm(x, self.weight, eps=self.eps)


def rotary_tables(
    n_positions: int, head_dim: int, theta: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return cosines and signed sines, (T, 1, e): rotated x = x cos + (x with its halves exchanged) sin.

    They belong to no module: casting a model leaves them as they are.
    """
    with torch.inference_mode(False):  # the same tables serve training
        channel = torch.arange(0, head_dim, 2, device=device, dtype=torch.float64)
        position = torch.arange(n_positions, device=device, dtype=torch.float64)
        angle = position[:, None, None] * theta ** (-channel / head_dim)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


_cached_tables = lru_cache(maxsize=8)(rotary_tables)


def rotate(x: Tensor, theta: float) -> Tensor:
    """Return x (B, T, heads, e) with rotary positions; the rotation is float32 or better."""
    tables = rotary_tables if torch.compiler.is_compiling() else _cached_tables  # a compiler merges the repetitions
    return turn(x, *tables(x.shape[1], x.shape[-1], theta, torch.promote_types(x.dtype, torch.float32), x.device))


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x (B, T, heads, e) rotated by the tables of its positions, (T, 1, e)."""
    return (x * cos).addcmul(x.roll(x.shape[-1] // 2, -1), sin).to(x.dtype)


class Attention(nn.Module):
    """Causal attention with rotary positions and grouped key/value heads."""

    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.head_dim, self.theta, self.grouped = cfg.head_dim, cfg.rope_theta, cfg.n_kv_heads < cfg.n_heads
        self.wq = Linear(cfg.d_model, cfg.n_heads * cfg.head_dim)
        self.wk = Linear(cfg.d_model, cfg.n_kv_heads * cfg.head_dim)
        self.wv = Linear(cfg.d_model, cfg.n_kv_heads * cfg.head_dim)
        self.wo = Linear(cfg.n_heads * cfg.head_dim, cfg.d_model)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, T, H, e), keys and values (B, T, G, e), none of them rotated."""
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.wq, self.wk, self.wv))
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        """Return the branch output, (B, T, d) -> (B, T, d)."""
        q, k, v = self.heads(x)
        q, k, v = (t.transpose(1, 2) for t in (rotate(q, self.theta), rotate(k, self.theta), v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        return self.wo(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.w_gate = Linear(cfg.d_model, cfg.d_ff)
        self.w_up = Linear(cfg.d_model, cfg.d_ff)
        self.w_down = Linear(cfg.d_ff, cfg.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Return the branch output, (B, T, d) -> (B, T, d)."""
        return self.w_down(F.silu(self.w_gate(x)) * self.w_up(x))

"""Definition of attention over sequence and depth, in plain PyTorch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from depthbench_kernels._dtypes import arithmetic


def depth_attention(
    q: Tensor, k: Tensor, v: Tensor, depth_keys: Sequence[Tensor], depth_values: Sequence[Tensor]
) -> Tensor:
    """Return the attention output, (B, T, H, e)."""
    T, G, wide = q.shape[1], k.shape[2], arithmetic(q)
    with torch.autocast(q.device.type, enabled=False):
        Q = q.to(wide).unflatten(2, (G, -1)) * q.shape[-1] ** -0.5
        scores = torch.einsum("btgre,bsge->btgrs", Q, k.to(wide))
        future = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future[:, None, None], -torch.inf)
        slots = [(Q * K.to(wide).unsqueeze(3)).sum(-1, keepdim=True) for K in depth_keys]
        p = torch.cat([scores, *slots], -1).softmax(-1)
        out = torch.einsum("btgrs,bsge->btgre", p[..., :T], v.to(wide))
        for j, V in enumerate(depth_values):
            out = out + p[..., T + j, None] * V.to(wide).unsqueeze(3)
    return out.flatten(2, 3).to(q.dtype)

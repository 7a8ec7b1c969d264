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
        # split, not indexed: backward would fill a matrix of all positions for each slot
        seen, *depth = torch.cat([scores, *slots], -1).softmax(-1).split([T, *[1] * len(slots)], -1)
        out = torch.einsum("btgrs,bsge->btgre", seen, v.to(wide))
        for p, V in zip(depth, depth_values, strict=True):
            out = out + p * V.to(wide).unsqueeze(3)
    return out.flatten(2, 3).to(q.dtype)

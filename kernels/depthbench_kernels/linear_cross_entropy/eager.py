"""LM head and cross-entropy in chunks of tokens; the gradients are computed in the forward pass.

Per chunk: logits, loss, p = softmax(logits) - onehot(target), dx = p weight, dweight += p^T x. Nothing is
recomputed, and the backward pass only multiplies by the upstream gradient.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from depthbench_kernels._dtypes import arithmetic

CHUNK = 2048  # tokens


def linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, ignore_index: int = -100) -> Tensor:
    """Return the summed negative log-likelihood."""
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _LinearCrossEntropy.apply(x, weight, target, ignore_index)
    return _loss(x, weight, target, ignore_index, None, None)


def _loss(
    x: Tensor, weight: Tensor, target: Tensor, ignore_index: int, dx: Tensor | None, dweight: Tensor | None
) -> Tensor:
    """Return the loss; fill dx and add to dweight where they are given."""
    device, wide = x.device.type, arithmetic(x, weight)
    matmul_dtype = torch.promote_types(x.dtype, weight.dtype)
    if torch.is_autocast_enabled(device):
        matmul_dtype = torch.get_autocast_dtype(device)
    weight = weight.to(matmul_dtype)
    loss = torch.zeros((), dtype=wide, device=x.device)
    with torch.autocast(device, enabled=False):
        for start in range(0, len(x), CHUNK):
            chunk = slice(start, start + CHUNK)
            x_chunk = x[chunk].to(matmul_dtype)
            ignored = (target[chunk] == ignore_index).unsqueeze(1)
            index = target[chunk].unsqueeze(1).masked_fill(ignored, 0)
            log_p = torch.log_softmax(x_chunk @ weight.T, -1, dtype=wide)
            loss -= log_p.gather(1, index).masked_fill_(ignored, 0).sum()
            if dx is None and dweight is None:
                continue
            p = log_p.exp_().scatter_add_(1, index, log_p.new_full(index.shape, -1.0)).to(matmul_dtype)
            # Ignored tokens are cleared in the (tokens, d) operands, which are smaller than p.
            if dx is not None:
                dx[chunk] = (p @ weight).masked_fill_(ignored, 0)
            if dweight is not None:
                dweight += p.T @ x_chunk.masked_fill(ignored, 0)
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, target: Tensor, ignore_index: int) -> Tensor:
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        # Summed over chunks in float32 whatever the matrix products run in.
        dweight = torch.zeros_like(weight, dtype=arithmetic(weight)) if ctx.needs_input_grad[1] else None
        loss = _loss(x, weight, target, ignore_index, dx, dweight)
        ctx.save_for_backward(dx, None if dweight is None else dweight.to(weight.dtype))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        dx, dweight = ctx.saved_tensors
        scaled = [None if g is None else (g * grad).to(g.dtype) for g in (dx, dweight)]
        return *scaled, None, None

"""Attention over sequence and depth on a CPU: PyTorch's flash attention for the sequence, slots where they lie.

With the sequence part (o', lse') and slot scores s_j, lse = log(exp lse' + sum_j exp s_j):

    out = exp(lse' - lse) o' + sum_j p_j V_j,    p_j = exp(s_j - lse)

Backward, D = grad . out:

    dV_j = p_j grad;    ds_j = p_j (grad . V_j - D);    dK_j = ds_j q / sqrt(e);    dq = sum_j ds_j K_j / sqrt(e) + ...

The sequence part of the gradients is that of flash attention with the joint out and lse in place of its own: it
takes both from outside and forms exp(s - lse) and D of them. So no T x T matrix is built. No public function
returns lse: on other devices than a CPU it is the reference, block by block computed again for backward, since its
matrices of all blocks fit on no GPU.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from depthbench_kernels._dtypes import arithmetic
from depthbench_kernels.depth_attention import reference

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def depth_attention(
    q: Tensor, k: Tensor, v: Tensor, depth_keys: Sequence[Tensor], depth_values: Sequence[Tensor]
) -> Tensor:
    """Return the attention output, (B, T, H, e)."""
    if not depth_keys:
        return F.scaled_dot_product_attention(*_heads(q, k, v), is_causal=True).transpose(1, 2)
    if q.device.type != "cpu":
        return recomputed(q, k, v, depth_keys, depth_values)
    return _DepthAttention.apply(q, k, v, *depth_keys, *depth_values)


def recomputed(q: Tensor, k: Tensor, v: Tensor, depth_keys: Sequence[Tensor], depth_values: Sequence[Tensor]) -> Tensor:
    """Return the reference's output, (B, T, H, e); only what goes in is kept for backward."""
    inputs = (q, k, v, depth_keys, depth_values)
    out = checkpoint(reference.depth_attention, *inputs, use_reentrant=False, preserve_rng_state=False)
    return cast(Tensor, out)


def _heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return all three as (B, H, T, e), key/value heads repeated."""
    repeats = q.shape[2] // k.shape[2]
    if repeats > 1:
        k, v = k.repeat_interleave(repeats, 2), v.repeat_interleave(repeats, 2)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


class _DepthAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *slots: Tensor) -> Tensor:
        (B, T, H, e), G, n, wide = q.shape, k.shape[2], len(slots) // 2, arithmetic(q)
        with torch.autocast(q.device.type, enabled=False):
            out, lse = _flash(*_heads(q, k, v), 0.0, True)
            Q = q.to(wide).view(B, T, G, -1, e)
            scores = [lse.transpose(1, 2).to(wide).view(B, T, G, -1)]
            scores += [(Q * K.to(wide).unsqueeze(3)).sum(-1).mul_(e**-0.5) for K in slots[:n]]
            joint = torch.stack(scores)
            lse = joint.logsumexp(0)
            p = joint.sub_(lse).exp_().unsqueeze(-1)
            total = out.transpose(1, 2).to(wide).view(Q.shape) * p[0]
            for p_j, V in zip(p[1:], slots[n:], strict=True):
                total.addcmul_(p_j, V.to(wide).unsqueeze(3))
            out = total.view(q.shape).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse.view(B, T, H), p[1:], *slots)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        q, k, v, out, lse, p, *slots = ctx.saved_tensors
        (B, T, _, e), G, n, wide = q.shape, k.shape[2], len(p), p.dtype
        with torch.autocast(q.device.type, enabled=False):
            joint = (grad.transpose(1, 2), *_heads(q, k, v), out.transpose(1, 2), lse.transpose(1, 2))
            dq, dk, dv = (t.transpose(1, 2) for t in _flash_backward(*joint, 0.0, True))
            dk, dv = (t.unflatten(2, (G, -1)).sum(3) for t in (dk, dv))
            Q, O, dO = (t.to(wide).view(B, T, G, -1, e) for t in (q, out, grad))
            dQ = dq.to(wide).reshape(Q.shape)
            D = (dO * O).sum(-1, keepdim=True)
            dkeys, dvalues = [], []
            for p_j, K, V in zip(p, slots[:n], slots[n:], strict=True):
                ds = (dO * V.to(wide).unsqueeze(3)).sum(-1, keepdim=True).sub_(D).mul_(p_j).mul_(e**-0.5)
                dQ = dQ.addcmul_(ds, K.to(wide).unsqueeze(3))
                dkeys.append((ds * Q).sum(3).to(K.dtype))
                dvalues.append((p_j * dO).sum(3).to(V.dtype))
        return dQ.view(q.shape).to(q.dtype), dk, dv, *dkeys, *dvalues

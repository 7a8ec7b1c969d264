"""Sinkhorn normalisation of one small matrix per token, with few kernels: the tokens lie innermost.

    P = softmax over dim 1 + eps;    P /= sum over dim 0 + eps;
    then iters - 1 times:  P /= sum over dim 1 + eps;    P /= sum over dim 0 + eps

P lies in a buffer with a border of eps, so one sum gives a divisor. Backward walks back from the result: of
P' = P / s with s = sum P + eps it follows dP = (dP' - sum(dP' P')) / s, so the product Q = dP P takes the short step
Q = Q' - sum(Q') P', and P' s is P again. It needs the divisors, (2 iters - 1) m numbers a token; to compute them
again would cost as much time as the forward pass.
"""

from collections.abc import Sequence

from torch import Tensor


def sinkhorn(logits: Tensor, iters: int, eps: float) -> tuple[Tensor, list[Tensor]]:
    """Return P, (m, m, tokens) like the logits, and the divisors of all steps."""
    m = len(logits)
    buffer = logits.new_full((m + 1, m + 1, logits.shape[2]), eps)
    P = buffer[:m, :m].add_(logits.softmax(1))
    bordered, divisors = (buffer[:, :m], buffer[:m]), []
    for dim in _steps(iters):
        divisors.append(bordered[dim].sum(dim, keepdim=True))
        P.div_(divisors[-1])
    return P, divisors


def sinkhorn_backward(logits: Tensor, P: Tensor, divisors: Sequence[Tensor], dP: Tensor, eps: float) -> Tensor:
    """Return the gradient of the logits; P, which `sinkhorn` returned, is overwritten."""
    Q = dP * P
    for dim, divisor in zip(reversed(_steps((len(divisors) + 1) // 2)), reversed(divisors), strict=True):
        Q.addcmul_(Q.sum(dim, keepdim=True), P, value=-1)
        P.mul_(divisor)
    start = logits.softmax(1)
    Q.mul_(start).div_(start + eps)
    return Q.addcmul_(Q.sum(1, keepdim=True), start, value=-1)


def _steps(iters: int) -> list[int]:
    """Return the dimension that each step sums over."""
    return [0, *[1, 0] * (iters - 1)]

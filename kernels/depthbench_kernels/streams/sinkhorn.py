"""Sinkhorn normalisation of one small matrix per token, with few kernels: the tokens lie innermost.

    P = softmax over dim 1 + eps;    P /= sum over dim 0 + eps;
    then iters - 1 times:  P /= sum over dim 1 + eps;    P /= sum over dim 0 + eps

P lies in a buffer with a border of eps, so one sum gives a divisor. Nothing is kept for backward, which reruns the
iterations from the logits and walks them back. Of P' = P / s with s = sum P + eps it follows
dP = (dP' - sum(dP' P')) / s, so the product Q = dP P takes the short step Q = Q' - sum(Q') P'.
"""

from torch import Tensor


def sinkhorn(logits: Tensor, iters: int, eps: float) -> Tensor:
    """Return P, (m, m, tokens) like the logits."""
    P, divided = _bordered(logits.softmax(1), eps)
    for dim in _steps(iters):
        P.div_(divided[dim].sum(dim, keepdim=True))
    return P


def sinkhorn_backward(logits: Tensor, dP: Tensor, iters: int, eps: float) -> Tensor:
    """Return the gradient of the logits."""
    start, steps, divisors = logits.softmax(1), _steps(iters), []
    P, divided = _bordered(start, eps)
    for dim in steps:
        divisors.append(divided[dim].sum(dim, keepdim=True))
        P.div_(divisors[-1])
    Q = dP * P
    for dim in reversed(steps):
        Q.addcmul_(Q.sum(dim, keepdim=True), P, value=-1)
        P.mul_(divisors.pop())
    Q.mul_(start).div_(start + eps)
    return Q.addcmul_(Q.sum(1, keepdim=True), start, value=-1)


def _bordered(start: Tensor, eps: float) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return start + eps inside a border of eps, and it with the border that a sum over dim 0 or 1 takes in."""
    m = len(start)
    buffer = start.new_full((m + 1, m + 1, start.shape[2]), eps)
    P = buffer[:m, :m].add_(start)
    return P, (buffer[:, :m], buffer[:m])


def _steps(iters: int) -> list[int]:
    """Return the dimension that each step sums over."""
    return [0, *[1, 0] * (iters - 1)]

"""The boundaries of HC and mHC as one Triton kernel each way, for m = 2 or 4 streams.

Formulas are those of `eager`, of which the gradients of the projections are a second kernel in backward: they need
sums over all tokens, which are formed over pieces of the tokens and then over the pieces, in one order. The streams
H of every connector are kept for backward; Sinkhorn keeps nothing and runs again.

Launches are custom operations: `torch.compile` calls them as they are.
"""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from depthbench_kernels._select import BackendError
from depthbench_kernels._triton import check, launch
from depthbench_kernels.streams import hc_kernels, mhc_kernels
from depthbench_kernels.streams.boundary_kernels import projection_gradient
from depthbench_kernels.streams.reference import HCRouting, MHCRouting

STREAMS = (2, 4)  # the kernels are unrolled over pairs of streams: 8 do not fit into a processor's memory
TOKENS, CHANNELS = 16, 64  # of one program
COLUMNS = 16  # the least number of columns of a matrix product
PIECES = 64  # of the tokens, for the gradient of a projection


def hc_boundary(
    carried: Tensor,
    pending: tuple[Tensor, Tensor] | None,
    routing: HCRouting,
    gain: Tensor,
    *,
    routing_eps: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (carried', w', y)."""
    return _flat(_HCBoundary, carried, pending, gain, routing, (routing_eps, eps))


def mhc_boundary(
    carried: Tensor,
    pending: tuple[Tensor, Tensor] | None,
    routing: MHCRouting,
    gain: Tensor,
    *,
    routing_eps: float,
    eps: float,
    iters: int,
    sinkhorn_eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (carried', w', y)."""
    return _flat(_MHCBoundary, carried, pending, gain, routing, (routing_eps, eps, iters, sinkhorn_eps))


def _flat(
    function: Any, carried: Tensor, pending: Any, gain: Tensor, routing: tuple[Tensor, ...], options: tuple[float, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply the function to contiguous (tokens, m, d)."""
    tokens, (m, d) = carried.shape[:-2], carried.shape[-2:]
    check("stream boundary", carried, gain, *(pending or ()), *routing)
    if m not in STREAMS:
        raise BackendError(f"stream boundary: kernels=triton takes 2 or 4 streams, not {m}; choose kernels=eager")
    f, w = (None, None) if pending is None else (pending[0].reshape(-1, d), pending[1].reshape(-1, m))
    parts = [None if t is None else t.contiguous() for t in (carried.reshape(-1, m, d), f, w, gain, *routing)]
    H, w, y = function.apply(options, *parts)
    return H.view(carried.shape), w.view(*tokens, m), y.view(*tokens, d)


class _HCBoundary(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, options: tuple[float, ...], carried: Tensor, f: Tensor | None, w: Tensor | None, *parameters: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        H, mixed, w_next, y, *kept = _hc_forward(carried, f, w, list(parameters), *options)
        ctx.save_for_backward(carried if f is None else H, f, w, *parameters, *kept)
        return mixed, w_next, y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        H, f, w, *others = ctx.saved_tensors
        parameters, kept = others[:-3], others[-3:]
        dH, df, dw, dC, Z, dgain = _hc_backward(H, f, w, parameters, kept, [g.contiguous() for g in upstream])
        dtheta, z = _projection_gradient(H.flatten(0, 1), Z), kept[0].tanh()
        dstatic, dscales = dC.sum(0), (dC * z).sum((0, 1))
        own = HCRouting(
            static_alpha=dstatic[:, :-1],
            static_beta=dstatic[:, -1],
            dynamic_alpha_proj=dtheta[:, :-1],
            dynamic_beta_proj=dtheta[:, -1],
            dynamic_alpha_scale=dscales[:-1].sum(),
            dynamic_beta_scale=dscales[-1],
        )
        written = (None, None) if f is None else (df, dw)
        return None, dH, *written, *(g.to(p.dtype) for g, p in zip((dgain.sum(0), *own), parameters, strict=True))


class _MHCBoundary(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, options: tuple[Any, ...], carried: Tensor, f: Tensor | None, w: Tensor | None, *parameters: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        H, mixed, w_next, y, *kept = _mhc_forward(carried, f, w, list(parameters), *options)
        ctx.save_for_backward(carried if f is None else H, f, w, *parameters, *kept)
        ctx.sinkhorn = options[2:]
        return mixed, w_next, y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        H, f, w, *others = ctx.saved_tensors
        parameters, kept, m = others[:-3], others[-3:], H.shape[1]
        gradients = [g.contiguous() for g in upstream]
        dH, df, dw, dlogits, Z, dgain = _mhc_backward(H, f, w, parameters, kept, gradients, *ctx.sinkhorn)
        dgains = (dlogits * kept[0]).sum(0).split((m, m, m * m))
        own = MHCRouting(_projection_gradient(H.flatten(1), Z), dlogits.sum(0), *(g.sum() for g in dgains))
        written = (None, None) if f is None else (df, dw)
        return None, dH, *written, *(g.to(p.dtype) for g, p in zip((dgain.sum(0), *own), parameters, strict=True))


def _outputs(carried: Tensor, pending: bool) -> list[Tensor]:
    """Return H, carried', w' and y, unwritten; H is empty where nothing is pending."""
    N, m, d = carried.shape
    H = torch.empty_like(carried) if pending else carried.new_empty(0)
    return [H, torch.empty_like(carried), carried.new_empty(N, m, dtype=torch.float32), carried.new_empty(N, d)]


def _gradients(H: Tensor, f: Tensor | None, w: Tensor | None, logits: Tensor) -> list[Tensor]:
    """Return dcarried, df, dw, the gradients of logits or coefficients, Z and dgain of each program, unwritten."""
    dgain = H.new_empty(triton.cdiv(len(H), TOKENS), H.shape[2], dtype=torch.float32)
    written = [H.new_empty(0) if t is None else torch.empty_like(t) for t in (f, w)]
    return [torch.empty_like(H), *written, torch.empty_like(logits), torch.empty_like(logits), dgain]


def _launch(kernel: Any, H: Tensor, f: Tensor | None, *arguments: Any, **constants: int) -> None:
    """Start one program for each TOKENS tokens, with warps and stages that leave few registers or none to spill."""
    sizes = {"M": H.shape[1], "BN": TOKENS, "BK": CHANNELS, "PENDING": f is not None}
    launch(kernel, (triton.cdiv(len(H), TOKENS),), H, f, *arguments, **sizes, **constants, num_warps=8, num_stages=2)


@torch.library.custom_op("depthbench::hc_forward", mutates_args=())
def _hc_forward(
    carried: Tensor, f: Tensor | None, w: Tensor | None, parameters: list[Tensor], routing_eps: float, eps: float
) -> list[Tensor]:
    outputs = _hc_outputs(carried, f, w, parameters, routing_eps, eps)
    arguments = (w, *parameters, *outputs, len(carried), carried.shape[2], routing_eps, eps)
    _launch(hc_kernels.hc_forward, carried, f, *arguments, COLS=COLUMNS)
    return outputs


@_hc_forward.register_fake
def _hc_outputs(carried, f, w, parameters, routing_eps, eps):
    N, m, _ = carried.shape
    shapes = ((N, m, m + 2), (N, m), (N,))
    return [*_outputs(carried, f is not None), *(carried.new_empty(s, dtype=torch.float32) for s in shapes)]


@torch.library.custom_op("depthbench::hc_backward", mutates_args=())
def _hc_backward(
    H: Tensor, f: Tensor | None, w: Tensor | None, parameters: list[Tensor], kept: list[Tensor], upstream: list[Tensor]
) -> list[Tensor]:
    gradients = _gradients(H, f, w, kept[0])
    arguments = (w, *parameters, *kept, *upstream, *gradients, len(H), H.shape[2])
    _launch(hc_kernels.hc_backward, H, f, *arguments, COLS=COLUMNS)
    return gradients


@_hc_backward.register_fake
def _(H, f, w, parameters, kept, upstream):
    return _gradients(H, f, w, kept[0])


@torch.library.custom_op("depthbench::mhc_forward", mutates_args=())
def _mhc_forward(
    carried: Tensor,
    f: Tensor | None,
    w: Tensor | None,
    parameters: list[Tensor],
    routing_eps: float,
    eps: float,
    iters: int,
    sinkhorn_eps: float,
) -> list[Tensor]:
    outputs = _mhc_outputs(carried, f, w, parameters, routing_eps, eps, iters, sinkhorn_eps)
    sizes = (len(carried), carried.shape[2], routing_eps, eps, iters, sinkhorn_eps)
    _launch(mhc_kernels.mhc_forward, carried, f, w, *parameters, *outputs, *sizes, G=_rows(carried.shape[1]))
    return outputs


@_mhc_forward.register_fake
def _mhc_outputs(carried, f, w, parameters, routing_eps, eps, iters, sinkhorn_eps):
    N, m, _ = carried.shape
    shapes = ((N, m * m + 2 * m), (N,), (N,))
    return [*_outputs(carried, f is not None), *(carried.new_empty(s, dtype=torch.float32) for s in shapes)]


@torch.library.custom_op("depthbench::mhc_backward", mutates_args=())
def _mhc_backward(
    H: Tensor,
    f: Tensor | None,
    w: Tensor | None,
    parameters: list[Tensor],
    kept: list[Tensor],
    upstream: list[Tensor],
    iters: int,
    sinkhorn_eps: float,
) -> list[Tensor]:
    gradients = _gradients(H, f, w, kept[0])
    arguments = (w, *parameters, *kept, *upstream, *gradients, len(H), H.shape[2], iters, sinkhorn_eps)
    _launch(mhc_kernels.mhc_backward, H, f, *arguments, G=_rows(H.shape[1]), STEPS=triton.next_power_of_2(iters))
    return gradients


@_mhc_backward.register_fake
def _(H, f, w, parameters, kept, upstream, iters, sinkhorn_eps):
    return _gradients(H, f, w, kept[0])


def _rows(m: int) -> int:
    """Return the rows of mHC's routing tile: read, write, map, and padding up to what a matrix product takes."""
    return max(triton.next_power_of_2(m + 2), COLUMNS // m)


@torch.library.custom_op("depthbench::projection_gradient", mutates_args=())
def _projection_gradient(X: Tensor, Z: Tensor) -> Tensor:
    """Return X^T Z: X (rows, K), Z (..., C) of as many rows, float32."""
    Z = Z.flatten(0, -2)
    (rows, K), C = X.shape, Z.shape[1]
    piece = max(triton.cdiv(rows, PIECES * TOKENS), 1) * TOKENS
    partial = Z.new_empty(triton.cdiv(rows, piece), K, C)
    options = {"COLS": max(triton.next_power_of_2(C), COLUMNS), "BK": CHANNELS, "BR": TOKENS}
    launch(projection_gradient, (triton.cdiv(K, CHANNELS), len(partial)), X, Z, partial, rows, K, C, piece, **options)
    return partial.sum(0)


@_projection_gradient.register_fake
def _(X, Z):
    return Z.new_empty(X.shape[1], Z.shape[-1])

"""Kernels of the mHC boundary: one program takes BN tokens through write, routing, read and norm.

Tiles of routing are (BN, G, M), flat COLS = G M, as the columns of phi lie: row 0 read, row 1 write, row 2 + t the
logits of R[t, .]; rows behind are padding and stay zero. Kept for backward: H, z and the inverse RMS of streams and
branch input. Sinkhorn runs on chip and once more in backward, where the divisors of its steps stay on chip too.
"""

import triton
import triton.language as tl

from depthbench_kernels._triton import device
from depthbench_kernels.streams.boundary_kernels import (
    entry,
    give_back,
    mix,
    placed,
    products,
    put,
    put_vectors,
    repeated,
    row,
    stream_gradients,
    streams,
    tile,
)


@device
def sinkhorn(logits, iters, eps, M: tl.constexpr, STEPS: tl.constexpr):
    """Return R at rows 2.. of a tile (BN, G, M), the softmax of the logits there, and the divisors of all steps.

    Divisors of the columns stand at [:, :, i] of (BN, M, STEPS), of the rows in (BN, G, STEPS); STEPS = 0 keeps none.
    """
    g = tl.arange(0, logits.shape[1])[None, :, None]
    inside = (g >= 2) & (g < M + 2)
    e = tl.exp(logits - tl.max(logits, 2, keep_dims=True))
    start = tl.where(inside, e / tl.sum(e, 2, keep_dims=True), 0.0)
    P = tl.where(inside, start + eps, 0.0)
    column = tl.sum(P, 1, keep_dims=True) + eps
    P = P / column
    columns, rows, step = column, column, tl.arange(0, STEPS if STEPS > 0 else 1)[None, None, :]
    if STEPS > 0:
        columns = tl.where(step == 0, tl.trans(column, 0, 2, 1), 0.0)
        rows = tl.zeros((logits.shape[0], logits.shape[1], STEPS), tl.float32)
    for i in range(1, iters):
        sums = tl.where(inside, tl.sum(P, 2, keep_dims=True) + eps, 1.0)
        P = P / sums
        column = tl.sum(P, 1, keep_dims=True) + eps
        P = P / column
        if STEPS > 0:
            columns = tl.where(step == i, tl.trans(column, 0, 2, 1), columns)
            rows = tl.where(step == i, sums, rows)
    return P, start, columns, rows


@device
def sinkhorn_backward(P, start, columns, rows, dP, iters, eps):
    """Return the gradient of the logits: P' = P / s leads from Q' = dP' P' to Q = Q' - sum(Q') P'."""
    step = tl.arange(0, columns.shape[2])[None, None, :]
    Q = dP * P
    for back in range(1, iters):
        i = iters - back
        Q -= tl.sum(Q, 1, keep_dims=True) * P
        P *= tl.trans(tl.sum(tl.where(step == i, columns, 0.0), 2, keep_dims=True), 0, 2, 1)
        Q -= tl.sum(Q, 2, keep_dims=True) * P
        P *= tl.sum(tl.where(step == i, rows, 0.0), 2, keep_dims=True)
    Q -= tl.sum(Q, 1, keep_dims=True) * P
    Q *= tl.where(start > 0.0, start / (start + eps), 0.0)
    return Q - tl.sum(Q, 2, keep_dims=True) * start


@device
def gains(alpha_pre, alpha_post, alpha_res, g):
    """Return the gain of each row of a routing tile, like g."""
    pre, post, res = tl.load(alpha_pre), tl.load(alpha_post), tl.load(alpha_res)
    return tl.where(g == 0, pre, tl.where(g == 1, post, res)).to(tl.float32)


@device
def coefficients(R, sigmoids, M: tl.constexpr):
    """Return tuples of r_s and of A[s, t] = R[t, s] at s M + t."""
    read, transport = (), ()
    for s in tl.static_range(M):
        read += (entry(sigmoids, 0, s),)
        for t in tl.static_range(M):
            transport += (entry(R, 2 + t, s),)
    return read, transport


@triton.jit
def mhc_forward(
    carried, f, w, gain, phi, bias, alpha_pre, alpha_post, alpha_res,
    H, mixed, w_next, y, z, rho, rstd,
    N, D, routing_eps, eps, iters, sinkhorn_eps,
    M: tl.constexpr, G: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PENDING: tl.constexpr,
):  # fmt: skip
    """H, (r, R, w') = routing of H, carried' = R H, y = RMSNorm(sum_s r_s H_s)."""
    COLS: tl.constexpr = G * M
    n, c = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN), tl.arange(0, COLS)
    dots, squares = tl.zeros((BN, COLS), tl.float32), tl.zeros((BN,), tl.float32)
    for start in range(0, D, BK):
        k = start + tl.arange(0, BK)
        h = streams(carried, f, w, n, k, N, D, M, PENDING)
        for s in tl.static_range(M):
            if PENDING:
                put(H, n * M + s, k, N * M, D, h[s])
            squares += tl.sum(h[s] * h[s], 1)
            # float32 products, not TF32: routing is float32 by definition
            part = tile(phi + s * D * (M * M + 2 * M), k, c, D, M * M + 2 * M)
            dots = tl.dot(h[s], part, dots, input_precision="ieee")
    inverse = tl.rsqrt(squares / (M * D) + routing_eps)
    dots *= inverse[:, None]
    tl.store(rho + n, inverse, mask=n < N)
    put(z, n, c, N, M * M + 2 * M, dots)
    g = tl.arange(0, G)[None, :, None]
    l = tl.reshape(row(bias, c, M * M + 2 * M), (1, G, M))
    l += gains(alpha_pre, alpha_post, alpha_res, g) * tl.reshape(dots, (BN, G, M))
    sigmoids = tl.sigmoid(l)
    R, _, _, _ = sinkhorn(l, iters, sinkhorn_eps, M, 0)
    put(w_next, n, tl.arange(0, M), N, M, 2.0 * tl.sum(tl.where(g == 1, sigmoids, 0.0), 1))
    read, transport = coefficients(R, sigmoids, M)
    mix(carried, f, w, read, transport, gain, mixed, y, rstd, n, N, D, eps, M, BK, PENDING)


@triton.jit
def mhc_backward(
    H, f, w, gain, phi, bias, alpha_pre, alpha_post, alpha_res, z, rho, rstd,
    dmixed, dw_next, dy,
    dcarried, df, dw, dlogits, Z, dgain,
    N, D, iters, sinkhorn_eps,
    M: tl.constexpr, G: tl.constexpr, STEPS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PENDING: tl.constexpr,
):  # fmt: skip
    """Gradient dl of the logits, Z = rho gains dl, then dH = M dY + Z phi^T - H rho^2 (gains dl . z) / (M D)."""
    COLS: tl.constexpr = G * M
    n, c = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN), tl.arange(0, COLS)
    g = tl.arange(0, G)[None, :, None]
    flat, scale = tile(z, n, c, N, M * M + 2 * M), gains(alpha_pre, alpha_post, alpha_res, g)
    l = tl.reshape(row(bias, c, M * M + 2 * M), (1, G, M)) + scale * tl.reshape(flat, (BN, G, M))
    sigmoids = tl.sigmoid(l)
    R, softmax, divisors, row_divisors = sinkhorn(l, iters, sinkhorn_eps, M, STEPS)
    read, transport = coefficients(R, sigmoids, M)
    norm = tl.load(rstd + n, mask=n < N, other=0.0)
    dread, dA, slope = products(H, dmixed, dy, gain, read, norm, dgain, n, N, D, M, BK)
    gradient = tl.zeros((BN, G, M), tl.float32)
    for s in tl.static_range(M):
        gradient = placed(gradient, 0, s, dread[s])
        gradient = placed(gradient, 1, s, 2.0 * tl.load(dw_next + n * M + s, mask=n < N, other=0.0).to(tl.float32))
        for t in tl.static_range(M):
            gradient = placed(gradient, 2 + t, s, dA[s * M + t])
    of_map = sinkhorn_backward(R, softmax, divisors, row_divisors, gradient, iters, sinkhorn_eps)
    gradient = tl.where(g < 2, gradient * sigmoids * (1.0 - sigmoids), of_map)
    put(dlogits, n, c, N, M * M + 2 * M, tl.reshape(gradient, (BN, COLS)))
    dz = tl.reshape(gradient * scale, (BN, COLS))
    inverse = tl.load(rho + n, mask=n < N, other=0.0)
    routing_slope = tl.sum(dz * flat, 1) * inverse * inverse / (M * D)
    dz *= inverse[:, None]
    put(Z, n, c, N, M * M + 2 * M, dz)
    slopes, sums = repeated(routing_slope, M), repeated(tl.zeros_like(norm), M)
    for start in range(0, D, BK):
        k = start + tl.arange(0, BK)
        without = stream_gradients(H, dmixed, dy, gain, read, transport, norm, slope, slopes, n, k, N, D, M)
        dH = ()
        for s in tl.static_range(M):
            part = tl.trans(tile(phi + s * D * (M * M + 2 * M), k, c, D, M * M + 2 * M))
            dH += (tl.dot(dz, part, without[s], input_precision="ieee"),)
        sums = give_back(dH, f, w, dcarried, df, sums, n, k, N, D, M, PENDING)
    if PENDING:
        put_vectors(dw, n, N, sums, M)

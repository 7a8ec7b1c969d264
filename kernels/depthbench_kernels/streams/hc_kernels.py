"""Kernels of the HC boundary: one program takes BN tokens through write, routing, read and norm.

Tiles of routing are (BN, M, COLS), columns in the order read, map M, write, padded to a power of two. The formula is
that of `depthbench_kernels.streams`, backward that of `eager`. Kept for backward: H, the routing logits, the inverse
RMS of streams and branch input; coefficients are formed again from the logits.
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
    stream_gradients,
    tile,
    written,
)


@device
def tanh(x):
    """Return tanh x; the series keeps the relative precision of small x."""
    square, t = x * x, tl.exp(-2.0 * tl.abs(x))
    series = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 - square * (17.0 / 315.0))))
    far = (1.0 - t) / (1.0 + t)
    return tl.where(square < 0.0156, series, tl.where(x < 0.0, -far, far))


@device
def columns(alpha, beta, rows, c, n_rows, M: tl.constexpr):
    """Return a tile (rows, COLS) of the matrix [alpha | beta]: alpha (n_rows, M + 1), beta (n_rows,)."""
    r, inside = rows[:, None], rows[:, None] < n_rows
    left = tl.load(alpha + r * (M + 1) + c[None, :], mask=inside & (c[None, :] <= M), other=0.0).to(tl.float32)
    right = tl.load(beta + r + 0 * c[None, :], mask=inside & (c[None, :] == M + 1), other=0.0).to(tl.float32)
    return left + right


@device
def scales(alpha_scale, beta_scale, c, M: tl.constexpr):
    """Return the gain of each routing column, (COLS,)."""
    return tl.where(c <= M, tl.load(alpha_scale).to(tl.float32), tl.load(beta_scale).to(tl.float32))


@device
def coefficients(C, M: tl.constexpr):
    """Return tuples of r_s and of A[s, t] at s M + t from a tile (BN, M, COLS)."""
    read, transport = (), ()
    for s in tl.static_range(M):
        read += (entry(C, s, 0),)
        for t in tl.static_range(M):
            transport += (entry(C, s, 1 + t),)
    return read, transport


@triton.jit
def hc_forward(
    carried, f, w, gain, static_alpha, static_beta, alpha_proj, beta_proj, alpha_scale, beta_scale,
    H, mixed, w_next, y, logits, rho, rstd,
    N, D, routing_eps, eps,
    M: tl.constexpr, COLS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PENDING: tl.constexpr,
):  # fmt: skip
    """H, (r, A, w') = routing of H, carried' = A^T H, y = RMSNorm(sum_s r_s H_s)."""
    R: tl.constexpr = BN * M  # one row for each stream of a token
    first, c = tl.program_id(0).to(tl.int64) * BN, tl.arange(0, COLS)
    r = first * M + tl.arange(0, R)
    dots, squares = tl.zeros((R, COLS), tl.float32), tl.zeros((R,), tl.float32)
    for start in range(0, D, BK):
        k = start + tl.arange(0, BK)
        h = written(carried, f, w, r, r // M, k, N, D, M, PENDING)
        if PENDING:
            put(H, r, k, N * M, D, h)
        squares += tl.sum(h * h, 1)
        # float32 products, not TF32: routing is float32 by definition
        dots = tl.dot(h, columns(alpha_proj, beta_proj, k, c, D, M), dots, input_precision="ieee")
    inverse = tl.rsqrt(squares / D + routing_eps)
    l = dots * inverse[:, None]
    C = columns(static_alpha, static_beta, r % M, c, M, M) + scales(alpha_scale, beta_scale, c, M)[None, :] * tanh(l)
    tl.store(rho + r, inverse, mask=r < N * M)
    put(logits, r, c, N * M, M + 2, l)
    tl.store(w_next + r, tl.sum(tl.where(c[None, :] == M + 1, C, 0.0), 1), mask=r < N * M)
    read, transport = coefficients(tl.reshape(C, (BN, M, COLS)), M)
    n = first + tl.arange(0, BN)
    mix(carried, f, w, read, transport, gain, mixed, y, rstd, n, N, D, eps, M, BK, PENDING)


@triton.jit
def hc_backward(
    H, f, w, gain, static_alpha, static_beta, alpha_proj, beta_proj, alpha_scale, beta_scale, logits, rho, rstd,
    dmixed, dw_next, dy,
    dcarried, df, dw, dC, Z, dgain,
    N, D,
    M: tl.constexpr, COLS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PENDING: tl.constexpr,
):  # fmt: skip
    """Gradient dC of the coefficients, Z = rho dl of the logits, then dH = M dY + Z theta^T - H rho^2 (dl . l) / D."""
    n, c = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN), tl.arange(0, COLS)
    r = tl.program_id(0).to(tl.int64) * BN * M + tl.arange(0, BN * M)
    l, inverse = tile(logits, r, c, N * M, M + 2), tl.load(rho + r, mask=r < N * M, other=0.0)
    g, z = scales(alpha_scale, beta_scale, c, M)[None, :], tanh(l)
    C = columns(static_alpha, static_beta, r % M, c, M, M) + g * z
    read, transport = coefficients(tl.reshape(C, (BN, M, COLS)), M)
    norm = tl.load(rstd + n, mask=n < N, other=0.0)
    dread, dA, slope = products(H, dmixed, dy, gain, read, norm, dgain, n, N, D, M, BK)
    gradient = tl.zeros((BN, M, COLS), tl.float32)
    for s in tl.static_range(M):
        gradient = placed(gradient, s, 0, dread[s])
        gradient = placed(gradient, s, M + 1, tl.load(dw_next + n * M + s, mask=n < N, other=0.0).to(tl.float32))
        for t in tl.static_range(M):
            gradient = placed(gradient, s, 1 + t, dA[s * M + t])
    gradient = tl.reshape(gradient, (BN * M, COLS))
    put(dC, r, c, N * M, M + 2, gradient)
    dl = gradient * g * (1.0 - z * z)
    slopes = tl.reshape(tl.sum(dl * l, 1) * inverse * inverse / D, (BN, M, 1))
    dl = dl * inverse[:, None]
    put(Z, r, c, N * M, M + 2, dl)
    dl, stream = tl.reshape(dl, (BN, M, COLS)), tl.arange(0, M)[None, :, None]
    slope_of, Z_of = (), ()
    for s in tl.static_range(M):
        slope_of += (entry(slopes, s, 0),)
        Z_of += (tl.sum(tl.where(stream == s, dl, 0.0), 1),)
    sums = repeated(tl.zeros_like(norm), M)
    for start in range(0, D, BK):
        k = start + tl.arange(0, BK)
        theta = tl.trans(columns(alpha_proj, beta_proj, k, c, D, M))
        dH = ()
        without = stream_gradients(H, dmixed, dy, gain, read, transport, norm, slope, slope_of, n, k, N, D, M)
        for s in tl.static_range(M):
            dH += (tl.dot(Z_of[s], theta, without[s], input_precision="ieee"),)
        sums = give_back(dH, f, w, dcarried, df, sums, n, k, N, D, M, PENDING)
    if PENDING:
        put_vectors(dw, n, N, sums, M)

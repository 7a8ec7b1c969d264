"""What the boundary kernels of HC and mHC share: streams of a tile, mixing forward, inner products backward.

Shapes of tiles: BN tokens, BK channels, M streams; a tuple holds one tile for each stream. n are token numbers
(int64: offsets exceed 2^31), k channels. Loads widen to float32, stores round to the type of the buffer.

Streams are formed again from what was read, not read back from what was stored: a program sees its own stores
only behind a barrier.
"""

import triton
import triton.language as tl

from depthbench_kernels._triton import device, rounded


@device
def entry(x, i, j):
    """Return x[:, i, j] of a tile (BN, I, J)."""
    rows, columns = tl.arange(0, x.shape[1])[None, :, None], tl.arange(0, x.shape[2])[None, None, :]
    return tl.sum(tl.sum(tl.where((rows == i) & (columns == j), x, 0.0), 2), 1)


@device
def placed(x, i, j, value):
    """Return the tile (BN, I, J) with x[:, i, j] = value, (BN,)."""
    rows, columns = tl.arange(0, x.shape[1])[None, :, None], tl.arange(0, x.shape[2])[None, None, :]
    return tl.where((rows == i) & (columns == j), value[:, None, None], x)


@device
def repeated(x, n: tl.constexpr):
    """Return a tuple of n times x."""
    values = ()
    for _ in tl.static_range(n):
        values += (x,)
    return values


@device
def tile(x, n, k, N, D):
    """Return a tile (BN, BK) of x (N, D); zero outside."""
    inside = (n[:, None] < N) & (k[None, :] < D)
    return tl.load(x + n[:, None] * D + k[None, :], mask=inside, other=0.0).to(tl.float32)


@device
def row(x, k, D):
    """Return a piece (1, BK) of the vector x (D,); zero outside."""
    return tl.load(x + k, mask=k < D, other=0.0).to(tl.float32)[None, :]


@device
def put(x, n, k, N, D, value):
    """Store a tile (BN, BK) into x (N, D)."""
    inside = (n[:, None] < N) & (k[None, :] < D)
    tl.store(x + n[:, None] * D + k[None, :], rounded(value, x.dtype.element_ty), mask=inside)


@device
def written(carried, f, w, r, n, k, N, D, M: tl.constexpr, PENDING: tl.constexpr):
    """Return rows r = n M + s of H_s = carried_s + w_s f, rounded to storage; of carried where nothing is pending."""
    h = tile(carried, r, k, N * M, D)
    if PENDING:
        weight = tl.load(w + r, mask=r < N * M, other=0.0).to(tl.float32)
        h = tl.fma(tl.broadcast_to(weight[:, None], h.shape), tile(f, n, k, N, D), h)
        h = rounded(h, carried.dtype.element_ty).to(tl.float32)
    return h


@device
def streams(carried, f, w, n, k, N, D, M: tl.constexpr, PENDING: tl.constexpr):
    """Return a tile of H_s, (BN, BK), for all s."""
    H = ()
    for s in tl.static_range(M):
        H += (written(carried, f, w, n * M + s, n, k, N, D, M, PENDING),)
    return H


@device
def combined(weights, H, M: tl.constexpr):
    """Return sum_s weights_s H_s; weights (BN,) each."""
    total = weights[0][:, None] * H[0]
    for s in tl.static_range(1, M):
        total += weights[s][:, None] * H[s]
    return total


@device
def mix(
    carried,
    f,
    w,
    read,
    transport,
    gain,
    mixed,
    y,
    rstd,
    n,
    N,
    D,
    eps,
    M: tl.constexpr,
    BK: tl.constexpr,
    PENDING: tl.constexpr,
):
    """Store carried'_t = sum_s A[s, t] H_s, y = RMSNorm_gain(u) and its inverse RMS, u = sum_s r_s H_s.

    read is a tuple of r_s, transport of A[s, t] at s M + t. Two passes: the second forms u again for its norm.
    """
    squares = tl.zeros_like(read[0])
    for start in range(0, D, BK):
        k = start + tl.arange(0, BK)
        H = streams(carried, f, w, n, k, N, D, M, PENDING)
        u = combined(read, H, M)
        squares += tl.sum(u * u, 1)
        for t in tl.static_range(M):
            column = ()
            for s in tl.static_range(M):
                column += (transport[s * M + t],)
            put(mixed, n * M + t, k, N * M, D, combined(column, H, M))
    r = tl.rsqrt(squares / D + eps)
    tl.store(rstd + n, r, mask=n < N)
    for start in range(0, D, BK):
        k = start + tl.arange(0, BK)
        u = combined(read, streams(carried, f, w, n, k, N, D, M, PENDING), M)
        put(y, n, k, N, D, u * r[:, None] * row(gain, k, D))


@device
def products(H, dmixed, dy, gain, read, rstd, dgain, n, N, D, M: tl.constexpr, BK: tl.constexpr):
    """Return the gradients of r_s and A[s, t] and the slope of the norm; store this program's part of dgain.

    With v = gain dy and u as in `mix`: slope = rstd^3 mean(v u), du = rstd v - slope u, and

        dr_s = H_s . du,    dA[s, t] = H_s . dmixed_t
    """
    zero = tl.zeros_like(rstd)
    hv, hu, dA = repeated(zero, M), repeated(zero, M), repeated(zero, M * M)
    for start in range(0, D, BK):
        k = start + tl.arange(0, BK)
        h = streams(H, H, H, n, k, N, D, M, False)
        G = streams(dmixed, dmixed, dmixed, n, k, N, D, M, False)
        u, upstream = combined(read, h, M), tile(dy, n, k, N, D)
        tl.store(dgain + tl.program_id(0).to(tl.int64) * D + k, tl.sum(upstream * u * rstd[:, None], 0), mask=k < D)
        v = upstream * row(gain, k, D)
        hv_, hu_, dA_ = (), (), ()
        for s in tl.static_range(M):
            hv_ += (hv[s] + tl.sum(h[s] * v, 1),)
            hu_ += (hu[s] + tl.sum(h[s] * u, 1),)
            for t in tl.static_range(M):
                dA_ += (dA[s * M + t] + tl.sum(h[s] * G[t], 1),)
        hv, hu, dA = hv_, hu_, dA_
    slope = zero
    for s in tl.static_range(M):
        slope += read[s] * hv[s]
    slope *= rstd * rstd * rstd / D
    dread = ()
    for s in tl.static_range(M):
        dread += (rstd * hv[s] - slope * hu[s],)
    return dread, dA, slope


@device
def stream_gradients(
    H, dmixed, dy, gain, read, transport, rstd, slope, slopes, n, k, N, D, M: tl.constexpr,
):  # fmt: skip
    """Return dH_s = r_s du + sum_t A[s, t] dmixed_t - slopes_s H_s of a tile: all but the projection of routing."""
    h = streams(H, H, H, n, k, N, D, M, False)
    G = streams(dmixed, dmixed, dmixed, n, k, N, D, M, False)
    du = rstd[:, None] * tile(dy, n, k, N, D) * row(gain, k, D) - slope[:, None] * combined(read, h, M)
    dH = ()
    for s in tl.static_range(M):
        total = read[s][:, None] * du - slopes[s][:, None] * h[s]
        for t in tl.static_range(M):
            total += transport[s * M + t][:, None] * G[t]
        dH += (total,)
    return dH


@device
def give_back(dH, f, w, dcarried, df, dw, n, k, N, D, M: tl.constexpr, PENDING: tl.constexpr):
    """Store dcarried = dH and df = sum_s w_s dH_s of a tile; return dw_s with the tile's f . dH_s added."""
    total, sums = tl.zeros_like(dH[0]), ()
    for s in tl.static_range(M):
        put(dcarried, n * M + s, k, N * M, D, dH[s])
        if PENDING:
            total += tl.load(w + n * M + s, mask=n < N, other=0.0).to(tl.float32)[:, None] * dH[s]
            sums += (dw[s] + tl.sum(tile(f, n, k, N, D) * dH[s], 1),)
    if PENDING:
        put(df, n, k, N, D, total)
        return sums
    return dw


@device
def put_vectors(x, n, N, values, M: tl.constexpr):
    """Store x[n, s] = values_s, x (N, M)."""
    for s in tl.static_range(M):
        tl.store(x + n * M + s, rounded(values[s], x.dtype.element_ty), mask=n < N)


@triton.jit
def projection_gradient(X, Z, partial, rows, K, C, per_split, COLS: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr):
    """X^T Z of one piece of the rows: X (rows, K), Z (rows, C) float32, partial (splits, K, C)."""
    k, c = tl.program_id(0) * BK + tl.arange(0, BK), tl.arange(0, COLS)
    first = tl.program_id(1).to(tl.int64) * per_split
    total = tl.zeros((BK, COLS), tl.float32)
    for start in range(0, per_split, BR):
        r = first + start + tl.arange(0, BR)
        total = tl.dot(tl.trans(tile(X, r, k, rows, K)), tile(Z, r, c, rows, C), total, input_precision="ieee")
    put(partial + tl.program_id(1).to(tl.int64) * K * C, k.to(tl.int64), c, K, C, total)

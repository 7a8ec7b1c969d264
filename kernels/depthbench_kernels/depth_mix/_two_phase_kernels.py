"""The two-phase workspace as Triton kernels, formulas as in `eager.py`.

`eager` and this differ in one cut: phase one takes the sources up to the first of the group without the newest, so
that every site stores its newest source itself, in the kernel that merges and norms. Saved for each site: h and the
inverse RMS of h in float32; the logsumexp of the scores and D stand in the workspace. Scores and norms of sources are
recomputed.

Phase one and the pull for a group are products of 16 x 16 tiles on tensor cores: scores and dh . v first, chunk by
chunk of d, then the sums over sources or sites. Operands have the dtype of the sources, sums are float32; the
weights w, kept in float32, go in as a rounded part and its rest.

    t token    i source    c site    B sites of a group    n sites that a group is pulled from
    V (tokens, Q + 1, d)    W, dW (Q, d)    LSE, D (tokens, Q)    PARTIAL, PULLED (tokens, B, d)    LSE0 (tokens, B)
"""

import triton
import triton.language as tl

from depthbench_kernels._triton import INTERPRETED, device, rounded

TILE = tl.constexpr(16)  # rows of a product: sites, sources
# Numbers that change from site to site: one compiled kernel serves all of them.
COUNTS = ("c", "first", "last", "slot", "site", "slots", "n_sources", "tokens", "n")


@device
def _dot(a, b):
    """Return a b in float32, a rounded to the dtype of b; the interpreter multiplies float32 only."""
    a = rounded(a, b.dtype)
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@device
def _exact_dot(a, b):
    """Return a b in float32, a as two parts of the dtype of b."""
    product = _dot(a, b)
    if b.dtype != tl.float32:
        product += _dot(a - rounded(a, b.dtype).to(tl.float32), b)
    return product


@device
def _rows(BASE, rows, there, columns, d):
    """Load a tile of rows that are there, 0 elsewhere."""
    return tl.load(BASE + rows[:, None] * d + columns[None, :], mask=there[:, None] & (columns < d)[None, :], other=0.0)


@triton.jit(do_not_specialize=COUNTS)
def partial(
    V, W, S, PARTIAL, LSE0, first, last, slots, d, eps, B: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Phase one of one token: mixtures of the sources 0 .. first for the sites first .. last - 1; S: scratch."""
    t = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, TILE)
    o = tl.arange(0, CHUNK)
    site = first + j
    asked = site < last
    S += t * B * slots
    top = tl.full((TILE,), -float("inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    for start in range(0, first + 1, TILE):
        i = start + j
        there = i <= first
        s = tl.zeros((TILE, TILE), tl.float32)
        square = tl.zeros((TILE,), tl.float32)
        for chunk in range(0, d, CHUNK):
            v = _rows(V, t * slots + i, there, chunk + o, d)
            s += _exact_dot(_rows(W, site, asked, chunk + o, d), tl.trans(v))
            square += tl.sum(v.to(tl.float32) * v.to(tl.float32), 1)
        s = tl.where(there[None, :], s * tl.rsqrt(square / d + eps)[None, :], -float("inf"))
        tl.store(S + j[:, None] * slots + i[None, :], s, mask=asked[:, None] & there[None, :])
        new_top = tl.maximum(top, tl.max(s, 1))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(s - new_top[:, None]), 1)
        top = new_top
    lse = top + tl.log(total)
    tl.store(LSE0 + t * B + j, lse, mask=asked)
    tl.debug_barrier()
    for chunk in range(0, d, CHUNK):
        h = tl.zeros((TILE, CHUNK), tl.float32)
        for start in range(0, first + 1, TILE):
            i = start + j
            there = i <= first
            known = asked[:, None] & there[None, :]
            s = tl.load(S + j[:, None] * slots + i[None, :], mask=known, other=-float("inf"))
            h += _dot(tl.exp(s - lse[:, None]), _rows(V, t * slots + i, there, chunk + o, d))
        at = PARTIAL + (t * B + j)[:, None] * d + (chunk + o)[None, :]
        tl.store(at, h, mask=asked[:, None] & (chunk + o < d)[None, :])


@triton.jit(do_not_specialize=COUNTS)
def merge(
    V, NEWEST, W, GAIN, PARTIAL, LSE0, LSE, Y, H, RSTD, c, first, slots, d, eps, B: tl.constexpr, BLOCK: tl.constexpr
):
    """Store source c + 1 of one token, merge the sources of the group with phase one's, and norm."""
    t = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, BLOCK)
    m = o < d
    i = first + 1 + tl.arange(0, B)
    newest = tl.load(NEWEST + t * d + o, mask=m, other=0.0)
    tl.store(V + (t * slots + c + 1) * d + o, newest, mask=m)
    v = _rows(V, t * slots + i, i <= c, o, d).to(tl.float32)
    v = tl.where((i == c + 1)[:, None], newest.to(tl.float32)[None, :], v)
    w = tl.load(W + c * d + o, mask=m, other=0.0)
    s = tl.sum(v * w[None, :], 1) * tl.rsqrt(tl.sum(v * v, 1) / d + eps)
    s = tl.where(i <= c + 1, s, -float("inf"))
    lse0 = tl.load(LSE0 + t * B + c - first)
    top = tl.maximum(lse0, tl.max(s))
    lse = top + tl.log(tl.exp(lse0 - top) + tl.sum(tl.exp(s - top)))
    before = tl.load(PARTIAL + (t * B + c - first) * d + o, mask=m, other=0.0)
    h = tl.exp(lse0 - lse) * before + tl.sum(tl.exp(s - lse)[:, None] * v, 0)
    rstd = tl.rsqrt(tl.sum(h * h) / d + eps)
    y = h * rstd * tl.load(GAIN + o, mask=m, other=0.0).to(tl.float32)
    tl.store(LSE + t * (slots - 1) + c, lse)
    tl.store(RSTD + t, rstd)
    tl.store(H + t * d + o, h, mask=m)
    tl.store(Y + t * d + o, rounded(y, Y.dtype.element_ty), mask=m)


@triton.jit(do_not_specialize=COUNTS)
def give_back(
    V, DY, H, RSTD, GAIN, W, LSE, D, PULLED, DNEWEST, DW, DGAIN, c, first, last, tokens, slots, d, eps,
    HAS_PULLED: tl.constexpr, B: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Put dh of site c into the slot of source c + 1 and pull that source's gradient from the sites c .. last - 1.

    A program has the tokens p, p + programs, ... and its own part of the gradients of w and gain.
    """
    p = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    m = o < d
    site = c + tl.arange(0, B)
    w = _rows(W, site, site < last, o, d)
    gain = tl.load(GAIN + o, mask=m, other=0.0).to(tl.float32)
    dw = tl.zeros((B, BLOCK), tl.float32)
    dgain = tl.zeros((BLOCK,), tl.float32)
    for t in range(p.to(tl.int64), tokens, tl.num_programs(0)):
        h = tl.load(H + t * d + o, mask=m, other=0.0)
        dy = tl.load(DY + t * d + o, mask=m, other=0.0).to(tl.float32)
        rstd = tl.load(RSTD + t)
        dgain += dy * h * rstd
        dh = rstd * (dy * gain - h * (rstd * rstd * tl.sum(dy * gain * h) / d))
        slot = V + (t * slots + c + 1) * d + o
        v = tl.load(slot, mask=m, other=0.0).to(tl.float32)
        tl.debug_barrier()  # the slot is read before it is written
        stored = rounded(dh, V.dtype.element_ty)
        tl.store(slot, stored, mask=m)
        dh = stored.to(tl.float32)
        own = tl.sum(dh * h)
        tl.store(D + t * (slots - 1) + c, own)
        later = (site > c) & (site < last)
        g = tl.where((site == c)[:, None], dh[None, :], _rows(V, t * slots + site + 1, later, o, d).to(tl.float32))
        product = tl.where(site == c, own, tl.load(D + t * (slots - 1) + site, mask=later, other=0.0))
        lse = tl.load(LSE + t * (slots - 1) + site, mask=site < last, other=float("inf"))
        rho = tl.rsqrt(tl.sum(v * v) / d + eps)
        weight = tl.exp(tl.sum(w * v[None, :], 1) * rho - lse)
        ds = weight * (tl.sum(g * v[None, :], 1) - product)
        dw += ds[:, None] * (v * rho)[None, :]
        U = tl.sum(ds[:, None] * w, 0)
        dv = tl.sum(weight[:, None] * g, 0) + rho * (U - v * (rho * rho * tl.sum(U * v) / d))
        if HAS_PULLED:
            dv += tl.load(PULLED + (t * B + c - first) * d + o, mask=m, other=0.0)
        tl.store(DNEWEST + t * d + o, rounded(dv, DNEWEST.dtype.element_ty), mask=m)
    tl.store(DW + (p * B + tl.arange(0, B))[:, None] * d + o[None, :], dw, mask=m[None, :])
    tl.store(DGAIN + p * d + o, dgain, mask=m)


@triton.jit(do_not_specialize=COUNTS)
def pull(V, W, LSE, D, P, DS, PULLED, slot, n_sources, site, slots, d, eps, B: tl.constexpr, CHUNK: tl.constexpr):
    """Pull the gradients of n_sources sources of one token, from `slot` on, from the sites from `site` on.

    P, DS (tokens, B, n): weights and rho ds of each source and site.
    """
    t = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, TILE)
    o = tl.arange(0, CHUNK)
    asked = j < n_sources
    n = slots - 1 - site
    square = tl.zeros((TILE,), tl.float32)
    for chunk in range(0, d, CHUNK):
        v = _rows(V, t * slots + slot + j, asked, chunk + o, d).to(tl.float32)
        square += tl.sum(v * v, 1)
    rho = tl.rsqrt(square / d + eps)
    slope = tl.zeros((TILE,), tl.float32)  # sum over sites of ds s, which is U . v rho
    for start in range(0, n, TILE):
        c = site + start + j
        there = start + j < n
        s = tl.zeros((TILE, TILE), tl.float32)
        product = tl.zeros((TILE, TILE), tl.float32)
        for chunk in range(0, d, CHUNK):
            v = _rows(V, t * slots + slot + j, asked, chunk + o, d)
            s += tl.trans(_exact_dot(_rows(W, c, there, chunk + o, d), tl.trans(v)))
            product += _dot(v, tl.trans(_rows(V, t * slots + c + 1, there, chunk + o, d)))
        s *= rho[:, None]
        lse = tl.load(LSE + t * (slots - 1) + c, mask=there, other=float("inf"))
        weight = tl.exp(s - lse[None, :])
        ds = weight * (product - tl.load(D + t * (slots - 1) + c, mask=there, other=0.0)[None, :])
        slope += tl.sum(ds * s, 1)
        at = (t * B + j)[:, None] * n + (start + j)[None, :]
        tl.store(P + at, weight, mask=asked[:, None] & there[None, :])
        tl.store(DS + at, ds * rho[:, None], mask=asked[:, None] & there[None, :])
    tl.debug_barrier()
    for chunk in range(0, d, CHUNK):
        dv = tl.zeros((TILE, CHUNK), tl.float32)
        for start in range(0, n, TILE):
            c = site + start + j
            there = start + j < n
            at = (t * B + j)[:, None] * n + (start + j)[None, :]
            known = asked[:, None] & there[None, :]
            dv += _dot(tl.load(P + at, mask=known, other=0.0), _rows(V, t * slots + c + 1, there, chunk + o, d))
            w = rounded(_rows(W, c, there, chunk + o, d), V.dtype.element_ty)
            dv += _dot(tl.load(DS + at, mask=known, other=0.0), w)
        v = _rows(V, t * slots + slot + j, asked, chunk + o, d).to(tl.float32)
        dv -= v * (rho * rho * slope / d)[:, None]
        at = PULLED + (t * B + j)[:, None] * d + (chunk + o)[None, :]
        tl.store(at, dv, mask=asked[:, None] & (chunk + o < d)[None, :])


@triton.jit(do_not_specialize=COUNTS)
def weight_gradient(
    V, DS, DW, slot, n_sources, tokens, slots, n, d,
    B: tl.constexpr, ROWS: tl.constexpr, SITES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Sum rho ds v over sources and the program's tokens, DW (programs, n, d); rows are pairs of token and source."""
    p = tl.program_id(0)
    c = tl.program_id(1) * SITES + tl.arange(0, SITES)
    o = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    dw = tl.zeros((SITES, CHUNK), tl.float32)
    for start in range(p.to(tl.int64) * ROWS, tokens * B, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        there = (row % B < n_sources) & (row < tokens * B)
        ds = _rows(DS, row, there, c, n)
        dw += _dot(tl.trans(ds), _rows(V, row // B * slots + slot + row % B, there, o, d))
    tl.store(DW + (p * n + c)[:, None] * d + o[None, :], dw, mask=(c < n)[:, None] & (o < d)[None, :])

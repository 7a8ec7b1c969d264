"""The boundary of mHC against float64 autograd of its formula, with Sinkhorn written as plain loops."""

import pytest
import torch
from comparing import relative_error, stored, worst_errors

from depthbench_kernels.norms.reference import rms_norm
from depthbench_kernels.streams import MHCRouting, eager, mhc_routing, reference
from depthbench_kernels.streams.sinkhorn import sinkhorn, sinkhorn_backward

PATHS = pytest.mark.parametrize("path", [reference, eager])
ROUTING_EPS, EPS, SINKHORN_EPS, ITERS = 0.1, 0.3, 1e-3, 5  # large enough to be seen, and different


def sinkhorn_in_loops(logits, iters, eps):
    """Return R of logits (..., m, m): entry by entry, rows (the last index) first, columns last."""
    m = logits.shape[-1]
    P = [[logits[..., t, s].exp() for s in range(m)] for t in range(m)]
    P = [[entry / sum(row) + eps for entry in row] for row in P]
    for i in range(iters):
        if i:
            P = [[entry / (sum(row) + eps) for entry in row] for row in P]
        columns = [sum(P[t][s] for t in range(m)) + eps for s in range(m)]
        P = [[P[t][s] / columns[s] for s in range(m)] for t in range(m)]
    return torch.stack([torch.stack(row, -1) for row in P], -2)


def formula(carried, f, w, gain, *routing, iters=ITERS, sinkhorn_eps=SINKHORN_EPS, storage=torch.float64):
    p, m = MHCRouting(*routing), carried.shape[-2]
    H = stored(carried + torch.einsum("bts,btd->btsd", w, f), storage)
    vec = torch.cat([H[..., s, :] for s in range(m)], -1)
    z = vec / (vec.pow(2).mean(-1, keepdim=True) + ROUTING_EPS).sqrt() @ p.phi
    r = 1 / (1 + torch.exp(-(p.alpha_pre * z[..., :m] + p.bias[:m])))
    w_next = 2 / (1 + torch.exp(-(p.alpha_post * z[..., m : 2 * m] + p.bias[m : 2 * m])))
    logits = (p.alpha_res * z[..., 2 * m :] + p.bias[2 * m :]).unflatten(-1, (m, m))
    R = sinkhorn_in_loops(logits, iters, sinkhorn_eps)
    u = torch.einsum("bts,btsd->btd", r, H)
    y = gain * u / (u.pow(2).mean(-1, keepdim=True) + EPS).sqrt()
    return torch.einsum("btos,btsd->btod", R, H), w_next, y


def inputs(m, d, generator, tokens=(2, 3)):
    n = m * m + 2 * m
    own = [
        torch.randn(s, generator=generator)
        for s in [(*tokens, m, d), (*tokens, d), (*tokens, m), (d,), (m * d, n), (n,), (), (), ()]
    ]
    own[4] /= (m * d) ** 0.5  # logits of order 1
    return own


def boundary(path, iters=ITERS, sinkhorn_eps=SINKHORN_EPS, pending=True):
    options = {"routing_eps": ROUTING_EPS, "eps": EPS, "iters": iters, "sinkhorn_eps": sinkhorn_eps}

    def run(carried, f, w, gain, *routing):
        return path.mhc_boundary(carried, (f, w) if pending else None, MHCRouting(*routing), gain, **options)

    return run


@PATHS
@pytest.mark.parametrize(("m", "d"), [(4, 12), (4, 76), (2, 5), (3, 40), (1, 6)])
def test_matches_the_formula(path, m, d, generator):
    assert max(worst_errors(boundary(path), formula, inputs(m, d, generator))) < 1e-13


@PATHS
def test_a_single_token_and_a_second_backward(path, generator):
    """What backward walks through is a copy of what it keeps, also where a transpose is a view."""
    own = inputs(4, 12, generator, tokens=(1, 1))
    assert max(worst_errors(boundary(path), formula, own)) < 1e-13
    leaves = [leaf.double().requires_grad_() for leaf in own]
    total = sum(out.sum() for out in boundary(path)(*leaves))
    first, second = (torch.autograd.grad(total, leaves, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@PATHS
@pytest.mark.parametrize("iters", [1, 2, 20])
def test_every_number_of_iterations(path, iters, generator):
    def definition(*leaves):
        return formula(*leaves, iters=iters, sinkhorn_eps=1e-6)

    own = inputs(4, 12, generator)
    assert max(worst_errors(boundary(path, iters, 1e-6), definition, own)) < 1e-13


@PATHS
def test_float32_is_within_tolerance(path, generator):
    own = inputs(4, 96, generator)
    outputs, gradients = worst_errors(boundary(path), formula, own, torch.float32)
    assert outputs < 2e-6
    assert gradients < 2e-5


@PATHS
def test_bfloat16_streams_keep_float32_routing(path, generator):
    carried, f, *rest = inputs(4, 96, generator)
    outputs, gradients = worst_errors(boundary(path), formula, [carried.bfloat16(), f.bfloat16(), *rest], None)
    assert outputs < 5e-3
    assert gradients < 2e-2


@PATHS
def test_first_connector_has_nothing_to_write(path, generator):
    carried, _, _, gain, *routing = inputs(4, 12, generator)
    options = {"routing_eps": ROUTING_EPS, "eps": EPS, "iters": ITERS, "sinkhorn_eps": SINKHORN_EPS}

    def first(carried, gain, *routing):
        return path.mhc_boundary(carried, None, MHCRouting(*routing), gain, **options)

    def definition(carried, gain, *routing):
        zero = torch.zeros(2, 3, 12).double(), torch.zeros(2, 3, 4).double()
        return formula(carried, *zero, gain, *routing)

    assert max(worst_errors(first, definition, [carried, gain, *routing])) < 1e-13


def constant(m, d, bias):
    """Routing that does not depend on the streams."""
    return MHCRouting(torch.zeros(m * d, m * m + 2 * m), bias, *torch.ones(3))


@PATHS
def test_a_permutation_as_map_permutes_the_streams(path, generator):
    """E04: the map must act, and in the stated direction (R[out, in])."""
    carried, f, w, gain, *_ = inputs(4, 12, generator)
    out_of = [2, 0, 3, 1]  # stream s goes to out_of[s]
    logits = torch.full((4, 4), -60.0)
    logits[out_of, range(4)] = 60.0
    bias = torch.cat([torch.tensor([-60.0, 60.0, -60.0, -60.0]), torch.tensor([60.0, 0, -60, 0]), logits.flatten()])
    run = boundary(path, 20, 1e-6)
    H, w_next, y = run(carried, f, torch.zeros_like(w), gain, *constant(4, 12, bias))
    for s, t in enumerate(out_of):
        assert torch.allclose(H[..., t, :], carried[..., s, :], atol=2e-5)
    assert torch.allclose(w_next, torch.tensor([2.0, 1.0, 0.0, 1.0]).expand(2, 3, 4))
    assert torch.allclose(y, rms_norm(carried[..., 1, :], gain, eps=EPS), atol=1e-6)


def test_sums_of_the_map(generator):
    """The columns, normalised last, sum to 1; the rows nearly."""
    logits = torch.randn(4, 4, 200, generator=generator)
    of_reference = reference.sinkhorn(logits.permute(2, 0, 1), 20, 1e-6).permute(1, 2, 0)
    for R in (sinkhorn(logits, 20, 1e-6)[0], of_reference):
        assert (R.sum(0) - 1).abs().max() < 2e-6
        assert (R.sum(1) - 1).abs().max() < 1e-4


@pytest.mark.parametrize("scale", [1, 8, 60])
def test_sinkhorn_and_its_gradient_for_large_logits(scale, generator):
    """E07: logits of +-60 and more; the gradient is that of the very iterations that ran."""
    logits = (scale * torch.randn(4, 4, 50, generator=generator, dtype=torch.float64)).clamp(-60, 60)
    logits[:, :, 0] = 60 * torch.tensor([[1, -1, -1, 1]] * 4)
    dP = torch.randn(4, 4, 50, generator=generator, dtype=torch.float64)
    leaf = logits.clone().requires_grad_()
    R = sinkhorn_in_loops(leaf.permute(2, 0, 1), 20, 1e-6).permute(1, 2, 0)
    (expected,) = torch.autograd.grad(R, leaf, dP)
    for dtype, value, gradient in ((torch.float64, 1e-13, 1e-13), (torch.float32, 1e-6, 2e-5)):
        P, divisors = sinkhorn(logits.to(dtype), 20, 1e-6)
        assert relative_error(P, R) < value
        assert relative_error(sinkhorn_backward(logits.to(dtype), P, divisors, dP.to(dtype), 1e-6), expected) < gradient


@PATHS
def test_extreme_logits_give_finite_numbers(path, generator):
    """E07: saturated sigmoids and one-sided maps, under bfloat16 autocast too."""
    carried, f, w, gain, phi, bias, *_ = inputs(4, 12, generator)
    routing = MHCRouting(60 * phi, 60 * bias.sign(), *torch.full((3,), 60.0))
    leaves = [t.requires_grad_() for t in (carried, f, *routing)]
    with torch.autocast("cpu", torch.bfloat16):
        H, w_next, y = boundary(path, 20, 1e-6)(carried, f, w, gain, *routing)
    (H.sum() + w_next.sum() + y.sum()).backward()
    assert all(t.isfinite().all() for t in (H, w_next, y, *(leaf.grad for leaf in leaves)))
    assert H.dtype == torch.float32  # autocast must not round the streams


def test_small_gains_survive_bfloat16_streams(generator):
    """E07: a dynamic part of 1e-3 beside a bias of 8 is far below bfloat16's spacing there."""
    carried, _, _, _, phi, *_ = inputs(4, 12, generator)
    bias = torch.cat([torch.full((4,), -8.0), torch.zeros(20)])
    with_gains = MHCRouting(phi, bias, *torch.full((3,), 1e-3))
    without = MHCRouting(0 * phi, bias, *torch.zeros(3))
    H = carried.bfloat16()
    options = {"eps": ROUTING_EPS, "iters": 20, "sinkhorn_eps": 1e-6}
    with torch.autocast("cpu", torch.bfloat16):
        got = mhc_routing(H, with_gains, **options)
    for g, exact, still in zip(
        got, mhc_routing(H.double(), with_gains, **options), mhc_routing(H.double(), without, **options), strict=True
    ):
        assert relative_error(g.double() - still, exact - still) < 2e-3

"""The Hyper-Connections boundary against float64 autograd of its formula, written with einsum."""

import pytest
import torch
from comparing import relative_error, stored, worst_errors

from depthbench_kernels.norms.reference import rms_norm
from depthbench_kernels.streams import HCRouting, eager, hc_routing, reference

PATHS = pytest.mark.parametrize("path", [reference, eager])
ROUTING_EPS, EPS = 0.1, 0.3  # large enough to be seen, and different


def formula(carried, f, w, gain, *routing, storage=torch.float64):
    r = HCRouting(*routing)
    H = stored(carried + torch.einsum("bts,btd->btsd", w, f), storage)
    n = H / (H.pow(2).mean(-1, keepdim=True) + ROUTING_EPS).sqrt()
    C = r.static_alpha + r.dynamic_alpha_scale * torch.tanh(torch.einsum("btsd,dc->btsc", n, r.dynamic_alpha_proj))
    w_next = r.static_beta + r.dynamic_beta_scale * torch.tanh(torch.einsum("btsd,d->bts", n, r.dynamic_beta_proj))
    u = torch.einsum("bts,btsd->btd", C[..., 0], H)
    y = gain * u / (u.pow(2).mean(-1, keepdim=True) + EPS).sqrt()
    return torch.einsum("btso,btsd->btod", C[..., 1:], H), w_next, y


def inputs(m, d, generator, tokens=(2, 3)):
    shapes = [(*tokens, m, d), (*tokens, d), (*tokens, m), (d,), (m, m + 1), (m,), (d, m + 1), (d,), (), ()]
    own = [torch.randn(s, generator=generator) for s in shapes]
    own[6:8] = [t / d**0.5 for t in own[6:8]]  # routing logits of order 1: tanh does not saturate
    return own


def boundary(path, pending=True):
    def run(carried, f, w, gain, *routing):
        write = (f, w) if pending else None
        return path.hc_boundary(carried, write, HCRouting(*routing), gain, routing_eps=ROUTING_EPS, eps=EPS)

    return run


@PATHS
@pytest.mark.parametrize(("m", "d"), [(4, 12), (4, 76), (1, 5), (3, 40)])
def test_matches_the_formula(path, m, d, generator):
    assert max(worst_errors(boundary(path), formula, inputs(m, d, generator))) < 1e-13


@PATHS
def test_float32_is_within_tolerance(path, generator):
    outputs, gradients = worst_errors(boundary(path), formula, inputs(4, 96, generator), torch.float32)
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

    def first(carried, gain, *routing):
        return path.hc_boundary(carried, None, HCRouting(*routing), gain, routing_eps=ROUTING_EPS, eps=EPS)

    def definition(carried, gain, *routing):
        zero = torch.zeros(2, 3, 12).double(), torch.zeros(2, 3, 4).double()
        return formula(carried, *zero, gain, *routing)

    assert max(worst_errors(first, definition, [carried, gain, *routing])) < 1e-13


@PATHS
def test_a_permutation_as_map_permutes_the_streams(path, generator):
    """E04: the map must act, and in the stated direction (A[in, out])."""
    carried, f, w, gain, *_ = inputs(4, 12, generator)
    out_of = [2, 0, 3, 1]  # stream s goes to out_of[s]
    alpha = torch.zeros(4, 5)
    alpha[1, 0] = 1.0  # read stream 1 alone
    alpha[range(4), [t + 1 for t in out_of]] = 1.0
    beta = torch.tensor([1.0, -2.0, 0.0, 3.0])
    routing = HCRouting(alpha, beta, torch.zeros(12, 5), torch.zeros(12), torch.tensor(0.01), torch.tensor(0.01))
    H, w_next, y = path.hc_boundary(carried, (f, torch.zeros_like(w)), routing, gain, routing_eps=EPS, eps=EPS)
    for s, t in enumerate(out_of):
        assert torch.allclose(H[..., t, :], carried[..., s, :])
    assert torch.equal(w_next, beta.expand(2, 3, 4))
    assert torch.allclose(y, rms_norm(carried[..., 1, :], gain, eps=EPS), atol=1e-6)


@PATHS
def test_extreme_logits_give_finite_numbers(path, generator):
    """E07: tanh saturates, nothing overflows, under bfloat16 autocast too."""
    carried, f, w, gain, alpha, beta, alpha_proj, beta_proj, *_ = inputs(4, 12, generator)
    scale = torch.tensor(60.0)
    routing = HCRouting(alpha, beta, 1e4 * alpha_proj, 1e4 * beta_proj, scale, scale)
    leaves = [t.requires_grad_() for t in (carried, f, *routing)]
    with torch.autocast("cpu", torch.bfloat16):
        H, w_next, y = path.hc_boundary(carried, (f, w), routing, gain, routing_eps=EPS, eps=EPS)
    (H.sum() + w_next.sum() + y.sum()).backward()
    assert all(t.isfinite().all() for t in (H, w_next, y, *(leaf.grad for leaf in leaves)))
    assert H.dtype == torch.float32  # autocast must not round the streams


def test_small_gains_survive_bfloat16_streams(generator):
    """E07: a dynamic part of 1e-3 beside a static 1 is below bfloat16's spacing there."""
    carried, _, _, _, _, _, alpha_proj, beta_proj, *_ = inputs(4, 12, generator)
    small = torch.tensor(1e-3)
    static = torch.cat([torch.ones(4, 1), torch.eye(4)], 1)
    routing = HCRouting(static, torch.ones(4), alpha_proj, beta_proj, small, small)
    with torch.autocast("cpu", torch.bfloat16):
        got = hc_routing(carried.bfloat16(), routing, eps=ROUTING_EPS)
    exact = hc_routing(carried.bfloat16().double(), routing, eps=ROUTING_EPS)
    for g, e, at in zip(got, exact, (1.0, torch.eye(4), 1.0), strict=True):
        assert relative_error(g - at, e - at) < 1e-3

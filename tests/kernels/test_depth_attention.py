"""Attention over sequence and depth against float64 autograd of its formula, query by query."""

import math
from types import SimpleNamespace

import pytest
import torch
from comparing import worst_errors

from depthbench_kernels.depth_attention import eager, reference

RECOMPUTED = SimpleNamespace(depth_attention=eager.recomputed)  # what a GPU takes
PATHS = pytest.mark.parametrize("path", [reference, eager, RECOMPUTED])


def formula(q, k, v, *slots):
    """One softmax over the visible positions and the slots of one token, written out for each query."""
    (B, T, H, e), G, n = q.shape, k.shape[2], len(slots) // 2
    rows = []
    for h in range(H):
        g = h // (H // G)
        for t in range(T):
            keys = [k[:, s, g] for s in range(t + 1)] + [K[:, t, g] for K in slots[:n]]
            values = [v[:, s, g] for s in range(t + 1)] + [V[:, t, g] for V in slots[n:]]
            weights = [torch.exp((q[:, t, h] * key).sum(-1, keepdim=True) / math.sqrt(e)) for key in keys]
            rows.append(sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights))
    return torch.stack(rows, 1).view(B, H, T, e).transpose(1, 2)


def operation(path):
    def run(q, k, v, *slots):
        n = len(slots) // 2
        return path.depth_attention(q, k, v, slots[:n], slots[n:])

    return run


def inputs(H, G, e, n, generator, T=5):
    shapes = [(2, T, H, e), *[(2, T, G, e)] * (2 + 2 * n)]
    return [torch.randn(s, generator=generator) for s in shapes]


@PATHS
@pytest.mark.parametrize(("H", "G"), [(2, 2), (4, 2), (3, 1)])
@pytest.mark.parametrize("n", [0, 1, 6])
def test_matches_the_formula(path, H, G, n, generator):
    assert max(worst_errors(operation(path), formula, inputs(H, G, 6, n, generator))) < 1e-13


@PATHS
def test_float32_and_bfloat16_are_within_tolerance(path, generator):
    own = inputs(4, 2, 14, 8, generator, T=9)
    assert max(worst_errors(operation(path), formula, own, torch.float32)) < 5e-6
    outputs, gradients = worst_errors(operation(path), formula, [t.bfloat16() for t in own], None)
    assert outputs < 5e-3
    assert gradients < 2e-2


@pytest.mark.parametrize("e", [34, 50, 60, 76, 94, 108, 128])
def test_head_sizes_of_the_paper(e, generator):
    """E03: even, but few of them multiples of 8."""
    own = inputs(2, 1, e, 2, generator)
    assert max(worst_errors(operation(eager), formula, own)) < 1e-13


@PATHS
def test_zero_slots_take_weight_one_each(path, generator):
    """A zero key has score 0: with zero queries everything has the same weight."""
    _, k, v, *_ = inputs(1, 1, 4, 0, generator)
    zero = torch.zeros(2, 5, 1, 4)
    out = path.depth_attention(zero, k, v, [zero] * 3, [zero] * 3)
    for t in range(5):
        assert torch.allclose(out[:, t], v[:, : t + 1].sum(1) / (t + 4), atol=1e-6)


@PATHS
def test_slots_are_read_by_their_own_token(path, generator):
    q, k, v, K, V = inputs(2, 2, 4, 1, generator)
    before = path.depth_attention(q, k, v, [K], [V])
    K, V = K.clone(), V.clone()
    K[:, 2] += 1
    V[:, 2] += 1
    changed = (path.depth_attention(q, k, v, [K], [V]) - before).abs().amax((0, 2, 3)) > 1e-3
    assert changed.tolist() == [False, False, True, False, False]


@PATHS
def test_extreme_scores_give_finite_numbers(path, generator):
    """E07: scores of thousands."""
    leaves = [(50 * t).requires_grad_() for t in inputs(2, 1, 6, 4, generator)]
    with torch.autocast("cpu", torch.bfloat16):
        out = operation(path)(*leaves)
    out.sum().backward()
    assert out.dtype == torch.float32
    assert all(t.isfinite().all() for t in (out, *(leaf.grad for leaf in leaves)))


def test_no_matrix_over_pairs_of_positions_is_kept(generator):
    """Bytes that a forward pass keeps for backward grow with T, not with its square."""

    def kept(T):
        storages = {}

        def keep(t):
            storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        leaves = [t.requires_grad_() for t in inputs(2, 2, 4, 2, generator, T=T)]
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            out = operation(eager)(*leaves)
        assert out.requires_grad
        return sum(storages.values())

    assert kept(512) / kept(256) < 2.1


def test_no_matrix_of_a_block_is_kept_for_backward_on_a_gpu(generator):
    """A layer of MoDA (24, 1024) has 2 GB of them for eight windows of 2,048 tokens."""

    def saved_bytes(path):
        kept = {}

        def keep(t):
            kept[t.untyped_storage().data_ptr()] = t
            return t

        own = [t.requires_grad_() for t in inputs(2, 1, 8, 3, generator, T=64)]
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            operation(path)(*own)
        return sum(t.untyped_storage().nbytes() for t in kept.values())

    matrix = 2 * 2 * 64 * 64 * 4  # B, H, T, T in float32
    assert saved_bytes(RECOMPUTED) < matrix / 2 < matrix < saved_bytes(reference)

"""Depth mixing: the definition against float64 autograd, the workspace against the same, and its memory."""

import itertools

import pytest
import torch
from comparing import relative_error, worst_errors

from depthbench_kernels.depth_mix import depth_mix, depth_weights, eager, reference

EPS = 1e-3  # seen in float64 comparisons


def mixture(sources, w):
    """Return the mixture of a list of sources, written out: one source at a time."""
    scores = torch.stack([(w * v / (v.pow(2).mean(-1, keepdim=True) + EPS).sqrt()).sum(-1) for v in sources])
    p = scores.exp() / scores.exp().sum(0)
    return sum(p_i[..., None] * v for p_i, v in zip(p, sources, strict=True))


def chain(consume, embedding, gains, slopes):
    """A network of Q sites: the branch behind each site is tanh(slope y)."""
    y = embedding
    for gain, slope in zip(gains, slopes, strict=True):
        y = consume(torch.tanh(slope * y), gain)
    return y


def written_out(embedding, W, gains, slopes):
    sources = [embedding]

    def consume(newest, gain):
        sources.append(newest)
        h = mixture(sources, W[len(sources) - 2])
        return gain * h / (h.pow(2).mean(-1, keepdim=True) + EPS).sqrt()

    return chain(consume, embedding, gains, slopes)


def case(n_sources, generator, d=8):
    Q = n_sources - 1
    shapes = [(2, 3, d), (Q, d), (Q, d)]
    return [torch.randn(*s, generator=generator, dtype=torch.float64) for s in shapes], torch.randn(
        Q, d, generator=generator, dtype=torch.float64
    )


def run(function, leaves, slopes):
    leaves = [t.clone().requires_grad_() for t in leaves]
    y = function(*leaves, slopes)
    weight = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape)
    return [y.detach(), *torch.autograd.grad((y.double() * weight).sum(), leaves)]


def with_workspace(path, **options):
    def function(embedding, W, gains, slopes):
        return chain(path.Workspace(embedding, W, eps=EPS, **options).consume, embedding, gains, slopes)

    return function


@pytest.mark.parametrize("n_sources", [2, 3, 33, 49, 141])
def test_workspace_matches_autograd_for_any_number_of_sources(n_sources, generator):
    """E01: output and gradients of embedding, query-gain products and gains."""
    leaves, slopes = case(n_sources, generator)
    expected = run(written_out, leaves, slopes)
    for function in (with_workspace(eager), with_workspace(reference)):
        errors = list(map(relative_error, run(function, leaves, slopes), expected))
        assert max(errors) < 1e-11, errors


@pytest.mark.parametrize("group", [1, 3, 5, 20])
def test_the_size_of_a_group_does_not_matter(group, generator):
    leaves, slopes = case(12, generator)
    errors = map(
        relative_error,
        run(with_workspace(eager, group=group), leaves, slopes),
        run(written_out, leaves, slopes),
    )
    assert max(errors) < 1e-12


@pytest.mark.parametrize("n_sources", [1, 2, 32, 33, 49, 65, 141, 169])
def test_definition_for_any_number_of_sources(n_sources, generator):
    sources = torch.randn(n_sources, 2, 3, 8, generator=generator, dtype=torch.float64)
    w = torch.randn(8, generator=generator, dtype=torch.float64)
    h = mixture(list(sources), w)
    assert relative_error(depth_mix(list(sources), w, eps=EPS), h) < 1e-13
    gain = torch.randn(8, generator=generator, dtype=torch.float64)
    y = gain * h / (h.pow(2).mean(-1, keepdim=True) + EPS).sqrt()
    assert relative_error(depth_mix(list(sources), w, gain, eps=EPS), y) < 1e-13
    p = depth_weights(list(sources), w, eps=EPS)
    assert relative_error(torch.einsum("bts,sbtd->btd", p, sources), h) < 1e-13


@pytest.mark.parametrize("path", [reference, eager])
@pytest.mark.parametrize("n_sources", [2, 9, 33])
def test_one_site_over_a_list_matches_autograd(path, n_sources, generator):
    leaves = [torch.randn(8, generator=generator), torch.randn(8, generator=generator)]
    leaves += [torch.randn(2, 3, 8, generator=generator) for _ in range(n_sources)]

    def formula(w, gain, *sources):
        h = mixture(sources, w)
        return gain * h / (h.pow(2).mean(-1, keepdim=True) + EPS).sqrt()

    def site(w, gain, *sources):
        return path.depth_mix(sources, w, gain, eps=EPS)

    assert max(worst_errors(site, formula, leaves)) < 1e-13
    assert max(worst_errors(site, formula, leaves, torch.float32)) < 3e-5
    leaves = [*leaves[:2], *(v.bfloat16() for v in leaves[2:])]
    outputs, gradients = worst_errors(site, formula, leaves, None)
    assert outputs < 4e-3
    assert gradients < 1.5e-2


def test_zero_query_gives_the_mean(generator):
    sources = torch.randn(5, 2, 3, 8, generator=generator)
    assert torch.allclose(depth_mix(list(sources), torch.zeros(8), eps=EPS), sources.mean(0), atol=1e-6)


def test_float32_workspace(generator):
    leaves, slopes = case(49, generator)
    expected = run(written_out, leaves, slopes)
    got = run(with_workspace(eager), [t.float() for t in leaves], slopes.float())
    errors = dict(zip(("y", "embedding", "W", "gains"), map(relative_error, got, expected), strict=True))
    assert errors["y"] < 2e-6 * 5  # errors of 48 branches in a row accumulate
    assert max(errors["W"], errors["embedding"], errors["gains"]) < 3e-5


def test_bfloat16_workspace_loses_no_more_than_the_definition(generator):
    """The precision rules of the pull: query gradients at most 1.5x the error of plain bfloat16 autograd."""
    leaves, slopes = case(33, generator, d=64)
    leaves = [leaves[0].bfloat16(), leaves[1].mul(0.05).float(), leaves[2].float()]
    slopes = slopes.bfloat16()
    exact = run(written_out, [t.double() for t in leaves], slopes.double())
    ours = [relative_error(*pair) for pair in zip(run(with_workspace(eager), leaves, slopes), exact, strict=True)]
    plain = [relative_error(*pair) for pair in zip(run(with_workspace(reference), leaves, slopes), exact, strict=True)]
    assert all(mine < 1.5 * theirs for mine, theirs in zip(ours, plain, strict=True)), (ours, plain)


def test_extreme_scores_give_finite_numbers(generator):
    """E07: scores of hundreds; the largest is taken off before the exponential."""
    leaves, slopes = case(20, generator)
    leaves = [leaves[0].float(), 200 * leaves[1].float(), leaves[2].float()]
    assert all(t.isfinite().all() for t in run(with_workspace(eager), leaves, slopes.float()))


def test_a_second_backward_is_refused(generator):
    leaves, slopes = case(4, generator)
    y = with_workspace(eager)(leaves[0].requires_grad_(), *leaves[1:], slopes)
    y.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass is allowed"):
        y.sum().backward()


def test_a_backward_that_leaves_out_sites_is_refused(generator):
    (embedding, W, gains), _ = case(4, generator)
    embedding.requires_grad_()
    ws = eager.Workspace(embedding, W, eps=EPS)
    y = ws.consume(torch.tanh(embedding), gains[0])
    with pytest.raises(RuntimeError, match="through all sites in order"):
        y.sum().backward()


def test_more_sites_than_weights_are_refused(generator):
    (embedding, W, gains), slopes = case(4, generator)
    ws = eager.Workspace(embedding, W, eps=EPS)
    chain(ws.consume, embedding, gains, slopes)
    with pytest.raises(RuntimeError, match="all 3 sites of this workspace have been read"):
        ws.consume(embedding, gains[0])


def held_bytes(n_sources, path, generator):
    """Bytes of storage that a forward pass keeps for backward: saved tensors and the workspace's own."""
    leaves, slopes = case(n_sources, generator, d=64)
    storages = {}

    def keep(t):
        storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    embedding, W, gains = (t.float().requires_grad_() for t in leaves)
    ws = path.Workspace(embedding, W, eps=EPS)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        y = chain(ws.consume, embedding, gains, slopes.float())
    for value in vars(ws).values():
        if isinstance(value, torch.Tensor):
            keep(value)
    assert y.requires_grad
    return sum(storages.values())


def test_memory_grows_with_depth_not_with_its_square(generator):
    """E02: 2L + 1 sources at L = 8 and L = 16."""
    assert held_bytes(33, eager, generator) / held_bytes(17, eager, generator) < 2.1
    assert held_bytes(33, reference, generator) / held_bytes(17, reference, generator) > 3


def peak_bytes(function):
    """The most bytes of tensors at a time, above what there was before."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        function()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))
    return max(held)


@pytest.mark.parametrize(("path", "low", "high"), [(eager, 3, 8), (reference, 100, 200)])
def test_peak_of_a_step_in_units_of_all_sources(path, low, high, generator):
    """L = 70, forward and backward, branches included: eager needs a fixed number of copies, stacks one per site."""
    leaves, slopes = case(141, generator, d=64)
    leaves = [t.float().requires_grad_() for t in leaves]
    sources = 4 * 141 * leaves[0].numel()
    peak = peak_bytes(lambda: with_workspace(path)(*leaves, slopes.float()).sum().backward())
    assert low < peak / sources < high


def test_buffers_are_freed_by_backward(generator):
    """A loss that outlives its step must not keep the sources of that step."""
    (embedding, W, gains), slopes = case(12, generator)
    ws = eager.Workspace(embedding.requires_grad_(), W, eps=EPS)
    loss = chain(ws.consume, embedding, gains, slopes).sum()
    loss.backward()
    assert sum(t.numel() for t in vars(ws).values() if isinstance(t, torch.Tensor)) == 2 * W.numel()


def test_workspace_without_gradients(generator):
    leaves, slopes = case(9, generator)
    with torch.no_grad():
        y = with_workspace(eager)(*leaves, slopes)
    assert relative_error(y, written_out(*leaves, slopes)) < 1e-12

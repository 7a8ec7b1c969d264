"""Kernels of depth mixing, in Triton's interpreter, against float64 autograd of the formula."""

import pytest
import torch
from comparing import assert_close, relative_error, results
from test_depth_mix import EPS, case, chain, mixture, run, with_workspace, written_out

from depthbench_kernels import BackendError, depth_mix, paths
from depthbench_kernels.depth_mix import _workspace, eager, reference

pytestmark = pytest.mark.interpret
pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def _no_other_path(triton_backend, monkeypatch):
    """A result without these proves that the kernels ran."""
    assert paths()["depth_mix"] == "triton"
    for module in (reference, eager):
        monkeypatch.delattr(module, "depth_mix")
        monkeypatch.delattr(module, "Workspace")


def site(w, gain, *sources):
    return depth_mix.depth_mix(sources, w, gain, eps=EPS)


def formula(w, gain, *sources):
    h = mixture(sources, w)
    return gain * h / (h.pow(2).mean(-1, keepdim=True) + EPS).sqrt()


def operands(n_sources, d, generator, tokens=5):
    w, gain = (torch.randn(d, generator=generator) for _ in range(2))
    return [0.3 * w, gain, *torch.randn(n_sources, tokens, d, generator=generator)], ["query", "gain"] + [
        "input"
    ] * n_sources


@pytest.mark.parametrize(
    ("n_sources", "d", "dtype"),
    [
        (2, 40, torch.float32),
        (2, 56, torch.bfloat16),
        (3, 76, torch.float32),
        (33, 96, torch.bfloat16),
        (49, 40, torch.float32),
        *(
            pytest.param(n, 40, dtype, marks=pytest.mark.slow)
            for n in (65, 141, 169)  # 169: the deepest model of the paper, L = 84
            for dtype in (torch.float32, torch.bfloat16)
        ),
    ],
)
def test_one_site_matches_the_formula(n_sources, d, dtype, generator):
    """E01: no number of sources is special."""
    assert_close(site, formula, *operands(n_sources, d, generator, tokens=3), dtype)


def test_strided_and_unaligned_sources(generator):
    (w, gain, *sources), kinds = operands(3, 40, generator)
    odd = torch.randn(5 * 40 + 1, generator=generator)[1:].view(5, 40)
    assert odd.data_ptr() % 16
    strided = torch.randn(40, 5, generator=generator).T
    own = [w.repeat_interleave(2)[::2], gain, sources[0], strided, odd]
    assert_close(site, formula, own, kinds, torch.float32)


def test_zero_query_gives_the_mean(generator):
    (_, gain, *sources), _ = operands(4, 40, generator)
    h = torch.stack(sources).mean(0)
    y = gain * h / (h.pow(2).mean(-1, keepdim=True) + EPS).sqrt()
    assert relative_error(site(torch.zeros(40), gain, *sources), y) < 2e-7


def test_extreme_scores(generator):
    """E07: scores above 100, where float32 has no exponential; the largest is taken off, wherever it stands."""
    (w, gain, *sources), _ = operands(5, 40, generator)
    own = [100 * w, gain, *sources]
    (y,), got = results(site, own, torch.float32)
    (exact,), expected = results(formula, own, torch.float64)
    assert relative_error(y, exact) < 1e-4
    assert relative_error(torch.cat(got[2:]), torch.cat(expected[2:])) < 1e-3
    assert all(t.isfinite().all() for t in got)


def test_a_site_is_compiled_as_one_opaque_call(generator):
    own, _ = operands(3, 40, generator)
    got = results(torch.compile(site, backend="aot_eager", fullgraph=True), own, torch.float32)
    expected = results(site, own, torch.float32)
    assert all(torch.equal(a, b) for one, two in zip(got, expected, strict=True) for a, b in zip(one, two, strict=True))


NAMES = ("y", "embedding", "W", "gains")


def small(n_sources, generator, d=40, tokens=3):
    """A case whose queries do not amplify the errors from branch to branch."""
    leaves, slopes = case(n_sources, generator, d)
    leaves[0] = leaves[0].flatten(0, 1)[:tokens]
    leaves[1] *= 0.05
    return leaves, slopes


@pytest.mark.parametrize(
    ("n_sources", "d"), [(2, 40), (3, 76), (9, 160), (10, 56), (33, 96), pytest.param(49, 40, marks=pytest.mark.slow)]
)
def test_workspace_matches_autograd(n_sources, d, generator):
    """E01: output and gradients of embedding, query-gain products and gains; groups of eight, begun and full."""
    leaves, slopes = small(n_sources, generator, d)
    expected = run(written_out, leaves, slopes)
    got = run(with_workspace(depth_mix_entry), [t.float() for t in leaves], slopes.float())
    errors = dict(zip(NAMES, map(relative_error, got, expected), strict=True))
    assert errors["y"] < 2e-6, errors
    assert max(errors["embedding"], errors["gains"]) < 2e-5, errors
    assert errors["W"] < 3e-5, errors


@pytest.mark.slow
def test_workspace_of_the_deepest_model(generator):
    """L = 70, 141 sources; errors of 140 branches in a row accumulate."""
    leaves, slopes = small(141, generator)
    expected = run(written_out, leaves, slopes)
    got = run(with_workspace(depth_mix_entry), [t.float() for t in leaves], slopes.float())
    assert max(map(relative_error, got, expected)) < 3e-5


class depth_mix_entry:  # noqa: N801  stands for a path in `with_workspace`
    Workspace = staticmethod(depth_mix.workspace)


def test_bfloat16_workspace_loses_no_more_than_plain_autograd(generator, monkeypatch):
    """The precision rules of the pull, and of products whose operands are rounded."""
    leaves, slopes = small(18, generator, 64)
    leaves = [leaves[0].bfloat16(), leaves[1].float(), leaves[2].float()]
    slopes = slopes.bfloat16()
    exact = run(written_out, [t.double() for t in leaves], slopes.double())
    ours = run(with_workspace(depth_mix_entry), leaves, slopes)
    monkeypatch.undo()
    plain = run(with_workspace(reference), leaves, slopes)
    ours, plain = ([relative_error(*pair) for pair in zip(got, exact, strict=True)] for got in (ours, plain))
    assert all(mine < 1.5 * theirs for mine, theirs in zip(ours, plain, strict=True)), (ours, plain)


def test_workspace_gives_the_same_bits_each_time(generator):
    leaves, slopes = small(11, generator)
    leaves, slopes = [t.float() for t in leaves], slopes.float()
    first, again = (run(with_workspace(depth_mix_entry), leaves, slopes) for _ in range(2))
    assert all(map(torch.equal, first, again))


def test_workspace_takes_strided_branches_and_gradients(generator):
    """Branch outputs and gradients that are transposed views."""
    (embedding, W, gains), _ = small(4, generator)

    def turned(consume, x):
        for gain in gains.to(x.dtype):
            x = consume(x.T.contiguous().T, gain).T.contiguous().T
        return x

    def function(path):
        return lambda x, W: turned(path(x, W), x)

    def written(x, W):
        sources = [x]

        def consume(newest, gain):
            sources.append(newest)
            return formula(W[len(sources) - 2], gain, *sources)

        return consume

    def kernels(x, W):
        return depth_mix.workspace(x, W, eps=EPS).consume

    assert_close(function(kernels), function(written), [embedding, W.float()], ["input", "query"], torch.float32)


def test_buffers_are_freed_and_a_second_backward_refused(generator):
    (embedding, W, gains), slopes = small(12, generator)
    ws = depth_mix.workspace(embedding.float().requires_grad_(), W.float(), eps=EPS)
    assert isinstance(ws, _workspace.Workspace)
    loss = chain(ws.consume, embedding.float(), gains.float(), slopes.float()).sum()
    loss.backward(retain_graph=True)
    assert sum(t.numel() for t in vars(ws).values() if isinstance(t, torch.Tensor)) == 2 * W.numel()
    with pytest.raises(RuntimeError, match="through all sites in order"):
        loss.backward()


def test_float64_is_refused(generator):
    (embedding, W, gains), _ = small(3, generator)
    with pytest.raises(BackendError, match=r"depth_mix: kernels=triton takes .*not float64; choose kernels=reference"):
        depth_mix.workspace(embedding, W, eps=EPS)
    with pytest.raises(BackendError, match="not float64"):
        site(W[0], gains[0], embedding)

"""The kernels of the HC and mHC boundaries in Triton's interpreter, against float64 autograd of the formulas."""

from functools import partial

import pytest
import test_mhc
import test_streams
import torch
from comparing import relative_error, results

from depthbench_kernels import BackendError, backend, paths, streams
from depthbench_kernels.streams import eager, reference

pytestmark = [pytest.mark.interpret, pytest.mark.usefixtures("triton_backend")]
BOTH = pytest.mark.parametrize("of", [test_streams, test_mhc], ids=["hc", "mhc"])
INPUTS = 3  # streams, branch output and its write weights; what follows are parameters
TOLERANCES = {
    # streams and y, write weights, gradients of inputs, of parameters
    torch.float32: (2e-6, 1e-6, 2e-6, 2e-5),
    torch.bfloat16: (4e-3, 5e-3, 6e-3, 2e-2),
}


@pytest.fixture
def path():
    from depthbench_kernels.streams import triton

    return triton


def check(got, expected, of_eager, dtype):
    streams_, weights, inputs, parameters = TOLERANCES[dtype]
    (H, w, y), gradients = got
    (H_, w_, y_), gradients_ = expected
    assert H.dtype == y.dtype == dtype
    assert w.dtype == torch.float32
    assert max(relative_error(H, H_), relative_error(y, y_)) < streams_
    assert relative_error(w, w_) < weights
    errors = [relative_error(g, g_) for g, g_ in zip(gradients, gradients_, strict=True)]
    assert max(errors[:INPUTS]) < inputs, errors
    # the gradient of a scale is one number, which may be small by chance: no worse than eager's
    theirs = map(relative_error, of_eager[1], gradients_)
    assert all(a < max(parameters, 1.1 * b) for a, b in zip(errors[INPUTS:], list(theirs)[INPUTS:], strict=True))
    if dtype == torch.float32:
        assert max(float((a - b).abs().max() / b.abs().max()) for a, b in ((H, H_), (y, y_))) < 1e-5


@BOTH
@pytest.mark.parametrize("dtype", TOLERANCES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("tokens", "m", "d"), [((1, 7), 4, 40), ((3, 7), 4, 76), ((1, 1), 4, 96), ((1, 5), 2, 56)])
def test_matches_the_formula(of, path, dtype, tokens, m, d, generator):
    own = of.inputs(m, d, generator, tokens)
    own[:2] = [t.to(dtype) for t in own[:2]]
    definition = partial(of.formula, storage=dtype)  # streams are rounded before they are used
    got, of_eager = (results(of.boundary(p), own, None) for p in (path, eager))
    check(got, results(definition, own, torch.float64), of_eager, dtype)


@BOTH
def test_first_connector_reads_one_tensor_as_all_streams(of, path, generator):
    """Nothing is pending, and the streams lie in memory once."""
    _, f, w, *parameters = of.inputs(4, 40, generator, (1, 7))

    def first(x0, *parameters):
        return of.boundary(path, pending=False)(x0[..., None, :].expand(1, 7, 4, 40), None, None, *parameters)

    def definition(x0, *parameters):
        zero = 0 * f.double(), 0 * w.double()
        return of.formula(x0[..., None, :].expand(1, 7, 4, 40), *zero, *parameters)

    own = [torch.randn(1, 7, 40, generator=generator), *parameters]
    (outputs, gradients), (outputs_, gradients_) = results(first, own, None), results(definition, own, torch.float64)
    assert max(map(relative_error, outputs, outputs_)) < 2e-6
    # all streams are equal: the gradient of their first read is rounding alone, so its norm is taken with the others'
    errors = [g.double() - g_ for g, g_ in zip(gradients, gradients_, strict=True)]
    assert relative_error(gradients[0], gradients_[0]) < 2e-6
    assert (
        torch.cat([e.flatten() for e in errors[1:]]).norm()
        < 2e-5 * torch.cat([g.flatten() for g in gradients_[1:]]).norm()
    )


@BOTH
def test_strided_operands_and_the_same_bits_each_time(of, path, generator):
    own = of.inputs(4, 40, generator, (3, 7))

    def strided(t):
        return t if t.dim() < 2 else torch.stack([t, t], -1)[..., 0]

    runs = [results(of.boundary(path), [place(t) for t in own], None) for place in (strided, strided, torch.clone)]
    for outputs, gradients in runs[1:]:
        assert all(map(torch.equal, outputs, runs[0][0]))
        assert all(map(torch.equal, gradients, runs[0][1]))


@BOTH
def test_the_kernels_run_where_triton_is_chosen(of, path, generator, monkeypatch):
    own = of.inputs(4, 40, generator, (1, 7))
    expected = results(of.boundary(path), own, None)
    assert backend() == "triton"
    assert paths()["streams"] == "triton"
    name = "hc_boundary" if of is test_streams else "mhc_boundary"
    for module in (reference, eager):
        monkeypatch.setattr(module, name, lambda *a, **k: pytest.fail("another path ran"))
    outputs, gradients = results(of.boundary(streams), own, None)
    assert all(map(torch.equal, outputs, expected[0]))
    assert all(map(torch.equal, gradients, expected[1]))


@BOTH
def test_what_the_kernels_cannot_do_is_refused(of, path, generator):
    for m in (1, 3, 8):
        with pytest.raises(BackendError, match=f"2 or 4 streams, not {m}; choose kernels=eager$"):
            of.boundary(path)(*of.inputs(m, 40, generator))
    with pytest.raises(BackendError, match=r"not float64; choose kernels=reference$"):
        of.boundary(path)(*(t.double() for t in of.inputs(4, 40, generator)))


@pytest.mark.parametrize("iters", [1, 2, 20, 33])
def test_sinkhorn_of_large_logits_and_any_number_of_iterations(path, iters, generator):
    """E07: logits of +-60; the gradient is that of the very iterations that ran."""
    own = test_mhc.inputs(4, 40, generator, (1, 7))
    own[5][8:] = (20 * own[5][8:]).clamp(-60, 60)

    def definition(*leaves):
        return test_mhc.formula(*leaves, iters=iters, sinkhorn_eps=1e-6)

    got = results(test_mhc.boundary(path, iters, 1e-6), own, None)
    expected = results(definition, own, torch.float64)
    assert max(map(relative_error, got[0], expected[0])) < 2e-6
    assert max(map(relative_error, got[1], expected[1])) < 2e-5


@pytest.mark.parametrize("size", [1e-4, 1e-2, 0.12, 0.13, 1.0, 20.0])
def test_tanh_keeps_the_precision_of_its_argument(path, size, generator):
    """Projections start at 0: the gains learn from tanh of logits far below 1."""
    own = test_streams.inputs(4, 40, generator, (1, 7))
    own[6:8] = [size * t for t in own[6:8]]
    got = results(test_streams.boundary(path), own, None)[1]
    expected = results(test_streams.formula, own, torch.float64)[1]
    assert max(map(relative_error, got[6:], expected[6:])) < 2e-5


@BOTH
def test_compiled_graphs_call_the_kernels(of, path, generator):
    own = of.inputs(4, 40, generator, (1, 7))
    compiled = torch.compile(of.boundary(path), backend="aot_eager", fullgraph=True)
    got, expected = (results(f, own, None) for f in (compiled, of.boundary(path)))
    assert all(map(torch.equal, got[0], expected[0]))
    assert all(map(torch.equal, got[1], expected[1]))


@BOTH
def test_no_tokens_give_gradients_of_zero(of, path, generator):
    outputs, gradients = results(of.boundary(path), of.inputs(4, 40, generator, (0, 3)), None)
    assert [len(output) for output in outputs] == [0, 0, 0]
    assert not any(g.any() for g in gradients)

"""Kernels of residual addition and norm, in Triton's interpreter, against float64 autograd of the formula."""

import pytest
import torch
from comparing import assert_close, results
from test_norms import ALPHA, EPS, MODES, SCALE, inputs, keel, operation, pre, rms

from depthbench_kernels import BackendError, norms, paths
from depthbench_kernels.norms import eager, reference

pytestmark = pytest.mark.interpret
triton = pytest.importorskip("triton")


def kinds(own):
    return ["input", "input", "gain", "gain"][: len(own)]


@pytest.fixture(autouse=True)
def _no_other_path(triton_backend, monkeypatch):
    """A result without these proves that the kernels ran."""
    assert paths()["norms"] == "triton"
    for module in (reference, eager):
        monkeypatch.delattr(module, "add_norm")
        monkeypatch.delattr(module, "rms_norm")


@MODES
@pytest.mark.parametrize(
    ("d", "dtype"), [(40, torch.float32), (76, torch.float32), (56, torch.bfloat16), (96, torch.bfloat16)]
)
def test_add_norm_matches_the_formula(formula, dtype, d, generator):
    own = inputs(d, generator, formula)
    assert_close(operation(norms, formula), formula, own, kinds(own), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("d", [1, 33])
def test_norm_alone_matches_the_formula(dtype, d, generator):
    x, _, gain = inputs(d, generator)
    assert_close(
        lambda x, gain: norms.rms_norm(x, gain, eps=EPS, scale=SCALE),
        lambda x, gain: SCALE * rms(x, gain),
        [x, gain],
        ["input", "gain"],
        dtype,
    )


@MODES
def test_float32_stream_beside_a_bfloat16_branch(formula, generator):
    """KEEL under autocast: the stream stays float32, the gradient of the branch is bfloat16."""
    x, f, *gains = inputs(40, generator, formula)
    f = f.bfloat16()
    (x_new, y), (dx, df, *_) = results(operation(norms, formula), [x, f, *gains], None)
    expected, (_, exact, *_) = results(formula, [x, f, *gains], torch.float64)
    assert (x_new.dtype, y.dtype, dx.dtype, df.dtype) == (torch.float32,) * 3 + (torch.bfloat16,)
    assert (x_new - expected[0]).norm() < 2e-6 * expected[0].norm()
    assert (df - exact).norm() < 6e-3 * exact.norm()


@MODES
@pytest.mark.parametrize("read", [0, 1])
def test_gradients_where_one_output_alone_is_read(formula, read, generator):
    def one(function, skipped=None):
        return lambda *leaves: function(*leaves[:2], *([] if skipped is None else [skipped]), *leaves[2:])[read]

    x, f, *gains = inputs(40, generator, formula)
    # The gain of y plays no part in the stream
    skipped = gains.pop(0) if read == 0 and formula.__name__ != "post" else None
    own = [x, f, *gains]
    exact = None if skipped is None else skipped.double()
    assert_close(one(operation(norms, formula), skipped), one(formula, exact), own, kinds(own), torch.float32)


@MODES
def test_strided_inputs_and_gradients(formula, generator):
    """Transposed tokens, every second channel, and a gradient that is one number expanded."""
    own = [t.repeat_interleave(2, -1)[..., ::2] for t in inputs(40, generator, formula)]
    own[:2] = (t.transpose(0, 1) for t in own[:2])
    assert not any(t.is_contiguous() for t in own)
    assert_close(operation(norms, formula), formula, own, kinds(own), torch.float32)
    leaves = [t.clone().requires_grad_() for t in own]
    exact = [t.double().detach().requires_grad_() for t in own]
    got = torch.autograd.grad(sum(o.sum() for o in operation(norms, formula)(*leaves)), leaves)
    expected = torch.autograd.grad(sum(o.sum() for o in formula(*exact)), exact)
    assert all((a - b).norm() < 2e-5 * b.norm().clamp_min(1) for a, b in zip(got, expected, strict=True))


@MODES
def test_the_same_bits_each_time(formula, generator):
    own = inputs(76, generator, formula)
    first, again = (results(operation(norms, formula), own, torch.float32) for _ in range(2))
    assert all(torch.equal(a, b) for one, two in zip(first, again, strict=True) for a, b in zip(one, two, strict=True))


def test_no_tokens(generator):
    x = torch.empty(0, 40, requires_grad=True)
    gain = torch.ones(40, requires_grad=True)
    y = norms.rms_norm(x, gain, eps=EPS)
    y.sum().backward()
    assert y.shape == (0, 40)
    assert torch.equal(gain.grad, torch.zeros(40))


@pytest.mark.parametrize("formula", [keel, pre])
def test_compiled_as_one_opaque_call(formula, generator):
    own = inputs(40, generator, formula)
    compiled = torch.compile(operation(norms, formula), backend="aot_eager", fullgraph=True)
    got = results(compiled, own, torch.float32)
    expected = results(operation(norms, formula), own, torch.float32)
    assert all(torch.equal(a, b) for one, two in zip(got, expected, strict=True) for a, b in zip(one, two, strict=True))


def test_float64_is_refused(generator):
    with pytest.raises(BackendError, match="takes float32, bfloat16 and float16, not float64"):
        norms.add_norm(*inputs(5, generator)[:2], torch.ones(5).double(), eps=EPS, mode=pre.__name__, alpha=ALPHA)

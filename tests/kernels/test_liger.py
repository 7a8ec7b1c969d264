"""What the adapters of liger-kernel hand over, on a CPU; on a GPU, what comes back against the reference.

The stand-ins compute what Liger's documentation says of its functions, with its names and defaults.
"""

import inspect
import sys
from importlib import import_module
from types import ModuleType

import pytest
import test_mhc
import torch
from comparing import relative_error, results

from depthbench_kernels import BackendError
from depthbench_kernels.linear_cross_entropy import reference as loss_reference
from depthbench_kernels.streams import reference as streams_reference

pytest.importorskip("triton")  # which liger-kernel brings, and the module of streams imports
LIBRARY = "liger_kernel.transformers.functional"
ADAPTERS = ("depthbench_kernels.streams.liger", "depthbench_kernels.linear_cross_entropy.liger")


def liger_mhc_coeffs(
    x,
    phi,
    b,
    alpha_pre,
    alpha_post,
    alpha_res,
    *,
    allow_fp32=False,
    tmax=20,
    rms_eps=1e-6,
    pre_eps=0.0,
    sinkhorn_eps=1e-6,
    post_mult=2.0,
):
    m = x.shape[-2]
    flat = x.flatten(-2).to(phi.dtype)
    mix = (flat @ phi) * torch.rsqrt(flat.pow(2).mean(-1, keepdim=True) + rms_eps)
    pre = torch.sigmoid(alpha_pre * mix[..., :m] + b[:m]) + pre_eps
    post = post_mult * torch.sigmoid(alpha_post * mix[..., m : 2 * m] + b[m : 2 * m])
    logits = (alpha_res * mix[..., 2 * m :] + b[2 * m :]).unflatten(-1, (m, m))
    return pre, post, test_mhc.sinkhorn_in_loops(logits, tmax, sinkhorn_eps)


def liger_mhc_pre(x, h_pre):
    return torch.einsum("...i,...id->...d", h_pre, x.to(h_pre.dtype)).to(x.dtype)


def liger_mhc_post_res(x, f_out, h_post, h_res):
    wide = torch.einsum("...oi,...id->...od", h_res, x.to(h_res.dtype)) + h_post[..., None] * f_out[..., None, :]
    return wide.to(x.dtype)


def liger_fused_linear_cross_entropy(input, weight, target, *, ignore_index=-100, reduction="mean", accum_dtype=None):
    assert accum_dtype == torch.float32
    return torch.nn.functional.cross_entropy(input @ weight.T, target, ignore_index=ignore_index, reduction=reduction)


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: Liger's kernels were not run")
STANDINS = (liger_mhc_coeffs, liger_mhc_pre, liger_mhc_post_res, liger_fused_linear_cross_entropy)


@pytest.fixture
def adapters(monkeypatch):
    """The adapters with the stand-ins in place of the library."""
    fake = ModuleType(LIBRARY)
    for function in STANDINS:
        setattr(fake, function.__name__, function)
    for name in (LIBRARY, "liger_kernel.transformers", "liger_kernel"):
        monkeypatch.setitem(sys.modules, name, fake)
    for name in ADAPTERS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield [import_module(name) for name in ADAPTERS]
    for name in ADAPTERS:
        del sys.modules[name]


def boundary_case(m=4, device="cpu", dtype=torch.bfloat16):
    own = test_mhc.inputs(m, 40, torch.Generator().manual_seed(0), (2, 7))
    return [t.to(device, dtype) if i < 2 else t.to(device) for i, t in enumerate(own)]


def loss_case(device="cpu", dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 40, generator=generator).to(device, dtype).requires_grad_() for n in (9, 23))
    target = torch.randint(23, (9,), generator=generator).to(device)
    target[3] = -100
    return x, weight, target


def test_boundary_hands_over_our_formula(adapters):
    own = boundary_case()
    got = results(test_mhc.boundary(adapters[0]), own, None)
    expected = results(test_mhc.boundary(streams_reference), own, None)
    for ours, theirs in zip(got[0] + list(got[1]), expected[0] + list(expected[1]), strict=True):
        assert ours.dtype == theirs.dtype
        assert relative_error(ours, theirs) < 1e-2  # u and carried' are rounded once more
    assert relative_error(got[0][1], expected[0][1]) < 1e-6  # write weights, from the same streams


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"m": 3}, "power of two of streams, not 3; choose kernels=eager"),
    ],
)
def test_boundary_refuses_what_would_be_wrong(adapters, changes, message):
    with pytest.raises(BackendError, match=message):
        test_mhc.boundary(adapters[0])(*boundary_case(**changes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_streams_take_triton(adapters, monkeypatch, dtype):
    """Liger would round their products to TF32."""
    own = boundary_case(dtype=dtype)
    expected = results(test_mhc.boundary(streams_reference), own, None)
    monkeypatch.setattr(adapters[0].triton, "mhc_boundary", streams_reference.mhc_boundary)
    monkeypatch.setattr(adapters[0], "liger_mhc_coeffs", None)
    got = results(test_mhc.boundary(adapters[0]), own, None)
    for ours, theirs in zip(got[0] + list(got[1]), expected[0] + list(expected[1]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_boundary_refuses_offsets_beyond_32_bits(adapters, monkeypatch):
    monkeypatch.setattr(adapters[0], "LARGEST", 2 * 7 * 4 * 40)
    with pytest.raises(BackendError, match=r"not 2240; choose a smaller micro_batch$"):
        test_mhc.boundary(adapters[0])(*boundary_case())


def test_loss_is_the_sum(adapters):
    x, weight, target = loss_case()
    ours, theirs = (path.linear_cross_entropy(x, weight, target) for path in (adapters[1], loss_reference))
    assert torch.equal(ours, theirs)


def test_loss_refuses_what_would_be_wrong(adapters):
    x, weight, target = loss_case()
    with pytest.raises(BackendError, match=r"float64; choose kernels=reference$"):
        adapters[1].linear_cross_entropy(x.double(), weight.double(), target)
    with pytest.raises(BackendError, match=r"no gradient of the weight where x needs none; choose kernels=eager$"):
        adapters[1].linear_cross_entropy(x.detach(), weight, target)
    with torch.no_grad():
        assert adapters[1].linear_cross_entropy(x.detach(), weight, target) > 0


def test_the_library_takes_the_arguments_of_its_standins():
    pytest.importorskip("liger_kernel")
    library = import_module(LIBRARY)
    for function in STANDINS:
        ours, theirs = inspect.signature(function).parameters, inspect.signature(getattr(library, function.__name__))
        for name, parameter in ours.items():
            assert theirs.parameters[name].default == parameter.default, (function.__name__, name)


@pytest.mark.gpu
@GPU
def test_boundary_on_a_gpu():
    pytest.importorskip("liger_kernel")
    own, path = boundary_case(device="cuda"), import_module(ADAPTERS[0])
    got = results(test_mhc.boundary(path), own, None)
    expected = results(test_mhc.boundary(streams_reference), own, torch.float64)
    outputs = [relative_error(a, b) for a, b in zip(got[0], expected[0], strict=True)]
    gradients = [relative_error(a, b) for a, b in zip(got[1], expected[1], strict=True)]
    assert max(outputs) < 5e-3
    assert max(gradients[:3]) < 6e-3
    assert max(gradients[3:]) < 2e-2


@pytest.mark.gpu
@GPU
@pytest.mark.parametrize("autocast", [False, True])
def test_loss_on_a_gpu(autocast):
    pytest.importorskip("liger_kernel")
    x, weight, target = loss_case("cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        loss = import_module(ADAPTERS[1]).linear_cross_entropy(x, weight, target)
    got = torch.autograd.grad(0.37 * loss, (x, weight))
    exact = [t.detach().double().requires_grad_() for t in (x, weight)]
    expected_loss = loss_reference.linear_cross_entropy(*exact, target)
    expected = torch.autograd.grad(0.37 * expected_loss, exact)
    assert relative_error(loss, expected_loss) < (4e-3 if autocast else 1e-6)
    assert max(map(relative_error, got, expected)) < (2e-2 if autocast else 1e-5)

"""The choice of a backend: once per process, by name, never changed silently; nothing heavy is imported."""

import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest
import torch

from depthbench_kernels import BackendError, _select, backend, paths, use
from depthbench_kernels.norms import eager, reference, rms_norm

OPERATIONS = {"norms", "depth_mix", "depth_attention", "streams", "linear_cross_entropy"}


@pytest.fixture(autouse=True)
def _undecided(monkeypatch):
    monkeypatch.setattr(_select, "_chosen", None)


@pytest.fixture
def machine(monkeypatch):
    """Make a machine with or without CUDA and the libraries of backends."""

    def make(cuda=False, libraries=("triton", "liger_kernel"), interpreter=False):
        found = _select.find_spec
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setenv("TRITON_INTERPRET", str(int(interpreter)))
        monkeypatch.setattr(
            _select, "find_spec", lambda n: found(n) if "." in n else n in libraries and ModuleSpec(n, None)
        )

    return make


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ({}, "eager"),
        ({"interpreter": True}, "eager"),
        ({"cuda": True, "libraries": ()}, "eager"),
        ({"cuda": True}, "triton"),
    ],
)
def test_auto_is_triton_where_there_is_a_gpu_and_triton(machine, there, expected):
    machine(**there)
    if expected == "triton":
        pytest.importorskip("triton")
    assert use("auto") == expected
    assert backend() == expected


def test_without_a_choice_operations_run_where_a_tensor_is(machine):
    """Also on a machine with a GPU: models are made, and loaded, on the CPU."""
    machine(cuda=True)
    assert rms_norm(torch.ones(2, 4), torch.ones(4), eps=0.0).equal(torch.ones(2, 4))
    assert backend() == "eager"


@pytest.mark.parametrize(
    ("name", "there", "reason"),
    [
        ("triton", {}, "no CUDA device"),
        ("liger", {}, "no CUDA device"),
        ("liger", {"interpreter": True}, "no CUDA device"),
        ("triton", {"cuda": True, "libraries": ()}, "triton is not installed"),
        ("liger", {"cuda": True, "libraries": ("triton",)}, "liger_kernel is not installed"),
    ],
)
def test_missing_backend_is_refused_in_one_line(machine, name, there, reason):
    machine(**there)
    with pytest.raises(BackendError, match=rf"^kernels={name}: {reason}; choose auto, eager or reference$"):
        use(name)


@pytest.mark.parametrize("there", [{"cuda": True}, {"interpreter": True}])
def test_triton_is_there_with_cuda_or_in_its_interpreter(machine, there):
    pytest.importorskip("triton")
    machine(**there)
    assert use("triton") == "triton"


@pytest.mark.parametrize("name", ["reference", "eager"])
def test_paths_name_the_module_of_every_operation(name):
    use(name)
    assert paths() == dict.fromkeys(OPERATIONS, name)


def test_operations_without_kernels_run_eager_under_triton(machine):
    pytest.importorskip("triton")
    machine(cuda=True)
    use("triton")
    assert paths().keys() == OPERATIONS
    assert paths()["depth_attention"] == "eager"


def test_kernels_refuse_a_tensor_that_is_not_on_their_device(machine):
    pytest.importorskip("triton")
    machine(cuda=True)
    use("triton")
    with pytest.raises(
        BackendError, match=r"^add_norm: kernels=triton cannot read a tensor on cpu; choose kernels=eager"
    ):
        rms_norm(torch.ones(2, 4), torch.ones(4), eps=1e-6)


@pytest.mark.interpret
def test_operations_take_their_kernels():
    """Collected where Triton is not installed too, so that the process of these tests is never an empty one."""
    pytest.importorskip("triton")
    assert use("triton") == "triton"
    assert paths()["norms"] == paths()["depth_mix"] == "triton"
    assert rms_norm(torch.ones(2, 4), torch.ones(4), eps=0.0).equal(torch.ones(2, 4))


def test_unknown_backend_names_the_known():
    with pytest.raises(BackendError, match="kernels='cuda': unknown backend; choose one of auto, reference, eager"):
        use("cuda")


def test_changing_the_backend_is_refused():
    rms_norm(torch.ones(2, 4), torch.ones(4), eps=1e-6)
    with pytest.raises(BackendError, match="already uses eager"):
        use("reference")
    assert use("eager") == "eager"


@pytest.mark.parametrize(("name", "module"), [("reference", reference), ("eager", eager)])
def test_operations_run_the_chosen_path(name, module, monkeypatch):
    use(name)
    monkeypatch.setattr(module, "rms_norm", lambda x, gain, **options: "ran here")
    assert rms_norm(torch.ones(2, 4), torch.ones(4), eps=1e-6) == "ran here"


def test_package_imports_neither_depthbench_nor_gpu_libraries():
    code = (
        "import sys, depthbench_kernels.norms, depthbench_kernels.streams, depthbench_kernels.depth_mix, "
        "depthbench_kernels.depth_attention, depthbench_kernels.linear_cross_entropy as _; "
        "print(sorted({'depthbench', 'triton', 'liger_kernel'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"

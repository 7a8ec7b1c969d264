"""The choice of a backend: once per process, by name, never changed silently; nothing heavy is imported."""

import subprocess
import sys

import pytest
import torch

from depthbench_kernels import BackendError, _select, backend, use
from depthbench_kernels.norms import eager, reference, rms_norm


@pytest.fixture(autouse=True)
def _undecided(monkeypatch):
    monkeypatch.setattr(_select, "_chosen", None)


def test_auto_is_eager_and_is_the_default():
    assert backend() == "eager"
    assert use("auto") == "eager"


@pytest.mark.parametrize("name", ["triton", "liger"])
def test_missing_backend_is_refused_in_one_line(name):
    with pytest.raises(BackendError, match=rf"^kernels={name}: .*choose auto, eager or reference$"):
        use(name)


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

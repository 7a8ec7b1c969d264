import os

import pytest
import torch

from depthbench_kernels import _select


def pytest_collection_modifyitems(items):
    """Leave out what needs the interpreter where Triton would compile for a GPU."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    for item in items:
        if item.get_closest_marker("interpret"):
            item.add_marker(pytest.mark.skip(reason="TRITON_INTERPRET is not 1"))


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def triton_backend(monkeypatch):
    """Choose the Triton kernels; what they do not write stays NaN."""
    monkeypatch.setattr(_select, "_chosen", None)
    assert _select.use("triton") == "triton"
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    assert torch.ones(3).new_empty(3, dtype=torch.bfloat16).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)

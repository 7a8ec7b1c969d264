import pytest
import torch

from depthbench_kernels import _select


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

import os

import pytest
import torch


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

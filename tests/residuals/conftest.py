import pytest
import torch


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def tokens(generator):
    return torch.randint(23, (2, 7), generator=generator)

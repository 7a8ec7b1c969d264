"""Time of depth mixing, forward and backward, relative to stacking the sources at every site."""

import statistics
import time

import pytest
import torch
from test_depth_mix import with_workspace

from depthbench_kernels.depth_mix import eager, reference


@pytest.mark.perf
@pytest.mark.parametrize(("n_layers", "d", "times"), [(24, 256, 4), (70, 160, 12)])
def test_mixing_is_faster_than_stacking(n_layers, d, times, generator):
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # what else runs on the machine meets both alike
    Q = 2 * n_layers
    embedding, W = torch.randn(512, d, generator=generator), 0.05 * torch.randn(Q, d, generator=generator)
    leaves = [t.requires_grad_() for t in (embedding, W, torch.ones(Q, d))]
    slopes = 1 + 0.5 * torch.randn(Q, d, generator=generator)
    seconds = {eager: [], reference: []}
    for _ in range(3):
        for path, own in seconds.items():
            start = time.perf_counter()
            torch.autograd.grad(with_workspace(path)(*leaves, slopes).sum(), leaves)
            own.append(time.perf_counter() - start)
    torch.set_num_threads(before)
    fast, slow = (statistics.median(own[1:]) for own in seconds.values())
    assert slow > times * fast

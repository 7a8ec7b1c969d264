"""Scores of pairs of 32 blocks: less time than whole runs of every changed model."""

import statistics

import analyses
import pytest
import torch

from depthbench.analyses import causal, permutation
from depthbench.bench import protocol


@pytest.mark.perf
@pytest.mark.parametrize(("module", "times"), [(causal, 1.7), (permutation, 1.3)])
def test_resumed_runs_save_time(module, times):
    torch.set_num_threads(2)  # the fixture of this folder sets it back
    tokens = torch.randint(512, (analyses.BATCH, analyses.TOKENS), generator=torch.Generator().manual_seed(0))
    seconds = protocol.interleaved(analyses.cases(module, "preln", tokens), 3, torch.device("cpu"))
    resumed, whole = (statistics.median(of_case) for of_case in seconds.values())
    assert whole > times * resumed

"""Time of mHC, the design with the most small operations, relative to Pre-LN at the demo's deepest shape."""

import statistics
import time

import pytest
import torch

from depthbench.model import ModelConfig, build_model


@pytest.mark.perf
def test_mhc_takes_at_most_two_and_a_half_times_as_long_as_preln():
    tokens = torch.randint(512, (8, 128), generator=torch.Generator().manual_seed(0))
    shape = {"d_model": 28, "n_layers": 16, "n_heads": 2, "vocab_size": 512}
    models = [build_model(ModelConfig(design, **shape)) for design in ("preln", "mhc")]
    seconds = ([], [])
    for _ in range(12):
        for model, own in zip(models, seconds, strict=True):
            start = time.perf_counter()
            model(tokens).logsumexp(-1).sum().backward()
            own.append(time.perf_counter() - start)
    preln, mhc = (statistics.median(own[2:]) for own in seconds)
    assert mhc < 2.5 * preln

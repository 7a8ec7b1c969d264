"""Time of mHC, the design with the most small operations, relative to Pre-LN at the demo's deepest shape."""

import statistics
import time

import pytest
import torch

from depthbench import optim, train
from depthbench.model import ModelConfig, build_model
from depthbench.schema import Optimizer

SETTINGS = Optimizer(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0)


def training_step(design, tokens):
    model = build_model(ModelConfig(design, d_model=28, n_layers=16, n_heads=2, vocab_size=512))
    loss = train.Loss(model, "float32")
    optimizer = optim.build(model, model.residual.no_decay, SETTINGS)

    def step():
        optimizer.zero_grad()
        (loss(tokens) / tokens.numel()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.clip)
        optimizer.step()

    return step


@pytest.mark.perf
@pytest.mark.parametrize("threads", [1, 2])
def test_mhc_takes_at_most_two_and_a_half_times_as_long_as_preln(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    tokens = torch.randint(512, (8, 128), generator=torch.Generator().manual_seed(0))
    steps = [training_step(design, tokens) for design in ("preln", "mhc")]
    seconds = ([], [])
    for _ in range(22):
        for step, own in zip(steps, seconds, strict=True):
            start = time.perf_counter()
            step()
            own.append(time.perf_counter() - start)
    torch.set_num_threads(before)
    preln, mhc = (statistics.median(own[2:]) for own in seconds)
    assert mhc < 2.5 * preln

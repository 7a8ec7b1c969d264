"""Times of training steps relative to Pre-LN of the same shape, on the eager path."""

import statistics
import time

import pytest
import torch

from depthbench import optim, train
from depthbench.model import ModelConfig, build_model
from depthbench.schema import Optimizer
from depthbench_kernels import backend

SETTINGS = Optimizer(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0)


def training_step(design, tokens, **shape):
    model = build_model(ModelConfig(design, vocab_size=512, **shape))
    loss = train.Loss(model, "float32")
    optimizer = optim.AdamW(model, model.residual.no_decay, SETTINGS)

    def step():
        optimizer.zero_grad()
        (loss(tokens) / tokens.numel()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.clip)
        optimizer.step(lr=0.0)

    return step


def times_of_preln(design, threads, rounds, **shape):
    """Median time of a step over that of Pre-LN, the two taking turns."""
    assert backend() == "eager"
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    tokens = torch.randint(512, (8, 128), generator=torch.Generator().manual_seed(0))
    steps = [training_step(name, tokens, **shape) for name in ("preln", design)]
    seconds = ([], [])
    for _ in range(2 + rounds):
        for step, own in zip(steps, seconds, strict=True):
            start = time.perf_counter()
            step()
            own.append(time.perf_counter() - start)
    torch.set_num_threads(before)
    preln, other = (statistics.median(own[2:]) for own in seconds)
    return other / preln


@pytest.mark.perf
@pytest.mark.parametrize("threads", [1, 2])
def test_mhc_takes_at_most_two_and_a_half_times_as_long_as_preln(threads):
    """The design with the most small operations, at the demo's deepest shape."""
    assert times_of_preln("mhc", threads, 20, n_layers=16, d_model=28, n_heads=2) < 2.5

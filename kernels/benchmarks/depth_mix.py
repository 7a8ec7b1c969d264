"""Depth mixing of a whole Full AttnRes model, forward and backward, beside stacking, on a CPU with two threads.

The branches are a product and a tanh. Appends to `results.csv`. Usage: python kernels/benchmarks/depth_mix.py [ROUNDS]
"""

import sys
from collections.abc import Callable
from types import ModuleType

import _steps
import torch

from depthbench_kernels.depth_mix import eager, reference

SHAPES = [(24, 256), (70, 160)]  # n_layers, d_model
TOKENS = 512


def mixing(path: ModuleType, n_layers: int, d: int) -> Callable[[], None]:
    """Return a function that mixes at all sites of a model and takes the gradients."""
    Q, generator = 2 * n_layers, torch.Generator().manual_seed(0)
    embedding = torch.randn(TOKENS, d, generator=generator).requires_grad_()
    weights = (0.05 * torch.randn(Q, d, generator=generator)).requires_grad_()
    slopes = 1 + 0.5 * torch.randn(Q, d, generator=generator)
    gains = torch.ones(Q, d, requires_grad=True)
    upstream = torch.randn(TOKENS, d, generator=generator)

    def step() -> None:
        ws, y = path.Workspace(embedding, weights, eps=1e-6), embedding
        for slope, gain in zip(slopes, gains, strict=True):
            y = ws.consume(torch.tanh(slope * y), gain)
        torch.autograd.grad(y, (embedding, weights, gains), upstream)

    return step


def main() -> None:
    """Measure every shape."""
    torch.set_num_threads(_steps.THREADS)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for n_layers, d in SHAPES:
        cases = {"eager": mixing(eager, n_layers, d), "reference": mixing(reference, n_layers, d)}
        shape = {"n_layers": n_layers, "d_model": d, "batch": 1, "tokens": TOKENS}
        _steps.record("eager", "reference", shape, _steps.interleaved(cases, rounds), "depth_mix")


if __name__ == "__main__":
    main()

"""A training step of every design beside Pre-LN's of the same shape, on a CPU with two threads.

Appends to `results.csv`. Usage: python kernels/benchmarks/designs.py [ROUNDS]
"""

import sys

import _steps
import torch

from depthbench.designs import DESIGNS
from depthbench.model import ModelConfig

SHAPES = [(16, 28, 2, 512), (24, 128, 4, 512), (70, 64, 4, 512)]  # n_layers, d_model, n_heads, vocab_size


def main() -> None:
    """Measure every design at every shape."""
    torch.set_num_threads(_steps.THREADS)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    for sizes in SHAPES:
        shape = dict(zip(("n_layers", "d_model", "n_heads", "vocab_size"), sizes, strict=True))
        tokens = _steps.batch(shape["vocab_size"])
        for design in DESIGNS:
            # Pre-LN against itself tells the noise
            names = (design, "preln") if design != "preln" else ("preln again", "preln")
            cases = {
                name: _steps.training_step(ModelConfig.read({"design": name.split()[0], **shape}), tokens)
                for name in names
            }
            _steps.record(names[0], "preln", shape, _steps.interleaved(cases, rounds))


if __name__ == "__main__":
    main()

"""The scores of pairs of layers, resumed at the first changed block, beside runs of every changed model as a whole.

On a CPU with two threads. Appends to `results.csv`. Usage: python kernels/benchmarks/analyses.py [ROUNDS]
"""

import sys
from collections.abc import Callable
from types import ModuleType

import _naive
import _steps
import torch
from torch import Tensor

from depthbench.analyses import causal, permutation
from depthbench.analyses._baseline import Baseline, Batch
from depthbench.model import ModelConfig, build_model

SHAPE = {"n_layers": 32, "d_model": 28, "n_heads": 2, "vocab_size": 512}
CASES = [(causal, "preln"), (causal, "hc"), (permutation, "preln")]
WHOLE = "whole runs"
BATCH = 2  # documents: whole runs of every exchange take minutes of more


def cases(module: ModuleType, design: str, tokens: Tensor) -> dict[str, Callable[[], object]]:
    """Return functions that measure one batch, ours under the name of the design."""
    model = build_model(ModelConfig.read({"design": design, **SHAPE})).eval()
    batch = Batch(tokens, tuple(map(str, range(len(tokens)))), ("",) * len(tokens))

    def whole() -> None:
        if module is permutation:
            _naive.permutation(model, tokens)
        else:
            for mode in model.residual.skip_modes:
                _naive.causal(model, tokens, mode)

    no_grad = torch.no_grad()
    return {design: no_grad(lambda: module.measure(Baseline(model, batch))), WHOLE: no_grad(whole)}


def main() -> None:
    """Measure every case."""
    torch.set_num_threads(_steps.THREADS)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for module, design in CASES:
        seconds = _steps.interleaved(cases(module, design, _steps.batch(SHAPE["vocab_size"])[:BATCH]), rounds)
        _steps.record(design, WHOLE, SHAPE | {"batch": BATCH}, seconds, what=module.__name__.rpartition(".")[2])


if __name__ == "__main__":
    main()

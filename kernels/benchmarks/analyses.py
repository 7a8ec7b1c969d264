"""The scores of pairs of layers, resumed at the first changed block, beside runs of every changed model as a whole.

On a CPU with two threads. Usage: python kernels/benchmarks/analyses.py [ROUNDS] | python kernels/benchmarks/append.py
"""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import _naive
import torch
from torch import Tensor

from depthbench.analyses import causal, permutation
from depthbench.analyses._baseline import Baseline, Batch
from depthbench.bench import protocol
from depthbench.model import ModelConfig, build_model

SHAPE = {"n_layers": 32, "d_model": 28, "n_heads": 2, "vocab_size": 512}
CASES = [(causal, "preln"), (causal, "hc"), (permutation, "preln")]
WHOLE = "whole runs"
BATCH, TOKENS = 2, 128  # whole runs of every exchange take minutes of more documents


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


def lines(rounds: int) -> Iterator[dict[str, Any]]:
    """Measure every case."""
    cpu = torch.device("cpu")
    tokens = torch.randint(SHAPE["vocab_size"], (BATCH, TOKENS), generator=torch.Generator().manual_seed(0))
    for module, design in CASES:
        found = protocol.times(protocol.interleaved(cases(module, design, tokens), rounds, cpu), design, WHOLE)
        about = {"case": f"{module.__name__.rpartition('.')[2]} {design}", "baseline": WHOLE, **SHAPE}
        yield {**about, "batch": BATCH, "tokens": TOKENS, **found, **protocol.facts(cpu)}


if __name__ == "__main__":
    torch.set_num_threads(protocol.THREADS)
    protocol.write(lines(int(sys.argv[1]) if len(sys.argv) > 1 else 5), None)

"""One pass of the intact model over a batch of the calibration set, which all analyses share.

It keeps the settled state in front of every block, so that a changed model is run again from the change only.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from depthbench.data.calibration import Calibration
from depthbench.device import compute_type
from depthbench.model.backbone import Model

TOKENS_PER_BATCH = 8192
LOGITS_PER_CHUNK = 2**24  # numbers that are held at once


class Batch(NamedTuple):
    """Documents of equal length."""

    tokens: Tensor  # int64, (B, C)
    doc_keys: tuple[str, ...]
    origins: tuple[str, ...]


def batches(calibration: Calibration, device: torch.device) -> Iterator[Batch]:
    """Yield the calibration set in parts of at most TOKENS_PER_BATCH tokens."""
    size = max(1, TOKENS_PER_BATCH // calibration.tokens.shape[1])
    for start in range(0, len(calibration.tokens), size):
        part = slice(start, start + size)
        tokens = torch.from_numpy(calibration.tokens[part]).to(device)
        yield Batch(tokens, calibration.doc_keys[part], calibration.origins[part])


def start(model: Model, tokens: Tensor) -> Any:
    """Return the state in front of block 0, float32 at least also where branches compute in bfloat16.

    In bfloat16 a deep stream rounds away as much as a block adds, and differences of its states would be that.
    """
    x0 = model.embed(tokens)
    return model.residual.start(x0.to(torch.promote_types(x0.dtype, torch.float32)), model)


class Baseline:
    """The intact model on one batch; what is measured of it is float32.

    Args:
        model: In evaluation mode, on the device of the tokens; it is left as it is.
        batch: What it reads.
        compute: "float32" or "bfloat16", the type of forward passes.
    """

    states: list[Any]  # L + 1, settled: in front of each block, and behind the last

    def __init__(self, model: Model, batch: Batch, compute: str = "float32"):
        self.model, self.batch, self.compute = model, batch, compute
        with self.forward():
            self.states = [start(model, batch.tokens)]
            for position in range(model.cfg.n_layers):
                self.states.append(model.apply_block(position, self.states[-1]))

    def forward(self) -> AbstractContextManager:
        """Return the context of calls of the model; statistics are computed outside, in float32."""
        return compute_type(self.compute, self.batch.tokens.device)

    def represent(self, position: int, state: Any) -> Tensor:
        """Return the depth state z_position of a settled state, float32 (B, C, D)."""
        with self.forward():
            return self.model.represent(position, state).float()

    @cached_property
    def depth_states(self) -> list[Tensor]:
        """z_0 .. z_L of the intact model, each float32 (B, C, D)."""
        return [self.represent(position, state) for position, state in enumerate(self.states)]

    def document_nll(self, state: Any) -> Tensor:
        """Return the mean next-token nll of each document, given a state behind the last block [nats], float64 (B,)."""
        with self.forward():
            features = self.model.residual.finish(state, self.model.cfg.n_layers, self.model)[:, :-1]
        targets = self.batch.tokens[:, 1:]
        size = max(1, LOGITS_PER_CHUNK // self.model.cfg.vocab_size)
        parts = []
        for x, y in zip(features.flatten(0, 1).split(size), targets.flatten().split(size), strict=True):
            with self.forward():
                logits = self.model.lm_head(x)
            parts.append(F.cross_entropy(logits.float(), y, reduction="none").double())
        return torch.cat(parts).view(targets.shape).mean(-1)


def baselines(model: Model, parts: Iterable[Batch], compute: str = "float32") -> Iterator[Baseline]:
    """Yield the pass over each batch, one in memory at a time."""
    for batch in parts:
        yield Baseline(model, batch, compute)

"""The scores of pairs of layers by their definitions: every changed model runs whole, from the tokens on.

Tests and benchmarks hold `depthbench.analyses` beside it.
"""

import copy
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from depthbench.model.backbone import Model


def causal(model: Model, tokens: Tensor, mode: str) -> Tensor:
    """Return |u - v| / |u| summed over the tokens of each document, (pairs, documents), float64."""
    intact, n_layers = list(_depth_states(model, tokens)), model.cfg.n_layers
    sums = []
    for skipped in range(n_layers - 1):
        changed = list(_depth_states(model, tokens, skipped, mode))
        for layer in range(skipped + 1, n_layers):
            u = intact[layer + 1] - intact[layer]
            v = changed[layer - skipped] - changed[layer - skipped - 1]
            sums.append(((u - v).norm(dim=-1) / u.norm(dim=-1)).double().sum(1))
    return torch.stack(sums)


def permutation(model: Model, tokens: Tensor) -> Tensor:
    """Return the mean nll of each document with each pair of blocks exchanged, (pairs, documents), float64."""
    model = copy.deepcopy(model)
    losses = []
    for a, b in itertools.combinations(range(model.cfg.n_layers), 2):
        exchange(model, a, b)
        losses.append(_nll(model, tokens))
        exchange(model, a, b)
    return torch.stack(losses)


def exchange(model: Model, a: int, b: int) -> None:
    """Exchange all parameters that blocks a and b both have, and the indices that travel with them."""
    here, there = model.blocks[a], model.blocks[b]
    others = dict(there.named_parameters())
    for name, own in here.named_parameters():
        if name in others:
            own.data, others[name].data = others[name].data, own.data
    here.index, there.index = there.index, here.index


def _depth_states(model: Model, tokens: Tensor, skipped: int = -1, mode: str = "mask") -> Iterator[Tensor]:
    """Yield the depth states behind block `skipped` of a run without it; all of the intact model."""
    state = model.start(tokens)
    for position in range(model.cfg.n_layers + 1):
        if position > skipped:
            yield model.represent(position, state)
        if position == skipped:
            state = model.skip_block(position, state, mode)
        elif position < model.cfg.n_layers:
            state = model.apply_block(position, state)


def _nll(model: Model, tokens: Tensor) -> Tensor:
    state = model.start(tokens)
    for position in range(model.cfg.n_layers):
        state = model.apply_block(position, state)
    logits = model.lm_head(model.residual.finish(state, model.cfg.n_layers, model)[:, :-1].flatten(0, 1))
    nll = F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
    return nll.double().view(len(tokens), -1).mean(1)

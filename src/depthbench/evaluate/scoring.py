"""Log-likelihood of a continuation after a context, the one scoring function of every task.

White space at the context's end is moved to the continuation, both are encoded together, and the tokens beyond those
of the context alone are the continuation: the rule of lm-evaluation-harness. Where a token spans the join (the ids of
both do not begin with the context's) they are encoded apart, so that the answer's tokens are scored, always.

The model reads all tokens but the last, at most T. Too long: the context loses tokens at its left, one stays; a
continuation that is too long by itself is cut to its first T tokens.

Inputs are sorted by length and padded on the right, where causal attention does not look; equal inputs run once
(choices of one token share their prompt); logits are made at scored positions only.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional as F

from depthbench import progress
from depthbench.data.tokenizer import eos_id
from depthbench.device import compute_type
from depthbench.model.backbone import Model

TOKENS_PER_BATCH = 8192
TOKENS_PER_CHUNK = 2048  # of logits that are held at once


class Encoded(NamedTuple):
    """Token ids of context and continuation; the last `n_scored` are scored."""

    tokens: np.ndarray  # int64
    n_scored: int
    truncated: bool = False
    fallback: bool = False  # a token spans the join


class Scores(NamedTuple):
    """Of each continuation: summed negative log-likelihood [nats], and whether each token was the likeliest one."""

    nll: np.ndarray  # float64
    greedy: np.ndarray  # bool


def encode(tokenizer: Tokenizer, context: str, continuation: str, max_length: int) -> Encoded:
    """Return the ids of a pair; an empty context becomes one end of text. `max_length` (T) limits the model's input."""
    stripped = context.rstrip()
    continuation = context[len(stripped) :] + continuation
    assert continuation
    before = tokenizer.encode(stripped).ids
    both = tokenizer.encode(stripped + continuation).ids
    fallback = both[: len(before)] != before or len(both) == len(before)
    scored = tokenizer.encode(continuation).ids if fallback else both[len(before) :]
    return cut(before or [eos_id(tokenizer)], scored, max_length, fallback)


def cut(before: list[int], scored: list[int], max_length: int, fallback: bool = False) -> Encoded:
    """Return the ids with an input of at most `max_length` tokens."""
    kept = scored[:max_length]
    tokens = before[-max(1, max_length + 1 - len(kept)) :] + kept
    truncated = len(tokens) < len(before) + len(scored)
    return Encoded(np.array(tokens, dtype=np.int64), len(kept), truncated, fallback)


class Placed(NamedTuple):
    """A padded batch of inputs, and where in it which tokens of which pairs are scored."""

    tokens: torch.Tensor  # (B, T)
    places: torch.Tensor  # positions in the flattened batch whose logits predict the scored tokens
    targets: torch.Tensor  # the scored tokens
    owners: list[int]  # the pairs, in the order of their tokens
    starts: np.ndarray  # of each pair in `targets`


@torch.no_grad()
def score(model: Model, pairs: Sequence[Encoded], compute: str = "float32") -> Scores:
    """Score continuations.

    Args:
        model: The model, on the device to use.
        pairs: At least one token in front of those that are scored.
        compute: "float32" or "bfloat16", the type of the forward pass.
    """
    device = model.embed.weight.device
    scores = Scores(np.zeros(len(pairs)), np.ones(len(pairs), dtype=bool))
    parts = batches(pairs)
    for groups in progress.track(parts, "evaluating batch", len(parts)):
        batch = place(pairs, groups, device)
        with compute_type(compute, device):
            found = score_features(model, batch, model.features(batch.tokens))
        scores.nll[batch.owners], scores.greedy[batch.owners] = found
    return scores


def batches(pairs: Sequence[Encoded]) -> list[list[list[int]]]:
    """Return the groups of pairs with the same input that run together, as indices."""
    asking: dict[bytes, list[int]] = {}
    for i, pair in enumerate(pairs):
        asking.setdefault(pair.tokens[:-1].tobytes(), []).append(i)
    groups = list(asking.values())
    return [[groups[i] for i in batch] for batch in _batches([len(pairs[group[0]].tokens) - 1 for group in groups])]


def place(pairs: Sequence[Encoded], groups: list[list[int]], device: torch.device) -> Placed:
    """Return one batch of `batches` on a device."""
    inputs = [pairs[group[0]].tokens[:-1] for group in groups]
    tokens = np.zeros((len(groups), max(map(len, inputs))), dtype=np.int64)
    for row, ids in enumerate(inputs):
        tokens[row, : len(ids)] = ids
    members = [(row, i) for row, group in enumerate(groups) for i in group]
    n_scored = [pairs[i].n_scored for _, i in members]
    places = [
        row * tokens.shape[1] + np.arange(len(inputs[row]) - pairs[i].n_scored, len(inputs[row])) for row, i in members
    ]
    targets = np.concatenate([pairs[i].tokens[-pairs[i].n_scored :] for _, i in members])
    starts = np.concatenate([[0], np.cumsum(n_scored)[:-1]])
    on_device = [torch.from_numpy(array).to(device) for array in (tokens, np.concatenate(places), targets)]
    return Placed(on_device[0], on_device[1], on_device[2], [i for _, i in members], starts)


def score_features(model: Model, batch: Placed, features: torch.Tensor) -> Scores:
    """Return the scores of `batch.owners` from the normalised inputs of the head, (B, T, d)."""
    features = features.flatten(0, 1)[batch.places]
    parts = [
        _token_scores(model, x, y)
        for x, y in zip(features.split(TOKENS_PER_CHUNK), batch.targets.split(TOKENS_PER_CHUNK), strict=True)
    ]
    nll, best = (torch.cat(found).cpu().numpy() for found in zip(*parts, strict=True))
    return Scores(np.add.reduceat(nll.astype(np.float64), batch.starts), np.logical_and.reduceat(best, batch.starts))


def _token_scores(model: Model, features: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, d), (N,) -> nll of each target, float32, and whether it is the likeliest token."""
    logits = model.lm_head(features).float()
    return F.cross_entropy(logits, targets, reduction="none"), logits.argmax(-1) == targets


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of inputs, shortest first, so that a padded batch has at most TOKENS_PER_BATCH positions."""
    batch: list[int] = []
    for i in np.argsort(lengths, kind="stable").tolist():
        if batch and (len(batch) + 1) * lengths[i] > TOKENS_PER_BATCH:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch

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


@torch.no_grad()
def score(model: Model, pairs: Sequence[Encoded], compute: str = "float32") -> Scores:
    """Score continuations.

    Args:
        model: The model, on the device to use.
        pairs: At least one token in front of those that are scored.
        compute: "float32" or "bfloat16", the type of the forward pass.
    """
    asking: dict[bytes, list[int]] = {}
    for i, pair in enumerate(pairs):
        asking.setdefault(pair.tokens[:-1].tobytes(), []).append(i)
    groups = list(asking.values())
    scores = Scores(np.zeros(len(pairs)), np.ones(len(pairs), dtype=bool))
    batches = list(_batches([len(pairs[group[0]].tokens) - 1 for group in groups]))
    for batch in progress.track(batches, "evaluating batch", len(batches)):
        _score_batch(model, pairs, [groups[i] for i in batch], compute, scores)
    return scores


def _score_batch(model: Model, pairs: Sequence[Encoded], groups: list[list[int]], compute: str, scores: Scores) -> None:
    """Write the scores of one batch; the pairs of a group have the same input."""
    device = model.embed.weight.device
    inputs = [pairs[group[0]].tokens[:-1] for group in groups]
    tokens = np.zeros((len(groups), max(map(len, inputs))), dtype=np.int64)
    for row, ids in enumerate(inputs):
        tokens[row, : len(ids)] = ids
    members = [(row, i) for row, group in enumerate(groups) for i in group]
    n_scored = [pairs[i].n_scored for _, i in members]
    # positions in the flattened batch whose logits predict the scored tokens
    places = [
        row * tokens.shape[1] + np.arange(len(inputs[row]) - pairs[i].n_scored, len(inputs[row])) for row, i in members
    ]
    targets = torch.from_numpy(np.concatenate([pairs[i].tokens[-pairs[i].n_scored :] for _, i in members])).to(device)
    with compute_type(compute, device):
        features = model.features(torch.from_numpy(tokens).to(device)).flatten(0, 1)
        features = features[torch.from_numpy(np.concatenate(places)).to(device)]
        parts = [
            _token_scores(model, x, y)
            for x, y in zip(features.split(TOKENS_PER_CHUNK), targets.split(TOKENS_PER_CHUNK), strict=True)
        ]
    nll, best = (torch.cat(found).cpu().numpy() for found in zip(*parts, strict=True))
    starts = np.concatenate([[0], np.cumsum(n_scored)[:-1]])
    owners = [i for _, i in members]
    scores.nll[owners] = np.add.reduceat(nll.astype(np.float64), starts)
    scores.greedy[owners] = np.logical_and.reduceat(best, starts)


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

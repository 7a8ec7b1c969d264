"""Accuracy on ARC-Easy with one block left out.

    drop_s = 100 (acc_norm of the intact model - acc_norm without block s) [percentage points];  drop_raw: of acc

Scores, ties and chance are those of `evaluate.tasks`; blocks are left out in each of `Residual.skip_modes`. The
interval is that of the paired difference over items. As in DepthBench (arXiv 2609.32534).

A small drop says that this task does without the block as long as the others stay; two such blocks may stand in for
each other. Near chance no drop can be seen: compare `acc_norm_full` with `chance`.
"""

from collections.abc import Iterator
from itertools import chain

import numpy as np
import pandas as pd
import torch
from tokenizers import Tokenizer

from depthbench import progress, stats
from depthbench.device import compute_type
from depthbench.evaluate import tasks
from depthbench.evaluate.requests import Question, items_id
from depthbench.evaluate.scoring import batches, encode, place, score_features
from depthbench.model.backbone import Model

INTACT = -1
ITEMS = ["skip_mode", "skipped", "item_id", "n_choices", "credit", "credit_norm", "items_id"]


def compute(
    model: Model,
    tokenizer: Tokenizer,
    asked: list[Question],
    sequence_length: int,
    compute: str = "float32",
    resamples: int = 1000,
) -> pd.DataFrame:
    """Return the table of a model; arguments as in `items`."""
    return table(items(model, tokenizer, asked, sequence_length, compute), resamples)


@torch.no_grad()
def items(
    model: Model, tokenizer: Tokenizer, asked: list[Question], sequence_length: int, compute: str = "float32"
) -> pd.DataFrame:
    """Return the credit of each item for the intact model (skipped = -1, no mode) and without each block.

    Args:
        model: In evaluation mode, on the device to use; it is left as it is.
        tokenizer: Its own.
        asked: The items in words.
        sequence_length: T, the longest input.
        compute: "float32" or "bfloat16", the type of forward passes.
    """
    pairs = [encode(tokenizer, q.context, text, sequence_length) for q in asked for text in q.continuations]
    cases = [("", INTACT), *((mode, s) for mode in model.residual.skip_modes for s in range(model.cfg.n_layers))]
    nll = {case: np.zeros(len(pairs)) for case in cases}
    parts = list(batches(pairs))
    for groups in progress.track(parts, "pruning batch", len(parts)):
        batch = place(pairs, groups, model.embed.weight.device)
        with compute_type(compute, batch.tokens.device):
            # The intact model runs as in `scoring.score`, so that its accuracy is that of `evaluate` to the bit.
            intact = [(cases[0], model.features(batch.tokens))]
            for case, features in chain(intact, without_blocks(model, batch.tokens)):
                nll[case][batch.owners] = score_features(model, batch, features).nll
    rows = []
    for (mode, skipped), found in nll.items():
        values = iter(found)
        for question in asked:
            own = np.array([next(values) for _ in question.continuations])
            chosen = tasks.choose(own, question.gold, question.n_chars)
            rows.append({"skip_mode": mode, "skipped": skipped, "item_id": question.item_id} | chosen)
    return pd.DataFrame(rows, columns=ITEMS[:-1]).assign(items_id=items_id(asked))


def table(items: pd.DataFrame, resamples: int) -> pd.DataFrame:
    """Return accuracy and drop without each block, in each skip mode."""
    items = items.sort_values("item_id", kind="stable")  # resamples go by place
    intact = items[items["skipped"] == INTACT]
    rows = []
    for (mode, skipped), found in items[items["skipped"] != INTACT].groupby(["skip_mode", "skipped"]):
        lost, lost_raw = (100 * (intact[c].to_numpy() - found[c].to_numpy()) for c in ("credit_norm", "credit"))
        lo, hi = stats.bootstrap_ratio(lost, np.ones(len(found)), [""] * len(found), resamples)
        acc, acc_norm = found["credit"].mean(), found["credit_norm"].mean()
        rows.append([mode, skipped, acc, acc_norm, lost.mean(), lost_raw.mean(), lo, hi])
    columns = ["skip_mode", "skipped", "acc", "acc_norm", "drop", "drop_raw", "drop_lo", "drop_hi"]
    return pd.DataFrame(rows, columns=columns).assign(
        acc_full=intact["credit"].mean(),
        acc_norm_full=intact["credit_norm"].mean(),
        chance=(1 / intact["n_choices"]).mean(),
        n_items=len(intact),
        items_id=intact["items_id"].max(),
    )


def without_blocks(model: Model, tokens: torch.Tensor) -> Iterator[tuple[tuple[str, int], torch.Tensor]]:
    """Yield the input of the head without each block, in each mode; what lies in front of the block runs once."""
    n_layers, state = model.cfg.n_layers, model.start(tokens)
    for s in range(n_layers):
        for mode in model.residual.skip_modes:
            changed = model.skip_block(s, state, mode)
            for position in range(s + 1, n_layers):
                changed = model.apply_block(position, changed)
            yield (mode, s), model.residual.finish(changed, n_layers, model)
        if s < n_layers - 1:
            state = model.apply_block(s, state)

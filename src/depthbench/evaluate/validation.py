"""Held-out loss: every held-out document stands alone, cut to its first T tokens; T - 1 predictions at most.

loss = sum of nll / number of predictions [nats/token]; loss_upstream divides by the documents' tokens, one more each,
as the evaluator of the paper's authors does; bits_per_byte = sum of nll / (ln 2 x bytes).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from depthbench import progress, stats
from depthbench.device import compute_type
from depthbench.model.backbone import Model

TOKENS_PER_BATCH = 8192
TOKENS_PER_CHUNK = 2048  # of logits that are held at once


@torch.no_grad()
def document_nll(model: Model, documents: Sequence[np.ndarray], compute: str = "float32") -> np.ndarray:
    """Return the summed next-token nll of each document [nats], float64.

    Args:
        model: The model, on the device to use.
        documents: Token ids of each document, at least two.
        compute: "float32" or "bfloat16", the type of the forward pass.
    """
    device = model.embed.weight.device
    sums = np.zeros(len(documents))
    batches = list(_batches([len(d) for d in documents]))
    for batch in progress.track(batches, "evaluating batch", len(batches)):
        lengths = torch.tensor([len(documents[i]) for i in batch])
        tokens = torch.zeros(len(batch), int(lengths.max()), dtype=torch.int64)
        for row, i in enumerate(batch):  # padded on the right, where causal attention does not look
            tokens[row, : len(documents[i])] = torch.from_numpy(documents[i].astype(np.int64))
        tokens = tokens.to(device)
        with compute_type(compute, device):
            nll = _token_nll(model, tokens)
        seen = torch.arange(nll.shape[1])[None] < (lengths - 1)[:, None]
        sums[batch] = nll.double().cpu().where(seen, 0.0).sum(1).numpy()
    return sums


def summary(documents: pd.DataFrame, bootstrap: int) -> dict[str, Any]:
    """Return the losses of a table of documents (n_tokens, n_bytes, nll_sum, origin) with their interval."""
    predictions = documents.n_tokens - 1
    nll = documents.nll_sum.sum()
    if not math.isfinite(nll):
        return {"status": "diverged"}
    lo, hi = stats.bootstrap_ratio(documents.nll_sum, predictions, documents.origin, bootstrap)
    return {
        "status": "ok",
        "n_tokens": documents.n_tokens.sum(),
        "n_predictions": predictions.sum(),
        "loss": nll / predictions.sum(),
        "loss_lo": lo,
        "loss_hi": hi,
        "loss_upstream": nll / documents.n_tokens.sum(),
        "bits_per_byte": nll / (math.log(2) * documents.n_bytes.sum()),
    }


def _token_nll(model: Model, tokens: torch.Tensor) -> torch.Tensor:
    """(B, T) -> (B, T - 1) float32, the nll of each next token."""
    features = model.features(tokens)[:, :-1].flatten(0, 1)
    target = tokens[:, 1:].flatten()
    parts = [
        F.cross_entropy(model.lm_head(x).float(), y, reduction="none")
        for x, y in zip(features.split(TOKENS_PER_CHUNK), target.split(TOKENS_PER_CHUNK), strict=True)
    ]
    return torch.cat(parts).view(len(tokens), -1)


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices of documents, shortest first, so that a padded batch has at most TOKENS_PER_BATCH positions."""
    batch: list[int] = []
    for i in np.argsort(lengths, kind="stable").tolist():
        if batch and (len(batch) + 1) * lengths[i] > TOKENS_PER_BATCH:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch

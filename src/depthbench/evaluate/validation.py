"""Held-out loss: every held-out document stands alone, cut to its first T tokens; T - 1 predictions at most.

loss = sum of nll / number of predictions [nats/token]; loss_upstream divides by the documents' tokens, one more each,
as the evaluator of the paper's authors does; bits_per_byte = sum of nll / (ln 2 x bytes).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from depthbench import stats
from depthbench.evaluate.scoring import Encoded, score
from depthbench.model.backbone import Model


def document_nll(model: Model, documents: Sequence[np.ndarray], compute: str = "float32") -> np.ndarray:
    """Return the summed next-token nll of each document [nats], float64.

    Args:
        model: The model, on the device to use.
        documents: Token ids of each document, at least two.
        compute: "float32" or "bfloat16", the type of the forward pass.
    """
    return score(model, [Encoded(tokens.astype(np.int64), len(tokens) - 1) for tokens in documents], compute).nll


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

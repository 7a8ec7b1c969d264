"""The calibration set of layer analyses: N held-out documents, cut to exactly C tokens each.

One document per sequence, of those with at least C tokens the N with the smallest content keys: the same for every
model with the same tokenizer. `calib_id` is the hash of its tokens.
"""

import hashlib
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from depthbench.data.loader import Heldout
from depthbench.errors import UserError


class Calibration(NamedTuple):
    """Documents in content-key order."""

    tokens: np.ndarray  # int64, (N, C)
    doc_keys: tuple[str, ...]
    origins: tuple[str, ...]
    calib_id: str


def calibration(folder: Path, documents: int, tokens: int, sequence_length: int) -> Calibration:
    """Return the calibration set of prepared data, for models that are trained on windows of `sequence_length`.

    Raises:
        UserError: E-CALIB if there are fewer than N documents of C tokens, or C is longer than a window; E-SHARD.
    """
    long_enough = (row for row in Heldout(folder, tokens) if len(row.tokens) == tokens)
    taken = list(islice(long_enough, documents))
    if len(taken) < documents or tokens > sequence_length:
        raise UserError(
            "E-CALIB",
            f"calibration of N = {documents} documents x C = {tokens} tokens: {folder} holds out {len(taken)} of them, "
            f"and C must be at most T = {sequence_length}, the window of the training; "
            "take fewer or shorter ones in studies.*.calibration, or hold out more text",
        )
    rows = np.stack([row.tokens for row in taken])
    calib_id = hashlib.sha256(rows.astype("<i8").tobytes() + str(rows.shape).encode()).hexdigest()[:16]
    return Calibration(rows, tuple(row.doc_key for row in taken), tuple(row.origin for row in taken), calib_id)

"""Readers of prepared data: training windows in an endless order, held-out documents one by one.

The shards of a split stand one after the other; window i is tokens iT ... iT + T - 1, the remainder is
dropped. Epoch e visits the windows in a permutation that depends on (seed, e) only: the stable order of n
random 64-bit words of PCG64 seeded with [seed, e]. The raw words of that generator are the same in all
versions of NumPy, which is not promised for `permutation`. Step s takes the places s B ... s B + B - 1 of
the epochs laid end to end, so the global batch depends on (seed, step) alone, whatever the number of
processes that share it.
"""

import functools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from depthbench.errors import UserError
from depthbench.files import sha256

MAX_EPOCHS = 4
REMEDY = "prepare the data again"


def manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of prepared data.

    Raises:
        UserError: E-SHARD if there is none or it cannot be read.
    """
    path = folder / "manifest.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not {"data_id", "dtype", "splits"} <= set(found):
            raise ValueError
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or "not a whole manifest"
        raise UserError("E-SHARD", f"{path}: {reason}; prepare the data first, e.g. `depthbench prepare`") from error
    return found


class Windows:
    """The training windows of T tokens each."""

    def __init__(self, folder: Path, sequence_length: int):
        """Open the training shards of prepared data.

        Raises:
            UserError: E-SHARD if the manifest or a file is missing, or sizes disagree.
        """
        about = manifest(folder)
        self.folder, self.sequence_length = folder, sequence_length
        self.data_id: str = about["data_id"]
        self._shards = [tokens for tokens, _ in open_split(folder, "train", about)]
        self._ends = np.cumsum([len(tokens) for tokens in self._shards])
        self.n_tokens = int(self._ends[-1])
        self.n_windows = self.n_tokens // sequence_length

    def ids(self, step: int, batch_sequences: int, seed: int) -> np.ndarray:
        """Return which windows make the batch of a 0-based step: int64, (batch_sequences,)."""
        epochs, places = np.divmod(step * batch_sequences + np.arange(batch_sequences), self.n_windows)
        found = np.empty(batch_sequences, dtype=np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            found[here] = _permutation(self.n_windows, seed, int(epoch))[places[here]]
        return found

    def batch(self, step: int, batch_sequences: int, seed: int, share: slice = slice(None)) -> np.ndarray:
        """Return the tokens of the batch of a 0-based step, or a share of it: int64, (sequences, T)."""
        return np.stack([self._window(i) for i in self.ids(step, batch_sequences, seed)[share]])

    def epochs(self, steps: int, batch_sequences: int) -> float:
        """Return how often `steps` steps pass over the windows."""
        return steps * batch_sequences / self.n_windows

    def check_budget(self, steps: int, batch_sequences: int) -> None:
        """Make sure that the windows are enough for `steps` steps.

        Raises:
            UserError: E-BUDGET if they are fewer than one batch, or would be passed more than 4 times.
        """
        needed = steps * batch_sequences
        if self.n_windows < batch_sequences or needed > MAX_EPOCHS * self.n_windows:
            T = self.sequence_length
            raise UserError(
                "E-BUDGET",
                f"{self.folder}: {steps} steps of {batch_sequences} x {T} need {needed * T} tokens, "
                f"available are {self.n_tokens} for {MAX_EPOCHS} passes; add text or take fewer steps",
            )

    def _window(self, i: int) -> np.ndarray:
        start, stop = i * self.sequence_length, (i + 1) * self.sequence_length
        parts = []
        for shard in range(int(np.searchsorted(self._ends, start, side="right")), len(self._shards)):
            offset = self._ends[shard] - len(self._shards[shard])
            parts.append(self._shards[shard][max(start - offset, 0) : stop - offset])
            if stop <= self._ends[shard]:
                break
        return np.concatenate(parts).astype(np.int64)


@dataclass(frozen=True)
class HeldoutDocument:
    """The beginning of one held-out document."""

    doc_key: str
    origin: str
    tokens: np.ndarray  # int64, (at most T,), end of text included where it fits


class Heldout:
    """The held-out documents in content-key order, each cut to its first T tokens.

    `n_documents` are yielded; `n_skipped` have fewer than two tokens and are not.
    """

    def __init__(self, folder: Path, sequence_length: int):
        """Open the held-out shards of prepared data.

        Raises:
            UserError: E-SHARD if the manifest or a file is missing, or sizes or hashes disagree.
        """
        self.sequence_length = sequence_length
        about = manifest(folder)
        self._shards = open_split(folder, "heldout", about)
        for entry in about["splits"]["heldout"]["shards"]:  # few, unlike those of training
            for kind in ("tokens", "docs"):
                shard = _place(folder, "heldout", entry[kind])
                if sha256(shard) != entry[f"{kind}_sha256"]:
                    raise UserError("E-SHARD", f"{shard}: not what was prepared, its hash differs; {REMEDY}")
        path = folder / "heldout" / "documents.parquet"
        try:
            self._table = pq.read_table(path).to_pydict()
        except (OSError, pa.ArrowException) as error:
            raise UserError("E-SHARD", f"{path}: cannot be read; {REMEDY}") from error
        lengths = np.concatenate([np.diff(starts) for _, starts in self._shards])
        if self._table["n_tokens"] != lengths.tolist():
            raise UserError("E-SHARD", f"{path}: lists other documents than the shards hold; {REMEDY}")
        self.n_skipped = int((lengths < 2).sum())
        self.n_documents = len(lengths) - self.n_skipped

    def __iter__(self) -> Iterator[HeldoutDocument]:
        keys = zip(self._table["doc_key"], self._table["origin"], strict=True)
        for tokens, starts in self._shards:
            for start, stop in pairwise(starts):
                key, origin = next(keys)
                if stop - start >= 2:
                    cut = tokens[start : min(stop, start + self.sequence_length)]
                    yield HeldoutDocument(key, origin, cut.astype(np.int64))


@functools.lru_cache(maxsize=2)  # a batch touches one epoch, or two at a border
def _permutation(n: int, seed: int, epoch: int) -> np.ndarray:
    return np.argsort(np.random.PCG64([seed, epoch]).random_raw(n), kind="stable")


def open_split(folder: Path, split: str, about: dict[str, Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Map the shards of a split: (tokens, int64 document starts and the end)."""
    dtype = np.dtype(about["dtype"]).newbyteorder("<")
    shards = []
    for entry in about["splits"][split]["shards"]:
        tokens = _map(_place(folder, split, entry["tokens"]), dtype, entry["n_tokens"])
        starts = _map(_place(folder, split, entry["docs"]), np.dtype("<u8"), entry["n_documents"] + 1)
        shards.append((tokens, starts.astype(np.int64)))
    return shards


def _place(folder: Path, split: str, name: str) -> Path:
    """Return where a shard lies; names may lead out of the folder of the split, which need not exist: ../parts/..."""
    return Path(os.path.normpath(folder / split / name))


def _map(path: Path, dtype: np.dtype, n_values: int) -> np.ndarray:
    try:
        found = path.stat().st_size
        if found == n_values * dtype.itemsize:
            return np.memmap(path, dtype, mode="r")
    except OSError as error:
        raise UserError("E-SHARD", f"{path}: {error.strerror}; {REMEDY}") from error
    raise UserError("E-SHARD", f"{path}: {found} bytes, expected {n_values * dtype.itemsize}; {REMEDY}")

"""From sums of each document to a measure: a cell (a layer, a pair of layers) is one row of a table.

Documents stand in the order of their content keys, whatever the order in which they were measured.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from depthbench import stats
from depthbench.analyses._baseline import Baseline, Batch, baselines
from depthbench.model.backbone import Model


def stream(
    model: Model, batches: Iterable[Batch], measure: Callable[[Baseline], pd.DataFrame], compute: str
) -> pd.DataFrame:
    """Return what `measure` finds in every batch, one pass in memory at a time."""
    with torch.no_grad():
        # A loop would hold the last pass while the next one is made.
        return pd.concat(map(measure, baselines(model, batches, compute)), ignore_index=True)


def frame(batch: Batch, cells: Mapping[str, Sequence[Any]], values: Mapping[str, Tensor]) -> pd.DataFrame:
    """Return one row for each cell and document.

    Args:
        batch: Whose documents they are.
        cells: What names a cell, column -> one entry per cell.
        values: Column -> (cells, documents).
    """
    n_cells, n_documents = len(next(iter(cells.values()))), len(batch.doc_keys)
    named = {name: np.repeat(np.asarray(entries), n_documents) for name, entries in cells.items()}
    documents = {"doc_key": np.tile(batch.doc_keys, n_cells), "origin": np.tile(batch.origins, n_cells)}
    measured = {name: value.cpu().numpy().reshape(-1) for name, value in values.items()}
    return pd.DataFrame({**named, **documents, **measured})


def token_means(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return of (..., C) the mean over tokens that are not nan, whether there is one (else 0), and the number of nan.

    A document without a number so has a 0 in numerator and denominator of the mean over documents.
    """
    known = ~values.isnan()
    n_known = known.sum(-1)
    total = values.masked_fill(~known, 0).sum(-1, dtype=torch.float64)
    return total / n_known.clamp(min=1), n_known.clamp(max=1), values.shape[-1] - n_known


class Sums(NamedTuple):
    """The values of all documents, by cell."""

    cells: pd.DataFrame  # what names each cell, a row each
    values: dict[str, NDArray]  # column -> (cells, documents)
    origins: NDArray  # of the documents

    def ratio(self, numerator: str, denominator: str) -> NDArray:
        """Return sum of numerators / sum of denominators of each cell; nan where there is none."""
        num, den = (self.values[name].astype(np.float64).sum(1) for name in (numerator, denominator))
        with np.errstate(invalid="ignore", divide="ignore"):
            return num / den

    def interval(self, numerator: str, denominator: str, resamples: int) -> dict[str, NDArray]:
        """Return `lo` and `hi` of that ratio over resampled documents."""
        lo, hi = stats.ratio_intervals(self.values[numerator], self.values[denominator], self.origins, resamples)
        return {"lo": lo, "hi": hi}


def gather(documents: pd.DataFrame, cells: Sequence[str], values: Sequence[str]) -> Sums:
    """Return the values of a frame with one row for each cell and document; cells keep their first order."""
    names = list(cells)
    documents = documents.assign(cell=documents.groupby(names, sort=False, dropna=False).ngroup())
    documents = documents.sort_values(["cell", "doc_key"], kind="stable")
    n_documents = documents["doc_key"].nunique()
    first = documents.iloc[::n_documents] if n_documents else documents
    arrays = {name: documents[name].to_numpy().reshape(len(first), n_documents) for name in values}
    return Sums(first[names].reset_index(drop=True), arrays, documents["origin"].to_numpy()[:n_documents])

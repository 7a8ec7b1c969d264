"""Held-out loss of every run: nats per token with its interval, bits per byte, and what produced the run.

    loss = sum of NLL / sum of predictions,  predictions of a document = its tokens - 1

The interval is a bootstrap over documents, stratified by origin, with the same resamples for all runs
(`stats`). It holds the noise of evaluation, not of training.
"""

import numpy as np
import pandas as pd

from depthbench.artifacts import ArtifactSpec, runs_frame
from depthbench.errors import UserError
from depthbench.stats import bootstrap_ratio

FILES = ("run.json", "validation.csv", "validation_docs.parquet")
PRINTED = {
    "label": ("Design", "{}"),
    "scale": ("Scale", "{}"),
    "n_layers": ("L", "{}"),
    "d_model": ("d", "{}"),
    "aspect_ratio": ("d/L", "{:.2f}"),
    "lr": ("Rate", "{}"),
    "seed": ("Seed", "{}"),
    "status": ("Status", "{}"),
    "loss": ("Loss [nats/token]", "{:.4f}"),
    "loss_lo": ("2.5 %", "{:.4f}"),
    "loss_hi": ("97.5 %", "{:.4f}"),
    "bits_per_byte": ("Bits/byte", "{:.4f}"),
    "n_params": ("Parameters", "{:,}"),
    "tokens": ("Tokens", "{:,}"),
    "commit": ("Commit", "{}"),
}
COLUMNS = [
    *("suites", "design", "label", "scale", "n_layers", "d_model", "aspect_ratio", "lr", "seed", "status"),
    *("loss", "loss_lo", "loss_hi", "loss_upstream", "bits_per_byte", "unigram_entropy"),
    *("n_params", "tokens", "commit", "mixed_commit", "run_id"),
]


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per run in display order; diverged and missing runs are kept with empty values."""
    record = frames["run"][["run_id", "n_params", "tokens", "commit", "mixed_commit"]]
    # Nullable types: a missing run would turn counts into floats.
    record = record.astype({"n_params": "Int64", "tokens": "Int64", "mixed_commit": "boolean"})
    return losses(frames, spec).merge(record, on="run_id", how="left", validate="1:1")[COLUMNS]


def losses(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return `runs_frame` with status (ok, diverged, missing), the held-out measures, the loss's interval.

    Raises:
        UserError: E-RUN for a run whose documents give another loss than its validation.csv.
    """
    table = runs_frame(spec).merge(frames["validation"], on="run_id", how="left", validate="1:1")
    table["status"] = table["status"].fillna("missing")
    docs = frames["validation_docs"].assign(n_predictions=lambda d: d["n_tokens"] - 1)
    sums = docs.groupby("run_id")[["nll_sum", "n_predictions"]].sum()
    from_docs = (sums["nll_sum"] / sums["n_predictions"]).reindex(table["run_id"])
    if not (same := np.isclose(table["loss"], from_docs, rtol=1e-6, equal_nan=True)).all():
        run_id = table["run_id"][~same].iloc[0]
        problem = f"{run_id}: validation_docs.parquet and validation.csv are not of one evaluation"
        raise UserError("E-RUN", f"{problem}; remove both and run snakemake again")
    bounds = {
        run_id: bootstrap_ratio(group["nll_sum"], group["n_predictions"], group["origin"], spec.bootstrap)
        # In one order for all runs, so that they share their resamples.
        for run_id, group in docs.sort_values(["origin", "doc_key"]).groupby("run_id")
    }
    pairs = [bounds.get(run_id, (np.nan, np.nan)) for run_id in table["run_id"]]
    return table.assign(loss_lo=[lo for lo, _ in pairs], loss_hi=[hi for _, hi in pairs])

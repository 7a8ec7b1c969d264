"""Held-out loss of every run and its scores on tasks: nats per token with intervals, and what produced the run.

    loss = sum of NLL / sum of predictions,  predictions of a document = its tokens - 1

`overhead_pct` is what the design adds to Pre-LN of the same shape, in percent of its parameters, norm gains
included. The interval is a bootstrap over documents, stratified by origin, with the same resamples for all runs
(`stats`). It holds the noise of evaluation, not of training. `rank` is the place of a loss among the runs of the suite
main of its scale and shape, seed 0 and finite losses only, 1 for the lowest. `nll_coding`, `nll_stem`, `nll_math` are
means of two tasks, of one where `tasks_missing` names the other. `published` is the paper's loss of the run's design,
shape and rate, where the study shows published values (`reference`). It follows the rule of the released code, as
`loss_upstream` does: `published_difference` = loss_upstream - published.
"""

import numpy as np
import pandas as pd

from depthbench import reference
from depthbench.artifacts import ArtifactSpec
from depthbench.schema import CATEGORIES
from depthbench.stats import PERCENTILES
from depthbench.tables._measured import measured, resampled
from depthbench.tables._tasks import TASK_LABELS, categories

FILES = ("run.json", "validation.csv", "validation_docs.parquet", "nll.csv", "arc.csv")
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
    "rank": ("Rank", "{}"),
    "published": ("Published", "{:.3f}"),
    "published_difference": ("Difference", "{:+.4f}"),
    "bits_per_byte": ("Bits/byte", "{:.4f}"),
    "nll_coding": ("Coding", "{:.4f}"),
    "nll_stem": ("STEM", "{:.4f}"),
    "nll_math": ("Math", "{:.4f}"),
    "arc_acc_norm": ("ARC-Easy", "{:.4f}"),
    "n_params": ("Parameters", "{:,}"),
    "overhead_pct": ("Overhead [%]", "{:.2f}"),
    "tokens": ("Tokens", "{:,}"),
    "commit": ("Commit", "{}"),
}
NLL = [f"nll_{name}" for name in (*CATEGORIES, *TASK_LABELS)]
ARC = ["arc_acc_norm", "arc_acc_norm_lo", "arc_acc_norm_hi", "arc_acc", "arc_chance"]
HELD_OUT = [
    *("suites", "design", "label", "scale", "n_layers", "d_model", "aspect_ratio", "lr", "seed", "status"),
    *("loss", "loss_lo", "loss_hi", "rank", "loss_upstream", "published", "published_difference"),
    *("bits_per_byte", "unigram_entropy"),
    *("n_params", "overhead_pct", "tokens", "commit", "mixed_commit", "run_id"),
]
COLUMNS = [*HELD_OUT[:-1], *NLL, "tasks_missing", *ARC, "run_id"]


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per run in display order; diverged and missing runs are kept with empty values."""
    table = held_out(frames, spec).merge(scores(frames), on="run_id", how="left", validate="1:1")
    return table[COLUMNS]


def scores(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the nll [nats/token] of each category and task of each run, and its accuracy on ARC-Easy."""
    nll, means = frames["nll"], categories(frames["nll"])
    parts = [means.assign(name=means["category"]), nll[nll["status"] == "ok"].assign(name=nll["task"])]
    wide = pd.concat(parts).pivot_table("nll", "run_id", "name").add_prefix("nll_").reindex(columns=NLL)
    missing = means[means["tasks_missing"] != ""].groupby("run_id")["tasks_missing"].agg(", ".join)
    arc = frames["arc"].set_index("run_id")[["acc_norm", "acc_norm_lo", "acc_norm_hi", "acc", "chance"]]
    return arc.add_prefix("arc_").join(wide).join(missing.astype("str")).reset_index()


def held_out(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return `losses` with the parameters, tokens and commit of each run."""
    record = frames["run"][["run_id", "n_params", "base_params", "tokens", "commit", "mixed_commit"]]
    own = record["n_params"] - record["base_params"]
    record = record.assign(overhead_pct=100 * own / record["base_params"])
    # Nullable types: a missing run would turn counts into floats.
    record = record.astype({"n_params": "Int64", "tokens": "Int64", "mixed_commit": "boolean"})
    table = losses(frames, spec).merge(record, on="run_id", how="left", validate="1:1")
    return with_published(ranked(table), frames)[HELD_OUT]


def ranked(table: pd.DataFrame) -> pd.DataFrame:
    """Add the place of each loss at its scale and shape."""
    in_main = table["suites"].map(lambda names: "main" in names.split(", ")).astype("bool")
    rows = table[in_main & (table["seed"] == 0)]
    places = rows.groupby(["scale", "n_layers", "d_model"])["loss"].rank(method="min")
    return table.assign(rank=places.reindex(table.index).astype("Int64"))


def with_published(table: pd.DataFrame, frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Add the paper's loss of each run, of the main suite, else of the iso-backbone one, else of Table 5.

    The paper has one seed; a run of another has none.
    """
    found = pd.Series(np.nan, index=table.index)
    first = table[table["seed"] == 0]
    for suite in ("main", "backbone", "moda_norms"):
        runs = first[first["suites"].map(lambda names, s=suite: s in names.split(", ")).astype("bool")]
        for lr, rows in runs.groupby("lr"):
            metric, place = (f"val_loss_lr_{lr}", "main") if suite == "moda_norms" else ("val_loss", suite)
            values = pd.Series(reference.beside(rows, frames, metric, place), index=rows.index)
            found = found.fillna(values)
    return table.assign(published=found, published_difference=table["loss_upstream"] - found)


def losses(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return `measured` with the interval of each loss.

    Raises:
        UserError: E-RUN for a run whose documents are not those of its validation.csv, or of the other runs.
    """
    samples = resampled(frames, spec)
    bounds = np.percentile(samples, PERCENTILES, axis=0)
    intervals = pd.DataFrame(bounds.T, columns=["loss_lo", "loss_hi"], index=samples.columns)
    return measured(frames, spec).join(intervals, on="run_id")

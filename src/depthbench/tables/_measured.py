"""What the tables of held-out losses share: the measured runs, and one set of resamples for all of them."""

import numpy as np
import pandas as pd

from depthbench.artifacts import ArtifactSpec, runs_frame
from depthbench.errors import UserError
from depthbench.stats import resampled_ratios

# The suites that compare shapes of one size, each design at its declared rate.
SHAPE_SUITES = ("main", "backbone", "ladder", "large")
DOCUMENT = ["origin", "doc_key", "n_tokens"]


def measured(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return `runs_frame` with status (ok, diverged, missing) and the measures of validation.csv."""
    table = runs_frame(spec).merge(frames["validation"], on="run_id", how="left", validate="1:1")
    return table.assign(status=table["status"].fillna("missing"))


def by_suite(table: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the shape suites and of `seeds` once for each, named in `suite`, suites in that order."""
    rows = table.assign(suite=table["suites"].str.split(", ")).explode("suite")
    return pd.concat([rows[rows["suite"] == suite] for suite in (*SHAPE_SUITES, "seeds")], ignore_index=True)


def shape_names(rows: pd.DataFrame) -> list[str]:
    """Return the shapes of runs for people, e.g. `L16 d28`."""
    return [f"L{depth} d{width}" for depth, width in zip(rows["n_layers"], rows["d_model"], strict=True)]


def yes_no(answer: bool | None) -> str | None:
    """Return yes or no, None where it is not known."""
    return None if answer is None else "yes" if answer else "no"


def resampled(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return the loss [nats/token] of each measured run (column, by run_id) in each resample (row).

    Documents are drawn within their origin, the same ones for all runs.

    Raises:
        UserError: E-RUN for a run whose documents give another loss than its validation.csv, or are not those
            of the other runs.
    """
    docs = frames["validation_docs"].sort_values(["origin", "doc_key"], kind="stable")
    parts = {str(run_id): group for run_id, group in docs.groupby("run_id", sort=False)}
    loss = frames["validation"].set_index("run_id")["loss"]
    for run_id, value in loss.items():
        _check(str(run_id), value, parts)
    if not parts:
        return pd.DataFrame(index=range(spec.bootstrap), dtype="float64")
    first = next(iter(parts.values()))
    nll = np.stack([group["nll_sum"] for group in parts.values()])
    ratios = resampled_ratios(nll, first["n_tokens"] - 1, first["origin"], spec.bootstrap)
    return pd.DataFrame(ratios, columns=list(parts))


def _check(run_id: str, loss: float, parts: dict[str, pd.DataFrame]) -> None:
    docs = parts.get(run_id)
    own = np.nan if docs is None else docs["nll_sum"].sum() / (docs["n_tokens"] - 1).sum()
    files, remedy = "validation_docs.parquet and validation.csv", "remove both and run snakemake again"
    if not np.isclose(loss, own, rtol=1e-6, equal_nan=True):
        raise UserError("E-RUN", f"{run_id}: {files} are not of one evaluation; {remedy}")
    if docs is None:
        return
    other, first = next(iter(parts.items()))
    if not np.array_equal(docs[DOCUMENT], first[DOCUMENT]):
        raise UserError("E-RUN", f"{run_id}: {files} are of other documents than those of {other}; {remedy}")

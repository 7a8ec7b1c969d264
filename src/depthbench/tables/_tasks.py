"""Scores on tasks as tables show them: per task, and per category as the plain mean of its two tasks.

A category is complete if both of its tasks are ok; an incomplete one is the mean of what there is and is shown with
the names of the others.
"""

import numpy as np
import pandas as pd

from depthbench.errors import UserError
from depthbench.schema import CATEGORIES
from depthbench.stats import PERCENTILES, resampled_ratios

TASK_LABELS = {
    "mbpp": "MBPP",
    "humaneval": "HumanEval",
    "sciq": "SciQ",
    "gpqa": "GPQA",
    "gsm8k": "GSM8K",
    "math500": "MATH-500",
}
REMEDY = "remove it and nll.csv and run snakemake again"
CATEGORY_LABELS = {"coding": "Coding", "stem": "STEM", "math": "Math"}


def categories(nll: pd.DataFrame) -> pd.DataFrame:
    """Return a row per run and category that is asked for, from the rows of nll.csv.

    Columns: run_id, category, status (ok, diverged, failed, not_available), tasks_used ("sciq"), tasks_missing ("gpqa
    not_available"), complete, nll [nats/token].

    Raises:
        UserError: E-RUN for a run that was scored on other items than the rest.
    """
    _check_same_items(nll)
    rows = []
    for run_id, group in nll.groupby("run_id", sort=False):
        found = group.set_index("task")
        for category, names in CATEGORIES.items():
            status = {task: found["status"].get(task, "not_requested") for task in names}
            used = [task for task, state in status.items() if state == "ok"]
            states = set(status.values())
            if states == {"not_requested"}:
                continue
            left = (state for state in ("diverged", "failed", "not_available") if state in states)
            rows.append(
                {
                    "run_id": run_id,
                    "category": category,
                    "status": "ok" if used else next(left),
                    "tasks_used": ", ".join(used),
                    "tasks_missing": ", ".join(f"{task} {state}" for task, state in status.items() if state != "ok"),
                    "complete": len(used) == len(names),
                    "nll": found.loc[used, "nll"].mean() if used else np.nan,
                }
            )
    columns = ["run_id", "category", "status", "tasks_used", "tasks_missing", "complete", "nll"]
    return pd.DataFrame(rows, columns=columns).astype({"nll": "float64"})


def intervals(table: pd.DataFrame, items: pd.DataFrame, resamples: int) -> pd.DataFrame:
    """Return rows of `categories` with lo and hi: items are drawn within their task, the same ones for all runs.

    Raises:
        UserError: E-RUN for a run whose nll_items.parquet are not those of its nll.csv, or of other runs.
    """
    samples = {str(t): _resampled(str(t), group, resamples) for t, group in items.groupby("task", sort=False)}
    bounds = np.full((len(table), 2), np.nan)
    for i, (run_id, names) in enumerate(zip(table["run_id"], table["tasks_used"], strict=True)):
        used = [task for task in names.split(", ") if task]
        if lacking := [task for task in used if run_id not in samples.get(task, {})]:
            raise UserError("E-RUN", f"{run_id}: nll_items.parquet has no items of {lacking[0]}; {REMEDY}")
        if used:
            bounds[i] = np.percentile(np.mean([samples[task][run_id] for task in used], axis=0), PERCENTILES)
    return table.assign(lo=bounds[:, 0], hi=bounds[:, 1])


def _resampled(task: str, items: pd.DataFrame, resamples: int) -> dict[str, np.ndarray]:
    parts = {str(run_id): group.sort_values("item_id") for run_id, group in items.groupby("run_id", sort=False)}
    first_id, first = next(iter(parts.items()))
    for run_id, group in parts.items():
        if not np.array_equal(group[["item_id", "n_tokens"]], first[["item_id", "n_tokens"]]):
            raise UserError("E-RUN", f"{run_id}: nll_items.parquet has other items of {task} than {first_id}; {REMEDY}")
    nll = np.stack([group["nll_sum"] for group in parts.values()])
    # a seed of its own: the draws of two tasks are independent
    ratios = resampled_ratios(nll, first["n_tokens"], first["task"], resamples, seed=[*TASK_LABELS].index(task))
    return dict(zip(parts, ratios.T, strict=True))


def _check_same_items(nll: pd.DataFrame) -> None:
    for task, group in nll[nll["items_id"] != ""].groupby("task", sort=False):
        first = group.iloc[0]
        for _, row in group[group["items_id"] != first["items_id"]].head(1).iterrows():
            what = f"scored on other items of {task} than {first['run_id']}"
            raise UserError("E-RUN", f"{row['run_id']}: {what}; remove nll.csv of either side and run snakemake again")

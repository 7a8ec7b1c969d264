"""Nll of the right answers of coding, STEM and math tasks over the aspect ratio (paper Fig. 4).

A point is the plain mean of two tasks [nats/token]; where one of them has no value, the panel's heading names the
other and the note says why. Bars are 95 % intervals over items, drawn within each task.
Hollow marks are the paper's values where the study shows them (`reference`) and both tasks of a category have a value.
"""

import textwrap

import pandas as pd
import plotnine as p9

from depthbench import reference
from depthbench.artifacts import ArtifactSpec, run_id, runs_frame
from depthbench.figures import _aspect, _theme
from depthbench.figures.validation_loss import overheads
from depthbench.model import ModelConfig
from depthbench.schema import CATEGORIES
from depthbench.tables._tasks import CATEGORY_LABELS, TASK_LABELS, categories, intervals
from depthbench.tables.parameters import with_base

FILES = ("nll.csv", "nll_items.parquet")
COLUMNS = [
    *("panel", "design", "label", "n_layers", "d_model", "aspect_ratio", "lr", "seed", "status"),
    *("tasks_used", "tasks_missing", "complete", "nll", "lo", "hi", "published", "overhead_pct", "run_id"),
]


def draw(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> tuple[p9.ggplot, pd.DataFrame]:
    """Return the plot and its frame: one row per category and run, missing runs included (`status`)."""
    found = intervals(categories(frames["nll"]), frames["nll_items"], spec.bootstrap)
    runs = runs_frame(spec)
    runs = runs[runs["seed"] == 0]
    asked = [name for name in CATEGORIES if name in set(found["category"])] or [*CATEGORIES]
    rows = runs.merge(pd.DataFrame({"category": asked}), how="cross")
    frame = rows.merge(found, on=["run_id", "category"], how="left", validate="1:1").rename(
        columns={"category": "panel"}
    )
    frame["status"] = frame["status"].fillna("missing")
    frame = with_published(frame, frames)
    sizes = {run_id(spec, path): with_base(ModelConfig.read(spec.plan(path)["model"])) for path in spec.runs}
    added = {run: 100 * (n - base) / base for run, (n, base) in sizes.items()}
    frame = frame.assign(overhead_pct=frame["run_id"].map(added))
    sentences = (
        overheads(frame) + remarks(frame, frames["nll"]) + [reference.NOTE] * bool(frame["published"].notna().any())
    )
    note = textwrap.fill(" ".join(sentences), _theme.NOTE_WIDTH)
    # a value that is neither there nor diverged is named below, not drawn
    shown = frame.assign(status=frame["status"].where(frame["status"].isin(["ok", "diverged"]), "missing"))
    shown = shown.rename(columns={"nll": "loss", "lo": "loss_lo", "hi": "loss_hi"})
    label = "NLL of right answers [nats/token]"
    return _aspect.plot(reference.marks(shown), headings(frame), label, note, spec), frame[COLUMNS]


def with_published(frame: pd.DataFrame, frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the rows with the paper's mean of both tasks, `published`, where no run of ours lacks one of them."""
    values: dict = {}
    for category, rows in frame.groupby("panel"):
        if rows.loc[rows["status"] != "diverged", "complete"].fillna(True).all():
            values |= dict(zip(rows.index, reference.beside(rows, frames, f"nll_{category}", "main"), strict=True))
    return frame.assign(published=pd.Series(values, dtype="float64"))


def headings(frame: pd.DataFrame) -> dict[str, str]:
    """Return the heading of each category; where a task is missing it says which one is drawn and which is not."""
    found = {}
    for category in frame["panel"].unique():
        drawn = frame[(frame["panel"] == category) & (frame["status"] == "ok")]
        partial = drawn[~drawn["complete"].astype(bool)]
        parts = partial[["tasks_used", "tasks_missing"]].drop_duplicates().itertuples(index=False)
        told = [f"{TASK_LABELS[used]} only, {_told(missing)}" for used, missing in parts]
        some = "in some runs " if len(partial) < len(drawn) else ""
        found[category] = CATEGORY_LABELS[category] + (f": {some}{' or '.join(told)}" if told else "")
    return found


def _told(missing: str) -> str:
    task, _, status = missing.partition(" ")
    return f"{TASK_LABELS[task]} {status.replace('_', ' ')}"


def remarks(frame: pd.DataFrame, nll: pd.DataFrame) -> list[str]:
    """Return sentences that name what is not drawn: tasks, with the reason, and runs that are missing."""
    found = []
    bad = nll[nll["status"].isin(["not_available", "failed"])]
    for task, status in bad[["task", "status"]].drop_duplicates().itertuples(index=False):
        rows = bad[(bad["task"] == task) & (bad["status"] == status)]
        reason = rows["reason"].iloc[0].removeprefix("E-HUB ").partition(";")[0]
        where = "" if len(rows) == nll["run_id"].nunique() else f" in {len(rows)} runs"
        found.append(f"{_told(f'{task} {status}')}{where} ({reason}).")
    found += cut(nll[nll["status"] == "ok"])
    missing = frame[frame["status"] == "missing"].drop_duplicates("run_id")
    named = [f"{label} {_aspect.names(runs)}" for label, runs in missing.groupby("label", sort=False)]
    return [*found, *([f"Missing: {'; '.join(named)}."] if named else [])]


def cut(nll: pd.DataFrame) -> list[str]:
    """Return a sentence that tells which tasks have items longer than the context, and how many in the worst run."""
    share = (nll["n_truncated"] / nll["n_items"]).groupby(nll["task"], sort=False).max()
    named = ", ".join(f"{TASK_LABELS[str(task)]} {part:.0%}" for task, part in share[share > 0].items())
    return [f"Items cut to the context length: {named}."] if named else []

"""What each training took: time, throughput, memory, machine.

`seconds` is the wall time of all legs, start and checkpoints included, lost work of a killed leg not. Tokens per
second and the time of a step are medians over the steps and over all processes (`ranks`), the memory is the largest
of any step and process: of the GPU, on a CPU of the process.
"""

import pandas as pd

from depthbench.artifacts import ArtifactSpec, runs_frame
from depthbench.errors import UserError

FILES = ("run.json", "metrics.jsonl")
COLUMNS = [
    *("suites", "design", "label", "scale", "n_layers", "d_model", "lr", "seed", "status", "step", "tokens"),
    *("n_params", "tokens_per_s", "step_seconds", "seconds", "n_legs", "peak_bytes", "device", "kernels"),
    *("ranks", "threads", "host", "commit", "mixed_commit", "run_id"),
]
PRINTED = {
    "label": ("Design", "{}"),
    "scale": ("Scale", "{}"),
    "n_layers": ("L", "{}"),
    "d_model": ("d", "{}"),
    "lr": ("Rate", "{}"),
    "seed": ("Seed", "{}"),
    "status": ("Status", "{}"),
    "tokens_per_s": ("Tokens/s", "{:,.0f}"),
    "step_seconds": ("Step [s]", "{:.3g}"),
    "seconds": ("Total [s]", "{:,.0f}"),
    "n_legs": ("Legs", "{}"),
    "peak_bytes": ("Peak memory [bytes]", "{:,}"),
    "device": ("Device", "{}"),
    "ranks": ("Processes", "{}"),
    "kernels": ("Kernels", "{}"),
    "commit": ("Commit", "{}"),
}


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per run in display order; of a missing run all but its name is empty.

    Raises:
        UserError: E-RUN for a run whose metrics.jsonl does not end where its run.json does.
    """
    record, steps = frames["run"], frames["metrics"]
    batch = steps["tokens"] / steps["step"]
    steps = steps.assign(step_seconds=batch / steps["tokens_per_s"])
    by_run = steps.groupby("run_id")
    _check(record, by_run[["step", "tokens"]].max())
    measures = by_run.agg(
        tokens_per_s=("tokens_per_s", "median"),
        step_seconds=("step_seconds", "median"),
        peak_bytes=("memory_bytes", "max"),
    )
    counts = dict.fromkeys(("step", "tokens", "n_params", "n_legs", "peak_bytes"), "Int64")
    table = runs_frame(spec).merge(record.join(measures, on="run_id"), on="run_id", how="left", validate="1:1")
    table = table.astype(counts | {"mixed_commit": "boolean"})
    return table.assign(status=table["status"].fillna("missing"))[COLUMNS]


def _check(record: pd.DataFrame, ends: pd.DataFrame) -> None:
    told = record.set_index("run_id")[["step", "tokens"]]
    wrong = (told != ends.reindex(told.index)).any(axis=1)
    if wrong.any():
        problem = f"{told.index[wrong][0]}: metrics.jsonl and run.json do not end at the same step"
        raise UserError("E-RUN", f"{problem}; remove both and run snakemake again")

"""What each training took: time, throughput, memory, machine.

`seconds` is the wall time of all legs, start and checkpoints included, lost work of a killed leg not. Tokens per
second and the time of a step are medians over the steps and over all processes (`ranks`), the memory is the largest
of any step and process: of the GPU, on a CPU of the process. `flops` are those of the model by closed form (`cost`:
three forward passes, the design's own part included), `flops_per_s` those at the median speed, and `mfu` is their share
of the bfloat16 peak of all processes' devices; it is empty for a device without a known peak, as a CPU, for runs that
computed in float32, and where legs ran on different devices or numbers of processes.
"""

import pandas as pd

from depthbench.artifacts import ArtifactSpec, runs_frame
from depthbench.errors import UserError
from depthbench.peaks import peak

FILES = ("run.json", "metrics.jsonl")
COLUMNS = [
    *("suites", "design", "label", "scale", "n_layers", "d_model", "lr", "seed", "status", "step", "tokens"),
    *("n_params", "tokens_per_s", "step_seconds", "seconds", "n_legs", "peak_bytes", "flops", "flops_per_s", "mfu"),
    *("device", "kernels", "ranks", "threads", "host", "commit", "mixed_commit", "run_id"),
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
    "flops": ("FLOPs", "{:.3g}"),
    "flops_per_s": ("FLOP/s", "{:.3g}"),
    "mfu": ("MFU", "{:.3f}"),
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
    table["flops_per_s"] = table["flops"] / table["tokens"].astype("float64") * table["tokens_per_s"]
    peaks = [_peak(*row) for row in table[["device", "ranks", "compute"]].itertuples(index=False)]
    table["mfu"] = table["flops_per_s"] / pd.Series(peaks, index=table.index, dtype="float64")
    return table.assign(status=table["status"].fillna("missing"))[COLUMNS]


def _peak(device: str, ranks: str, compute: str) -> float | None:
    """Return the bfloat16 peak [FLOP/s] of all processes of a run, None where there is no single one that is known."""
    single = peak(device) if isinstance(device, str) else None
    return single * int(ranks) if single and compute == "bfloat16" and ranks.isdecimal() else None


def _check(record: pd.DataFrame, ends: pd.DataFrame) -> None:
    told = record.set_index("run_id")[["step", "tokens"]]
    wrong = (told != ends.reindex(told.index)).any(axis=1)
    if wrong.any():
        problem = f"{told.index[wrong][0]}: metrics.jsonl and run.json do not end at the same step"
        raise UserError("E-RUN", f"{problem}; remove both and run snakemake again")

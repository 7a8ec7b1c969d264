"""A TensorBoard copy of the metrics of runs; `metrics.jsonl` stays the record."""

import json
from pathlib import Path

from depthbench.errors import UserError

SCALARS = ("loss", "grad_norm", "lr", "tokens_per_s", "memory_bytes")


def mirror(runs: Path, out: Path) -> list[str]:
    """Write the event files of every run below `runs` into `out`, anew; return the names of the runs.

    A run in progress is taken as far as it is.

    Raises:
        UserError: E-MIRROR if TensorBoard is not installed or there is no run.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("E-MIRROR", "tensorboard is not installed; pip install tensorboard") from None
    found = {path.parent: path for path in sorted(runs.rglob("resume/metrics.jsonl"))}
    found = {folder.parent: path for folder, path in found.items()}
    found |= {path.parent: path for path in sorted(runs.rglob("lr*-s*/metrics.jsonl"))}
    if not found:
        raise UserError("E-MIRROR", f"{runs}: no run below it has metrics; name a folder such as results/tiny/runs")
    for folder, path in found.items():
        target = out / folder.relative_to(runs)
        for old in target.glob("events.out.tfevents.*"):  # nothing else: it may be the folder of the run
            old.unlink()
        with SummaryWriter(str(target)) as writer:
            for line in path.read_text().splitlines(keepends=True):
                if not line.endswith("\n"):
                    break  # being written
                row = json.loads(line)
                for name in SCALARS:
                    if row[name] is not None:
                        writer.add_scalar(name, row[name], row["step"], walltime=row["time"])
    return [str(folder.relative_to(runs)) for folder in found]

"""How far the runs of a study are, read from their folders."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from depthbench import lock, runs
from depthbench.runs import Run
from depthbench.schema import Config

STATES = ("done", "imported", "diverged", "running", "stopped", "stale", "missing")


@dataclass(frozen=True)
class Status:
    """One run: its state, the last step it has logged, and the commits that trained it.

    done, imported, diverged: run.json holds the present spec; running: a process holds its lock; stopped: begun,
    nobody at work; stale: run.json has another spec; missing: nothing there.
    """

    run: Run
    state: str
    step: int
    steps: int
    commits: tuple[str, ...] = ()
    holder: str | None = None

    @property
    def mixed(self) -> bool:
        """Whether no single commit gives this run again."""
        return runs.is_mixed(self.commits)


def status(config: Config, wanted: Iterable[Run], folder: Path) -> list[Status]:
    """Return the status of each run below `folder` (`results/<study>/runs`)."""
    return [_one(config, run, folder / run.path) for run in wanted]


def _one(config: Config, run: Run, folder: Path) -> Status:
    record, steps = runs.record(folder), runs.spec(config, run).steps
    if record and runs.made_by(config, run).matches(record["spec"]):
        commits = runs.commits((leg["commit"], leg["dirty"]) for leg in record["legs"])
        state = "done" if record["status"] == "ok" else record["status"]
        return Status(run, state, record["step"] or 0, steps, commits)
    step = _last_step(folder / "resume" / "metrics.jsonl")
    if who := lock.holder(folder):
        return Status(run, "running", step, steps, holder=who)
    if record:
        return Status(run, "stale", record["step"] or 0, steps)
    return Status(run, "stopped" if step else "missing", step, steps)


def _last_step(metrics: Path) -> int:
    """The number of whole lines: a step each."""
    try:
        return metrics.read_bytes().count(b"\n")
    except OSError:
        return 0

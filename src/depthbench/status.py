"""How far the runs of a study are, read from their folders."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from depthbench import lock, runs
from depthbench.runs import Run
from depthbench.schema import Config
from depthbench.specs import RunSpec

STATES = ("done", "diverged", "running", "stopped", "stale", "missing")


@dataclass(frozen=True)
class Status:
    """One run: its state, the last step it has logged, and the commits that trained it.

    done, diverged: run.json holds the present spec; running: a process holds its lock; stopped: begun, nobody at
    work; stale: run.json has another spec; missing: nothing there.
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
    return [_one(runs.spec(config, run), run, folder / run.path) for run in wanted]


def _one(wanted: RunSpec, run: Run, folder: Path) -> Status:
    record = runs.record(folder)
    if record and wanted.matches(record["spec"]):
        commits = runs.commits((leg["commit"], leg["dirty"]) for leg in record["legs"])
        state = "done" if record["status"] == "ok" else "diverged"
        return Status(run, state, record["step"], wanted.steps, commits)
    step = _last_step(folder / "resume" / "metrics.jsonl")
    if who := lock.holder(folder):
        return Status(run, "running", step, wanted.steps, holder=who)
    if record:
        return Status(run, "stale", record["step"], wanted.steps)
    return Status(run, "stopped" if step else "missing", step, wanted.steps)


def _last_step(metrics: Path) -> int:
    """The number of whole lines: a step each."""
    try:
        return metrics.read_bytes().count(b"\n")
    except OSError:
        return 0

"""Which runs an artifact shows, and what it is told of them: its spec.

No torch here: a dry-run imports this module.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from depthbench import runs
from depthbench.config import lookup_rate
from depthbench.runs import Run
from depthbench.schema import CATEGORIES, Config

CATEGORIZED = {task for tasks in CATEGORIES.values() for task in tasks}


@dataclass(frozen=True)
class Pick:
    """The runs of one suite that an artifact needs; designs None: all of them.

    Without `files` it shows what is planned for them (shape, rate, tokens) and reads no result. `like` names a
    suite: only runs at scales and shapes of its runs are needed. `scored`: only runs that are scored on a task of
    some category are. `depths` and `lr`: only runs of these depths, at this rate.
    """

    suite: str
    designs: tuple[str, ...] | None = None
    files: bool = True
    like: str | None = None
    scored: bool = False
    depths: tuple[int, ...] = ()
    lr: str | None = None


def select(config: Config, picks: list[Pick]) -> list[Run]:
    """Return the runs of all picks, each once, sorted by path."""
    views = runs.suites(config)
    found: set[Run] = set()
    for pick in picks:
        named = [run for run in views.get(pick.suite, []) if pick.designs is None or run.design in pick.designs]
        if pick.like is not None:
            shapes = {run.shape for run in views.get(pick.like, [])}
            named = [run for run in named if run.shape in shapes]
        if pick.depths:
            named = [run for run in named if run.n_layers in pick.depths]
        if pick.lr is not None:
            named = [run for run in named if run.lr == pick.lr]
        if pick.scored:
            named = [run for run in named if CATEGORIZED & set(runs.evaluation_spec(config, run).tasks)]
        found.update(named)
    return sorted(found, key=lambda run: run.path)


def artifact_spec(
    config: Config,
    kind: str,
    name: str,
    files: list[str],
    picked: list[Run],
    missing: list[str],
    planned: Sequence[Run] = (),
) -> str:
    """Return what a table or figure shows, as JSON: its runs with their suites, and the numbers it reads.

    Of the runs `planned` it has the plan only.
    """
    member: dict[str, list[str]] = {run.path: [] for run in picked}
    for suite, members in sorted(runs.suites(config).items()):
        for run in members:
            if run.path in member:
                member[run.path].append(suite)
    shown = sorted({*picked, *planned}, key=lambda run: run.path)
    used = {run.design for run in shown}
    study = config.studies[config.study]
    # Only where they change what is shown: another depth redraws no table of losses.
    own: dict[str, Any] = {"compare": study.compare} if "compare.csv" in files else {}
    if any(file.startswith("analysis/") for file in files):
        own |= {"depths": study.depths.model_dump(), "common_lr": study.common_lr}
        own["unanalyzed"] = [run.path for run in picked if not is_analyzed(config, run)]
    return runs.dumps(
        own
        | {
            "kind": kind,
            "name": name,
            "study": config.study,
            "runs": member,
            "missing": missing,
            "files": files,
            "bootstrap": study.bootstrap,
            "labels": {n: [d.label, d.family] for n, d in config.designs.items() if n in used},
            # One for all rates and seeds, and none where run.json is read: all of it is one argument of a command.
            "plans": {} if "run.json" in files else {run.place: plan(config, run) for run in shown},
        }
    )


def is_analyzed(config: Config, run: Run) -> bool:
    """Return whether a layer analysis of a run is asked for."""
    return bool(runs.analysis_spec(config, run).names)


def plan(config: Config, run: Run) -> dict[str, Any]:
    """Return what the configuration says of a run but its own rate and seed: model, budget, and the declared rate."""
    full = runs.spec(config, run)
    return {
        "model": full.model,
        "steps": full.steps,
        "warmup_steps": round(full.schedule.warmup * full.steps),
        "tokens": full.steps * full.batch_sequences * full.sequence_length,
        "design": run.design,
        "scale": run.scale,
        "declared_lr": lookup_rate(config, run.scale, run.design),
    }

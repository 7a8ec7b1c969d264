"""Suites become runs; the path of a run is its identity; specs are the slices of config that its jobs are told.

No torch here: a dry-run imports this module.
"""

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from depthbench.config import designs_of, lookup_grid, lookup_rate
from depthbench.errors import UserError
from depthbench.schema import TASK_FIELDS, AnalysisName, Config, Corpus, Evaluation, Request, Suite, Suites
from depthbench.specs import AnalysisSpec, DataSpec, EvaluationSpec, ImportSpec, PartSpec, RunSpec, TaskSpec

# Raised by hand when the meaning of a stage changes; nothing else about the code makes it run again. A design has
# its own version in the configuration.
VERSION = {"data": 1, "train": 1, "import": 1, "evaluate": 2, "analyze": 1, "prefill": 1}
NOT_COMPARED = "deepnorm"  # at the common rate, at which it diverges in the paper
LR_EFFECT = ("preln", "lns")  # designs whose whole grid a figure shows, layer by layer

PATTERN = r"[a-z][a-z0-9_]*/[a-z0-9]+(?:-[a-z][a-z0-9_]*)?-d\d+-l\d+/lr\d+e-?\d+-s\d+"
_FIELDS = re.compile(
    r"(?P<design>[a-z][a-z0-9_]*)/(?P<scale>[a-z0-9]+)(?:-(?P<recipe>[a-z][a-z0-9_]*))?"
    r"-d(?P<d_model>\d+)-l(?P<n_layers>\d+)/lr(?P<lr>\d+e-?\d+)-s(?P<seed>\d+)"
)


@dataclass(frozen=True, order=True)
class Run:
    """One training: `<design>/<scale>-d<width>-l<depth>/lr<lr>-s<seed>`, `<scale>-<recipe>` for another recipe."""

    design: str
    scale: str
    d_model: int
    n_layers: int
    lr: str
    seed: int = 0
    recipe: str = ""  # none: the study's own

    @property
    def shape(self) -> tuple[str, int, int]:
        """Scale, width and depth."""
        return self.scale, self.d_model, self.n_layers

    @property
    def place(self) -> str:
        """Folder of the runs of one design, budget and shape, at any rate and seed, below `results/<study>/runs/`."""
        budget = f"{self.scale}-{self.recipe}" if self.recipe else self.scale
        return f"{self.design}/{budget}-d{self.d_model}-l{self.n_layers}"

    @property
    def path(self) -> str:
        """Path below `results/<study>/runs/`; `parse` is its inverse."""
        return f"{self.place}/lr{self.lr}-s{self.seed}"


def parse(path: str) -> Run:
    """Read a run off its path; raises ValueError if it is not one."""
    match = _FIELDS.fullmatch(path)
    if match is None:
        raise ValueError(f"{path!r} is not the path of a run")
    f = match.groupdict()
    shape = int(f["d_model"]), int(f["n_layers"])
    return Run(f["design"], f["scale"], *shape, f["lr"], int(f["seed"]), f["recipe"] or "")


def expand(config: Config, suite: Suite) -> list[Run]:
    """Return the runs of one part of a suite, in declared order."""
    found = []
    recipe = suite.recipe if suite.recipe and suite.recipe != config.studies[config.study].recipe else ""
    for design in designs_of(config, suite):
        if suite.lr == "own":
            rates = [lookup_rate(config, suite.scale, design)]
        elif suite.lr == "grid":
            rates = lookup_grid(config, suite.scale, design) or []
        else:
            rates = suite.lr
        for n_layers, d_model in suite.shapes:
            found += [
                Run(design, suite.scale, d_model, n_layers, lr, seed, recipe) for lr in rates for seed in suite.seeds
            ]
    return found


def suites(config: Config) -> dict[str, list[Run]]:
    """Return each suite of the study with its runs; a run may stand in several."""
    return _views(config, config.studies[config.study].suites)


def controls(config: Config) -> dict[str, list[Run]]:
    """Return each control suite of the study with its runs."""
    return _views(config, config.studies[config.study].controls)


def _views(config: Config, declared: Suites) -> dict[str, list[Run]]:
    return {
        name: list(dict.fromkeys(run for part in parts for run in expand(config, part)))
        for name, parts in declared.items()
    }


def union(views: dict[str, list[Run]]) -> list[Run]:
    """Return every run once."""
    return list(dict.fromkeys(run for runs in views.values() for run in runs))


def spec(config: Config, run: Run) -> RunSpec:
    """Return all that decides how a run is trained."""
    study = config.studies[config.study]
    recipe = config.recipes[run.recipe or study.recipe]
    design, scale = config.designs[run.design], config.scales[run.scale]
    residual = design.residual or run.design
    optional = {
        "n_kv_heads": scale.n_kv_heads,
        "d_ff": scale.ffn_ratio and scale.ffn_ratio * run.d_model,
        "init": design.init if design.init != "default" else None,
        "hc_readout": design.hc_readout if design.hc_readout != "sum_then_norm" else None,
        "attnres_eps": recipe.attnres_eps,
        "hc_rms_eps": recipe.hc_rms_eps,
    }
    return RunSpec(
        run_id=f"{config.study}/runs/{run.path}",
        version=(VERSION["train"], design.version),
        model={
            "design": residual,
            "d_model": run.d_model,
            "n_layers": run.n_layers,
            "n_heads": study.n_heads,
            "vocab_size": study.tokenizer.vocab_size,
            "init_std": recipe.init_std,
            **{key: value for key, value in optional.items() if value is not None},
        },
        steps=scale.steps,
        lr=run.lr,
        seed=run.seed,
        sequence_length=recipe.sequence_length,
        batch_sequences=recipe.batch_sequences,
        optimizer=recipe.optimizer,
        schedule=recipe.schedule,
        precision=recipe.precision,
        threads=recipe.threads,
        data=data_spec(config),
    )


def imported(config: Config) -> dict[Run, str]:
    """Return the runs of the study that are released checkpoints, not trained here, with their folders.

    Raises:
        UserError: E-CONFIG for a path that is not that of a run of the study.
    """
    known = {run.path: run for run in union(suites(config))}
    declared = config.studies[config.study].imported
    if strangers := sorted(set(declared) - set(known)):
        near = difflib.get_close_matches(strangers[0], known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError("E-CONFIG", f"studies.{config.study}.imported: {strangers[0]!r} is no run of its suites{hint}")
    return {known[path]: folder for path, folder in declared.items()}


def made_by(config: Config, run: Run) -> RunSpec | ImportSpec:
    """Return all that decides how a run comes to be: by training, or by import."""
    trained, folder = spec(config, run), config.studies[config.study].imported.get(run.path)
    if folder is None:
        return trained
    must_be = {"design", "d_model", "n_layers", "hc_readout"} & trained.model.keys()
    return ImportSpec(
        run_id=trained.run_id,
        version=VERSION["import"],
        source=folder,
        model={key: trained.model[key] for key in must_be},
        steps=trained.steps,
        lr=run.lr,
        seed=run.seed,
        data=trained.data,
    )


def find_checkpoint(folder: Path) -> tuple[Path, int | None]:
    """Return the folder of a released checkpoint itself, the last of several steps, and its step if its name tells.

    Raises:
        UserError: E-CKPT if it is not there or not whole.
    """
    numbered = {int(path.name[4:]): path for path in folder.glob("step*") if re.fullmatch(r"step\d+", path.name)}
    steps = [step for step in numbered if (numbered[step] / "config.json").is_file()]
    if (folder / "config.json").is_file():
        match = re.fullmatch(r"step(\d+)", folder.name)
        found, step = folder, int(match[1]) if match else None
    elif steps:
        found, step = numbered[max(steps)], max(steps)
    else:
        why = f"none of {len(numbered)} steps holds config.json" if numbered else "no config.json and no step<N>/"
        raise UserError(
            "E-CKPT", f"{folder}: {why if folder.is_dir() else 'no such folder'}; name the folder of a checkpoint"
        )
    if not (found / "model_and_optim" / ".metadata").is_file():
        raise UserError("E-CKPT", f"{found}: no model_and_optim/.metadata; download the whole checkpoint")
    return found, step


def evaluation_spec(config: Config, run: Run) -> EvaluationSpec:
    """Return the tasks that a run is scored on: those of the study for runs of the suite `main`, else none."""
    asked = config.studies[config.study].evaluate.tasks
    if asked == "none" or run not in suites(config).get("main", []):
        return EvaluationSpec.model_validate({})
    return task_spec(config, [*TASK_FIELDS] if asked == "all" else asked, config.study)


def task_spec(config: Config, names: Sequence[str], study: str) -> EvaluationSpec:
    """Return how some tasks are scored, with the limits of a study if it is declared, else on all items."""
    asked = config.studies[study].evaluate if study in config.studies else Evaluation.model_validate({})
    limits = asked.limit
    chosen = {
        name: TaskSpec(**dict(getattr(config.tasks, name)), limit=limits.get(name, limits.get("default")))  # type: ignore[call-overload]
        for name in names
    }
    return EvaluationSpec.model_validate({"tasks": chosen, "max_truncated": asked.max_truncated})


def analysis_spec(config: Config, run: Run) -> AnalysisSpec:
    """Return the layer analyses of a run.

    Runs of the suite `main` have all of them, pruning only if they are scored on ARC-Easy; of the sweep, runs at the
    depth `one` have the angular distance where a figure shows it: at the common rate, or of a design of LR_EFFECT.
    """
    study, views = config.studies[config.study], suites(config)
    scored = evaluation_spec(config, run).tasks.get("arc_easy")
    names: list[Any] = []
    if run in views.get("main", []):
        names = [name for name in get_args(AnalysisName) if name != "prune" or scored]
    elif run in views.get("sweep", []) and run.n_layers == study.depths.one:
        shown = run.design in LR_EFFECT or (run.lr == study.common_lr and run.design in compared(config))
        names = ["angular"] if shown else []
    return AnalysisSpec(names=names, calibration=study.calibration, arc_easy=scored if "prune" in names else None)


def compared(config: Config) -> list[str]:
    """Return the designs that are compared at the common rate."""
    return sorted({run.design for run in suites(config).get("main", [])} - {NOT_COMPARED})


def request(config: Config, run: Run) -> Request:
    """Return what the job that trains a run asks of the machine."""
    return config.resources.by_scale.get(run.scale, config.resources.default)


def record(folder: Path) -> dict[str, Any] | None:
    """Return the run.json of a run's folder, None where there is none that can be read."""
    try:
        found = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return found if isinstance(found, dict) and "spec" in found else None
    except (OSError, ValueError):
        return None


def commits(legs: Iterable[tuple[str | None, bool | None]]) -> tuple[str, ...]:
    """Return the short names of the commits of (commit, edited since) pairs, each once: `abc1234`, `abc1234-dirty`."""
    return tuple(dict.fromkeys((commit or "unknown")[:7] + "-dirty" * bool(dirty) for commit, dirty in legs))


def is_mixed(names: Sequence[str]) -> bool:
    """Return whether no single commit gives a run again: its legs differ, or ran code that no commit holds."""
    return len(names) > 1 or any(name == "unknown" or name.endswith("-dirty") for name in names)


def data_spec(config: Config) -> DataSpec:
    """Return what the prepared data of the study depend on."""
    study = config.studies[config.study]
    corpus = config.corpora[study.corpus]
    return DataSpec(corpus=study.corpus, tokenizer=study.tokenizer, version=VERSION["data"], **dict(corpus))


def parquet_files(data: Corpus) -> list[str]:
    """Return the files of a hub corpus that become parts, the held-out one last; none for other sources."""
    return [*(data.files or []), *([data.val_file] if data.val_file else [])]


def part_spec(data: DataSpec, file: str) -> PartSpec:
    """Return what the part of one parquet file depends on. What other files there are is not among it."""
    fraction = float(file == data.val_file) if data.val_fraction is None else data.val_fraction
    kept = data.model_dump(include=set(PartSpec.model_fields))
    return PartSpec.model_validate({**kept, "file": file, "val_fraction": fraction})


def dumps(value: Any) -> str:
    """Return compact JSON with sorted keys: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))

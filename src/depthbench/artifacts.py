"""What a table or figure is made of: its spec, and the files of its runs as typed frames.

The path of a run's file says which run it belongs to, and the file must say the same. Frames are joined
by `run_id`, the run's path below `results/`; a learning rate is the tag in it ("1e-2"), never a float key.
"""

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

import pandas as pd
from pydantic import PositiveInt, TypeAdapter, ValidationError

from depthbench import files as disk
from depthbench import reference, runs
from depthbench.designs import ORDER
from depthbench.errors import UserError
from depthbench.readers import COLUMNS, OF_NO_RUN, READERS
from depthbench.schema import Family
from depthbench.specs import spec_error

RUN_COLUMNS = ["run_id", "suites", "design", "label", "scale", "n_layers", "d_model", "aspect_ratio", "lr", "seed"]
PLAN = ("model", "steps", "warmup_steps", "tokens", "design", "scale", "declared_lr")


@dataclass(frozen=True)
class Depths:
    """Numbers of layers at which layer analyses are shown: designs side by side at `one`, each at `three`."""

    one: int = 0
    three: tuple[int, ...] = ()


@dataclass(frozen=True)
class ArtifactSpec:
    """What a table or figure shows; the workflow writes it as JSON.

    `runs` are all runs of the artifact with their suites, those of `missing` included; `files` are the files
    that each of the others has; `labels` are the name for people and the family of each design. `plans` say
    what the configuration holds of runs, missing or not, by design, budget and shape (`hc/t-d28-l16`), which rate
    and seed do not change: `model` (arguments of `ModelConfig`), `steps`, `tokens`, `design`, `scale`, and
    `declared_lr`, the rate declared for its design at its scale. Only what reads layer analyses has `depths` and
    `common_lr`, the rate at which designs are compared, and `unanalyzed`, the runs that have no files of them.
    `compare` is the path of a table of a user's own losses.
    """

    kind: Literal["table", "figure"]
    name: str
    study: str
    runs: dict[str, tuple[str, ...]]
    missing: tuple[str, ...]
    files: tuple[str, ...]
    bootstrap: PositiveInt
    labels: dict[str, tuple[str, Family]]
    plans: dict[str, dict[str, Any]] = field(default_factory=dict)
    depths: Depths = Depths()
    common_lr: str = ""
    compare: str | None = None
    unanalyzed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError where the parts do not fit each other."""
        for place in (*(runs.parse(path).place for path in self.runs), *self.plans):
            if (design := place.partition("/")[0]) not in self.labels:
                raise ValueError(f"labels has no entry for design {design!r}")
        if strangers := [path for path in self.missing if path not in self.runs]:
            raise ValueError(f"missing names {strangers[0]!r}, which runs does not")
        if unknown := [name for name in self.files if name not in COLUMNS]:
            raise ValueError(f"files names {unknown[0]!r}; known: {', '.join(COLUMNS)}")
        for path, plan in self.plans.items():
            if lacking := [key for key in PLAN if key not in plan]:
                raise ValueError(f"the plan of {path!r} has no {lacking[0]}")
        if any(name.startswith("analysis/") for name in self.files) and not (self.depths.three and self.common_lr):
            raise ValueError("files of layer analyses need depths and common_lr")

    @classmethod
    def from_json(cls, text: str) -> "ArtifactSpec":
        """Read a spec; keys that it does not know are left aside.

        Raises:
            UserError: E-SPEC, one line for each problem.
        """
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            raise spec_error(error) from None

    def owners(self, name: str) -> list[str]:
        """Return the paths of the runs that have a file of this name; one of no run belongs to ""."""
        if name in OF_NO_RUN:
            return [""]
        without = self.unanalyzed if name.startswith("analysis/") else ()
        return [path for path in self.present if path not in without]

    def files_below(self, results: Path | None) -> list[Path]:
        """Return the files of the runs as they stand in a folder of studies; those of no run are elsewhere."""
        if results is None:
            return []
        runs_of = results / self.study / "runs"
        return [runs_of / run / name for name in self.files if name not in OF_NO_RUN for run in self.owners(name)]

    @property
    def present(self) -> list[str]:
        """Paths of the runs that have files."""
        return [path for path in self.runs if path not in self.missing]

    def plan(self, path: str) -> dict[str, Any]:
        """Return the plan of a run; raises UserError E-SPEC if there is none."""
        place = runs.parse(path).place
        if place not in self.plans:
            raise UserError("E-SPEC", f"plans: no entry for {place!r}; give what the configuration holds of it")
        return self.plans[place]

    @property
    def designs(self) -> list[str]:
        """Designs of the artifact in the order in which they are shown."""
        given = list(self.labels)

        def rank(design: str) -> tuple[int, int, int]:
            built_in = ORDER.index(design) if design in ORDER else len(ORDER)
            return get_args(Family).index(self.labels[design][1]), built_in, given.index(design)

        return sorted(given, key=rank)


def runs_frame(spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per run, missing ones included, in the order in which they are shown.

    The order is by design, shape from shallow-wide to deep-narrow, scale, rate, seed. Columns: run_id, suites
    ("backbone, main"), design, label, scale, n_layers, d_model, aspect_ratio, lr (tag), seed.
    """
    designs = spec.designs
    parsed = {path: runs.parse(path) for path in spec.runs}

    def rank(path: str) -> tuple[int, int, int, str, float, int]:
        run = parsed[path]
        return designs.index(run.design), run.n_layers, -run.d_model, run.scale, float(run.lr), run.seed

    rows = [
        {
            "run_id": run_id(spec, path),
            "suites": ", ".join(spec.runs[path]),
            "design": run.design,
            "label": spec.labels[run.design][0],
            "scale": run.scale,
            "n_layers": run.n_layers,
            "d_model": run.d_model,
            "aspect_ratio": run.d_model / run.n_layers,
            "lr": run.lr,
            "seed": run.seed,
        }
        for path in sorted(spec.runs, key=rank)
        for run in [parsed[path]]
    ]
    return pd.DataFrame(rows, columns=RUN_COLUMNS)


def run_id(spec: ArtifactSpec, path: str) -> str:
    """Return the path of a run below `results/`."""
    return f"{spec.study}/runs/{path}"


def read(files: Iterable[Path], spec: ArtifactSpec) -> dict[str, pd.DataFrame]:
    """Read the runs' files: "validation" from all validation.csv, and so on, with the types of `COLUMNS`.

    `run_id` joins them to `runs_frame`; a missing run has no rows. "manifest" is of the prepared data, "prefill" of
    the study, the frames of `reference` are of no run.

    Raises:
        UserError: E-RUN, for a file that is missing, cut short, lacks a column, belongs to another run than
            its path says, or was measured on other data than the rest; E-REFERENCE or E-COMPARE.
    """
    given = {_owner(path, spec): path for path in files}
    owners = {name: spec.owners(name) for name in spec.files}
    absent = [f"{path}/{name}".lstrip("/") for name in spec.files for path in owners[name] if (path, name) not in given]
    if absent:
        what = "not among the files given; add it, or list its run as missing"
        raise UserError("E-RUN", *(f"{file}: {what}" for file in absent))
    frames = {}
    for name in spec.files:
        parts = [_read_one(given[path, name], name, run_id(spec, path)) for path in owners[name]]
        # An artifact whose runs are all missing has typed frames, too.
        none = pd.DataFrame(columns=list(COLUMNS[name])).astype(COLUMNS[name])
        frames[Path(name).stem] = pd.concat(parts, ignore_index=True) if parts else none
    for name, frame in frames.items():
        if name == "validation":
            _check_same(frame, "data_id", "trained and measured on other texts than", "the folders")
        elif "calib_id" in frame:
            _check_same(frame, "calib_id", "its layers were analysed on other texts than those of", "analysis/")
            if "items_id" in frame:
                scored = frame[frame["status"] == "ok"]
                _check_same(scored, "items_id", "pruned on other items than", "analysis/")
    return frames


def _owner(path: Path, spec: ArtifactSpec) -> tuple[str, str]:
    if spec.compare is not None and path == Path(spec.compare):
        return "", "compare.csv"
    if path.name in OF_NO_RUN and path.name in spec.files:
        return "", path.name
    # A file of a run stands in its folder, that of an analysis one deeper.
    for depth in (1, 2):
        run, name = "/".join(path.parts[-3 - depth : -depth]), "/".join(path.parts[-depth:])
        if name in spec.files and run in spec.present:
            return run, name
    raise UserError("E-RUN", f"{path}: not a file of the runs that this artifact shows; leave it out")


def _read_one(path: Path, name: str, expected: str) -> pd.DataFrame:
    if name in reference.KINDS:  # it tells its errors itself
        return reference.read(path, name)
    try:
        frame = READERS[name](path)
        frame = frame if "run_id" in frame else frame.assign(run_id=expected)  # the path alone tells
        if (strangers := frame["run_id"][frame["run_id"] != expected]).size:
            raise ValueError(f"it belongs to {strangers.iloc[0]!r}")
        frame = frame[list(COLUMNS[name])].astype(COLUMNS[name])
    except OSError as error:
        raise UserError("E-RUN", f"{path}: {error.strerror or error}; run snakemake again") from error
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise UserError("E-RUN", f"{path}: {reason}; remove it and run snakemake again") from error
    return frame


def _check_same(frame: pd.DataFrame, column: str, what: str, removed: str) -> None:
    groups = frame.groupby(column, sort=False)["run_id"].agg(lambda ids: [*dict.fromkeys(ids)])
    if len(groups) > 1:
        problem = f"{', '.join(groups.iloc[1])}: {what} {groups.iloc[0][0]}"
        raise UserError("E-RUN", f"{problem}; remove {removed} of either side and run snakemake again")


def load(package: str, name: str, spec: ArtifactSpec) -> ModuleType:
    """Import the module of a table or figure, `package` being its package's name.

    Raises:
        UserError: E-ARTIFACT if there is no such module, E-SPEC if `spec` lacks files that it reads.
    """
    found = pkgutil.iter_modules(importlib.import_module(package).__path__)
    known = [module.name for module in found if not module.name.startswith("_")]
    if name not in known:
        raise UserError("E-ARTIFACT", f"{name!r}: not in {package}; known: {', '.join(known)}")
    module = importlib.import_module(f"{package}.{name}")
    if lacking := [file for file in module.FILES if file not in spec.files]:
        raise UserError("E-SPEC", f"files: {name} also reads {', '.join(lacking)}; list it in the registry")
    return module


@contextmanager
def published(out: Path, suffixes: Sequence[str]) -> Iterator[dict[str, Path]]:
    """Give a temporary name for each suffix; all files appear at the end, `out` last, on failure none.

    Raises:
        UserError: E-ARTIFACT if `out` has none of the suffixes.
    """
    if out.suffix not in suffixes:
        raise UserError("E-ARTIFACT", f"{out}: must end with {' or '.join(suffixes)}")
    targets = {suffix: out.with_suffix(suffix) for suffix in sorted(suffixes, key=lambda s: s != out.suffix)}
    with ExitStack() as stack:
        parts = {suffix: stack.enter_context(disk.published(target)) for suffix, target in targets.items()}
        for target in targets.values():  # older files must not be taken for these
            stack.callback(target.unlink, missing_ok=True)
        yield parts

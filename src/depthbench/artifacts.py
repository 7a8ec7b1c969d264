"""What a table or figure is made of: its spec, and the files of its runs as typed frames.

The path of a run's file says which run it belongs to, and the file must say the same. Frames are joined
by `run_id`, the run's path below `results/`; a learning rate is the tag in it ("1e-2"), never a float key.
"""

import importlib
import io
import math
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal, get_args

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import PositiveInt, TypeAdapter, ValidationError

from depthbench import files as disk
from depthbench import runs
from depthbench.config import Family
from depthbench.errors import UserError

# Designs are shown in the paper's order, a user's own after those of its family.
DESIGNS = (
    *("preln", "sandwich", "lns", "deepnorm", "keel", "hc", "mhc", "mhc_legacy"),
    *("attnres_full", "attnres_block", "moda", "moda_postln"),
)

# The columns that artifacts use, and their types. A diverged run has no loss and no documents.
COLUMNS = {
    "run.json": dict.fromkeys(("run_id", "status", "commit"), "str")
    | dict.fromkeys(("step", "tokens", "n_params"), "int64")
    | {"mixed_commit": "bool"},
    "validation.csv": dict.fromkeys(("run_id", "data_id", "status"), "str")
    | dict.fromkeys(("loss", "loss_upstream", "bits_per_byte", "unigram_entropy"), "float64"),
    "validation_docs.parquet": dict.fromkeys(("run_id", "doc_key", "origin"), "str")
    | {"n_tokens": "int64", "nll_sum": "float64"},
}
ARROW = {"str": pa.string(), "int64": pa.int64(), "float64": pa.float64()}


@dataclass(frozen=True)
class ArtifactSpec:
    """What a table or figure shows; the workflow writes it as JSON.

    `runs` are all runs of the artifact with their suites, those of `missing` included; `files` are the files
    that each of the others has; `labels` are the name for people and the family of each design.
    """

    kind: Literal["table", "figure"]
    name: str
    study: str
    runs: dict[str, tuple[str, ...]]
    missing: tuple[str, ...]
    files: tuple[str, ...]
    bootstrap: PositiveInt
    labels: dict[str, tuple[str, Family]]

    def __post_init__(self) -> None:
        """Raise ValueError where the parts do not fit each other."""
        for path in self.runs:
            if (design := runs.parse(path).design) not in self.labels:
                raise ValueError(f"labels has no entry for design {design!r}")
        if strangers := [path for path in self.missing if path not in self.runs]:
            raise ValueError(f"missing names {strangers[0]!r}, which runs does not")
        if unknown := [name for name in self.files if name not in COLUMNS]:
            raise ValueError(f"files names {unknown[0]!r}; known: {', '.join(COLUMNS)}")

    @classmethod
    def from_json(cls, text: str) -> "ArtifactSpec":
        """Read a spec; keys that it does not know are left aside.

        Raises:
            UserError: E-SPEC, one line for each problem.
        """
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            problems = (f"{'.'.join(map(str, e['loc'])) or 'spec'}: {e['msg']}" for e in error.errors())
            raise UserError("E-SPEC", *problems) from None

    @property
    def present(self) -> list[str]:
        """Paths of the runs that have files."""
        return [path for path in self.runs if path not in self.missing]

    @property
    def designs(self) -> list[str]:
        """Designs of the artifact in the order in which they are shown."""
        given = list(self.labels)

        def rank(design: str) -> tuple[int, int, int]:
            built_in = DESIGNS.index(design) if design in DESIGNS else len(DESIGNS)
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
    return pd.DataFrame(rows)


def run_id(spec: ArtifactSpec, path: str) -> str:
    """Return the path of a run below `results/`."""
    return f"{spec.study}/runs/{path}"


def read(files: Iterable[Path], spec: ArtifactSpec) -> dict[str, pd.DataFrame]:
    """Read the runs' files: "validation" from all validation.csv, and so on, with the types of `COLUMNS`.

    `run_id` joins them to `runs_frame`; a missing run has no rows.

    Raises:
        UserError: E-RUN, for a file that is missing, cut short, lacks a column, belongs to another run than
            its path says, or was measured on other data than the rest.
    """
    given = {_owner(path, spec): path for path in files}
    absent = [f"{path}/{name}" for path in spec.present for name in spec.files if (path, name) not in given]
    if absent:
        what = "not among the files given; add it, or list its run as missing"
        raise UserError("E-RUN", *(f"{file}: {what}" for file in absent))
    frames = {}
    for name in spec.files:
        parts = [_read_one(given[path, name], name, run_id(spec, path)) for path in spec.present]
        # An artifact whose runs are all missing has typed frames, too.
        none = pd.DataFrame(columns=list(COLUMNS[name])).astype(COLUMNS[name])
        frames[Path(name).stem] = pd.concat(parts, ignore_index=True) if parts else none
    if "validation" in frames:
        _check_same_data(frames["validation"])
    return frames


def _owner(path: Path, spec: ArtifactSpec) -> tuple[str, str]:
    run, name = "/".join(path.parts[-4:-1]), path.name
    if name not in spec.files or run not in spec.present:
        raise UserError("E-RUN", f"{path}: not a file of the runs that this artifact shows; leave it out")
    return run, name


def _read_one(path: Path, name: str, expected: str) -> pd.DataFrame:
    try:
        frame = READERS[name](path)[list(COLUMNS[name])].astype(COLUMNS[name])
        if (strangers := frame["run_id"][frame["run_id"] != expected]).size:
            raise ValueError(f"it belongs to {strangers.iloc[0]!r}")
    except OSError as error:
        raise UserError("E-RUN", f"{path}: {error.strerror or error}; run snakemake again") from error
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise UserError("E-RUN", f"{path}: {reason}; remove it and run snakemake again") from error
    return frame


def _read_validation(path: Path) -> pd.DataFrame:
    text = path.read_text(encoding="utf-8")
    types = COLUMNS["validation.csv"]
    if not text.endswith("\n"):
        raise ValueError("it is cut short")
    # Without this a data_id such as "NA" would be read as missing.
    empty = {column: [""] for column, kind in types.items() if kind == "float64"}
    frame = pd.read_csv(io.StringIO(text), dtype=types, usecols=list(types), keep_default_na=False, na_values=empty)
    if len(frame) != 1:
        raise ValueError(f"it has {len(frame)} rows, must have one")
    row = frame.iloc[0]
    if row["status"] not in ("ok", "diverged"):
        raise ValueError(f"status is {row['status']!r}, must be ok or diverged")
    if row["status"] == "ok" and (bad := [c for c in empty if not math.isfinite(row[c])]):
        raise ValueError(f"{bad[0]} is {row[bad[0]]} though status is ok")
    return frame


def _read_docs(path: Path) -> pd.DataFrame:
    types = COLUMNS["validation_docs.parquet"]
    with path.open("rb") as file:
        table = pq.read_table(file)
    if lacking := [column for column in types if column not in table.column_names]:
        raise ValueError(f"it has no column {lacking[0]}")
    table = table.select(list(types)).cast(pa.schema({column: ARROW[kind] for column, kind in types.items()}))
    if any(column.null_count for column in table.columns):
        raise ValueError("it has empty values")
    return table.to_pandas()


@dataclass(frozen=True)
class _Leg:
    commit: str | None
    dirty: bool | None


@dataclass(frozen=True)
class _Record:
    run_id: str
    status: Literal["ok", "diverged"]
    step: int
    tokens: int
    n_params: int
    legs: list[_Leg]


def _read_record(path: Path) -> pd.DataFrame:
    try:
        record = TypeAdapter(_Record).validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))} {first['msg']}") from None
    commits = [(leg.commit or "unknown")[:7] + ("-dirty" if leg.dirty else "") for leg in record.legs]
    row = {column: getattr(record, column) for column in ("run_id", "status", "step", "tokens", "n_params")}
    row["commit"] = ", ".join(dict.fromkeys(commits))
    # No single commit gives this run again: its legs differ, or ran code that no commit holds.
    row["mixed_commit"] = len(set(commits)) > 1 or any(leg.dirty or not leg.commit for leg in record.legs)
    return pd.DataFrame([row])


READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    "run.json": _read_record,
    "validation.csv": _read_validation,
    "validation_docs.parquet": _read_docs,
}


def _check_same_data(validation: pd.DataFrame) -> None:
    groups = validation.groupby("data_id", sort=False)["run_id"].agg(list)
    if len(groups) > 1:
        problem = f"{', '.join(groups.iloc[1])}: trained and measured on other texts than {groups.iloc[0][0]}"
        raise UserError("E-RUN", f"{problem}; remove the folders of either side and run snakemake again")


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

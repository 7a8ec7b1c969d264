"""The files that artifacts read, each as a frame of typed columns; what is wrong with one is a ValueError."""

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from depthbench import cost, reference, runs
from depthbench.designs import DESIGNS
from depthbench.model.config import ModelConfig

ANALYSIS_KEYS = ("run_id", "data_id", "calib_id", "status")


def _analysis(**columns: str) -> dict[str, str]:
    """Return the types of the table of a layer analysis."""
    return dict.fromkeys(ANALYSIS_KEYS, "str") | columns


CURVE = {**dict.fromkeys(("tau", "fraction", "lo", "hi"), "float64"), "is_paper": "boolean", "reason": "str"}
# The columns that artifacts use, and their types. A diverged run has no loss and no documents, an imported one no
# legs. `base_params` is the size of Pre-LN of the run's shape; `flops` are those of `cost.training_flops`.
COLUMNS = {
    "run.json": dict.fromkeys(("run_id", "status", "commit", "device", "kernels", "threads", "host", "ranks"), "str")
    | dict.fromkeys(("n_params", "base_params", "n_legs"), "int64")
    | dict.fromkeys(("step", "tokens"), "Int64")
    | {"compute": "str", "seconds": "float64", "flops": "float64", "mixed_commit": "bool"},
    "metrics.jsonl": {"run_id": "str", "step": "int64", "tokens": "int64"}
    | {"tokens_per_s": "float64", "memory_bytes": "int64"},
    "validation.csv": dict.fromkeys(("run_id", "data_id", "status"), "str")
    | dict.fromkeys(("loss", "loss_upstream", "bits_per_byte", "unigram_entropy"), "float64"),
    "validation_docs.parquet": dict.fromkeys(("run_id", "doc_key", "origin"), "str")
    | {"n_tokens": "int64", "nll_sum": "float64"},
    "nll.csv": dict.fromkeys(("run_id", "task", "category", "status", "reason", "items_id"), "str")
    | dict.fromkeys(("n_items", "n_truncated"), "Int64")
    | dict.fromkeys(("nll", "lo", "hi"), "float64"),
    "nll_items.parquet": dict.fromkeys(("run_id", "task", "item_id"), "str")
    | {"n_tokens": "int64", "nll_sum": "float64"},
    "arc.csv": dict.fromkeys(("run_id", "status", "reason", "items_id"), "str")
    | dict.fromkeys(("acc", "acc_norm", "acc_norm_lo", "acc_norm_hi", "chance"), "float64"),
    "analysis/angular.csv": _analysis(layer="Int64", n="Int64", distance="float64", lo="float64", hi="float64"),
    "analysis/causal.csv": _analysis(skip_mode="str", skipped="Int64", layer="Int64", score="float64"),
    "analysis/causal_summary.csv": _analysis(skip_mode="str", n_pairs="Int64", n_undefined="Int64", **CURVE),
    "analysis/permutation.csv": _analysis(layer_a="Int64", layer_b="Int64", score="float64", signed="float64"),
    "analysis/permutation_summary.csv": _analysis(n_pairs="Int64", n_undefined="Int64", **CURVE),
    "analysis/pathway.csv": _analysis(source="Int64", target="Int64", weight="float64", weight_abs="float64"),
    "analysis/block_mix.csv": _analysis(
        sublayer="Int64", is_border="boolean", n_sources="Int64", alpha="float64", beta="float64"
    ),
    "analysis/block_mix_summary.csv": _analysis(dead_sublayers="Int64", dead_layers="Int64"),
    "analysis/prune.csv": _analysis(
        **{"skip_mode": "str", "skipped": "Int64", "n_items": "Int64", "items_id": "str"},
        **dict.fromkeys(("drop", "drop_raw", "drop_lo", "drop_hi", "acc_norm_full", "chance"), "float64"),
    ),
    "analysis/logitlens.csv": _analysis(layer="Int64", kl="float64", top1="float64", lo="float64", hi="float64"),
    "analysis/transport.csv": _analysis(
        n_sublayers="Int64",
        **dict.fromkeys(("effective_rank", "effective_rank_lo", "effective_rank_hi"), "float64"),
        **dict.fromkeys(
            ("cos_rows", "cos_cols", "sigma_1", "sigma_2", "sigma_3", "sigma_4", "dist_uniform"), "float64"
        ),
    ),
    "manifest.json": {"task": "str"}
    | dict.fromkeys(("n_items", "n_items_short", "n_items_hit", "n_docs_hit"), "Int64")
    | {"action": "str"},
    "prefill.csv": dict.fromkeys(("design", "mode", "compute", "device", "kernels", "memory", "commit"), "str")
    | dict.fromkeys(("n_layers", "d_model", "tokens", "batch", "chunk", "flops", "kv_bytes", "peak_bytes"), "int64")
    | {"seconds": "float64", "device_hours": "float64", "noisy": "bool"},
    **reference.COLUMNS,
}
# Of the prepared data, of the study, and published or a user's own numbers.
OF_NO_RUN = ("manifest.json", "prefill.csv", *reference.COLUMNS)
SCORED = ("ok", "diverged", "not_requested", "not_available", "failed")
# `approximate`: pathway weights that leave out gains or centring; `too_shallow`: a model without a pair of blocks.
ANALYZED = ("ok", "approximate", "diverged", "not_requested", "not_applicable", "too_shallow")
ARROW = {"str": pa.string(), "int64": pa.int64(), "float64": pa.float64()}
T = TypeVar("T")


def _typed_csv(path: Path, types: dict[str, str], states: tuple[str, ...]) -> pd.DataFrame:
    """Return the rows of a summary, whose `status` is one of `states`."""
    text = path.read_text(encoding="utf-8")
    if not text.endswith("\n"):
        raise ValueError("it is cut short")
    # Without this a data_id such as "NA" would be read as missing.
    empty = {column: [""] for column, kind in types.items() if kind in ("float64", "Int64", "boolean")}
    frame = pd.read_csv(io.StringIO(text), dtype=types, usecols=list(types), keep_default_na=False, na_values=empty)
    if strange := [state for state in frame["status"].unique() if state not in states]:
        raise ValueError(f"status is {strange[0]!r}, must be {', '.join(states[:-1])} or {states[-1]}")
    return frame


def _read_csv(path: Path, states: tuple[str, ...]) -> pd.DataFrame:
    """Return the rows of a summary; one that is ok has all its numbers."""
    types = COLUMNS[path.name]
    frame = _typed_csv(path, types, states)
    # Of fewer than 5 items the interval is empty.
    numbers = [c for c, kind in types.items() if kind == "float64" and not c.endswith(("lo", "hi"))]
    for _, row in frame[frame["status"] == "ok"].iterrows():
        if bad := [c for c in numbers if not math.isfinite(row[c])]:
            raise ValueError(f"{bad[0]} is {row[bad[0]]} though status is ok")
    return frame


def _read_analysis(path: Path) -> pd.DataFrame:
    """Return the table of a layer analysis: at least one row, of one calibration set and one status."""
    frame = _typed_csv(path, COLUMNS[f"analysis/{path.name}"], ANALYZED)
    if frame.empty or frame[["calib_id", "status"]].drop_duplicates().shape[0] > 1:
        raise ValueError("it must have rows, all of one calibration set and one status")
    return frame


def _read_validation(path: Path) -> pd.DataFrame:
    return _one_row(_read_csv(path, ("ok", "diverged")))


def _read_nll(path: Path) -> pd.DataFrame:
    frame = _read_csv(path, SCORED)
    if frame.empty or frame["task"].duplicated().any():
        raise ValueError("it must have one row a task")
    return frame


def _read_arc(path: Path) -> pd.DataFrame:
    return _one_row(_read_csv(path, SCORED))


def _one_row(frame: pd.DataFrame) -> pd.DataFrame:
    if len(frame) != 1:
        raise ValueError(f"it has {len(frame)} rows, must have one")
    return frame


def _read_parquet(path: Path) -> pd.DataFrame:
    with path.open("rb") as file:
        return _whole(pq.read_table(file), COLUMNS[path.name])


def _read_prefill(path: Path) -> pd.DataFrame:
    text = path.read_text(encoding="utf-8")
    if not text.endswith("\n"):
        raise ValueError("it is cut short")
    types = COLUMNS["prefill.csv"]
    frame = pd.read_csv(io.StringIO(text), dtype=types, usecols=list(types), keep_default_na=False)
    if frame.empty or frame.duplicated(["design", "n_layers", "d_model", "mode"]).any():
        raise ValueError("it must have rows, one for each design, shape and mode")
    return frame


def _read_metrics(path: Path) -> pd.DataFrame:
    text = path.read_bytes()
    if not text.endswith(b"\n"):
        raise ValueError("it is cut short")
    types = {column: kind for column, kind in COLUMNS["metrics.jsonl"].items() if column != "run_id"}
    return _whole(pj.read_json(io.BytesIO(text)), types)


def _whole(table: pa.Table, types: dict[str, str]) -> pd.DataFrame:
    if lacking := [column for column in types if column not in table.column_names]:
        raise ValueError(f"it has no column {lacking[0]}")
    table = table.select(list(types)).cast(pa.schema({column: ARROW[kind] for column, kind in types.items()}))
    if any(column.null_count for column in table.columns):
        raise ValueError("it has empty values")
    return table.to_pandas()


@dataclass(frozen=True)
class _Contamination:
    task: str
    n_items: int | None
    n_items_short: int | None
    n_items_hit: int | None
    n_docs_hit: int | None
    action: Literal["drop", "count", "off"]


@dataclass(frozen=True)
class _Manifest:
    contamination: list[_Contamination]


def _read_manifest(path: Path) -> pd.DataFrame:
    return pd.DataFrame(_parse(_Manifest, path).contamination, columns=list(COLUMNS["manifest.json"]))


@dataclass(frozen=True)
class _Leg:
    commit: str | None
    dirty: bool | None
    seconds: float
    device: str
    kernels: str
    threads: int
    host: str
    ranks: int = 1


@dataclass(frozen=True)
class _Precision:
    compute: str


@dataclass(frozen=True)
class _Spec:
    model: dict[str, Any]
    sequence_length: int
    precision: _Precision


@dataclass(frozen=True)
class _Record:
    run_id: str
    status: Literal["ok", "diverged", "imported"]
    step: int | None
    tokens: int | None
    n_params: int
    legs: list[_Leg]
    spec: _Spec


def _parse(kind: type[T], path: Path) -> T:
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))} {first['msg']}") from None


def _read_record(path: Path) -> pd.DataFrame:
    record = _parse(_Record, path)
    commits = runs.commits((leg.commit, leg.dirty) for leg in record.legs)
    row = {column: getattr(record, column) for column in ("run_id", "status", "step", "tokens", "n_params")}
    base = ModelConfig.read({**record.spec.model, "design": "preln"})
    # the file of a design may be gone; one that is not in the paper counts as Pre-LN
    model = ModelConfig.read(record.spec.model) if record.spec.model.get("design") in DESIGNS else base
    # a step takes whole windows, so tokens are a multiple of their length
    windows = math.nan if record.tokens is None else record.tokens / record.spec.sequence_length
    row |= {"base_params": base.count_params(), "compute": record.spec.precision.compute}
    row |= {"flops": cost.training_flops(model, record.spec.sequence_length) * windows}
    row |= {"commit": ", ".join(commits), "mixed_commit": runs.is_mixed(commits)}
    row |= {"n_legs": len(record.legs), "seconds": sum(leg.seconds for leg in record.legs)}
    for key in ("device", "kernels", "threads", "host", "ranks"):
        row[key] = ", ".join(dict.fromkeys(str(getattr(leg, key)) for leg in record.legs))
    return pd.DataFrame([row])


READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    "run.json": _read_record,
    "metrics.jsonl": _read_metrics,
    "validation.csv": _read_validation,
    "validation_docs.parquet": _read_parquet,
    "nll.csv": _read_nll,
    "nll_items.parquet": _read_parquet,
    "arc.csv": _read_arc,
    **{name: _read_analysis for name in COLUMNS if name.startswith("analysis/")},
    "manifest.json": _read_manifest,
    "prefill.csv": _read_prefill,
}

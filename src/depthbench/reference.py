"""Numbers from elsewhere that artifacts show beside ours: the paper's, shapes of released models, a user's own losses.

Files of `workflow/reference/` and the CSV of the study's key `compare`, each read as typed rows; what is wrong with one
is named with its line. The paper's names (Pre-LN, 400M) become ours (preln, suite and scale).
"""

import csv
import math
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import pandas as pd
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from depthbench.errors import UserError
from depthbench.schema import Count

DESIGNS = {
    **{"Pre-LN": "preln", "Sandwich-LN": "sandwich", "LNS": "lns", "DeepNorm": "deepnorm", "KEEL": "keel"},
    **{"HC": "hc", "mHC": "mhc", "Full AttnRes": "attnres_full", "Block AttnRes": "attnres_block"},
    **{"MoDA": "moda", "Post-LN MoDA": "moda_postln", "all": "all"},
}
# The paper's name of a suite -> our suite and scale. Its ladder has the 400M triple from the main suite.
SUITES = {
    **{"200M": ("ladder", "200m"), "300M": ("ladder", "300m"), "400M": ("main", "400m"), "500M": ("ladder", "500m")},
    **{"1.6B": ("large", "1600m"), "300M-backbone": ("backbone", "400m")},
}
METRICS = (
    *("val_loss", "val_loss_lr_1e-3", "val_loss_lr_2e-3", "nll_coding", "nll_stem", "nll_math"),
    *("r_causal", "r_perm", "causal_threshold", "permutation_threshold", "dead_segment_layers"),
    *("attnres_block_size", "head_sources", "stream_effective_rank_min", "stream_effective_rank_max"),
    *("prefill_flops", "prefill_seq_len", "prefill_batch_size", "kv_cache_ratio_vs_L16"),
    *("optimal_lr", "lr", "train_tokens", "train_steps", "alpha", "last_block_scale", "init_std_scaled"),
    *("init_residual_map_diagonal", "init_residual_map_offdiagonal", "d_ff", "n_heads", "n_kv_heads", "head_dim"),
    *("aspect_ratio", "backbone_params", "backbone_diff", "total_params", "total_diff"),
    *("throughput", "throughput_packed_cache", "peak_memory_saved_vs_packed_cache"),
)
NOTE = "Hollow: published values (arXiv 2609.32534), its text before the authors' project page, read off their figures."
ONE_MORE = "Their rule counts one token more of each document."
PAPER = "published (arXiv 2609.32534)"
SHAPE = ["n_layers", "d_model"]


def _empty(value: str) -> str | None:
    return value or None


def _known(names: Collection[str]) -> BeforeValidator:
    def check(value: str) -> str:
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return value

    return BeforeValidator(check)


Text = Annotated[str, Field(min_length=1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Loss = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Optional = BeforeValidator(_empty)


@dataclass(frozen=True)
class Reported:
    """A number of the paper; one for all shapes or designs has none of its own."""

    artifact: Text
    architecture: Annotated[str, _known(DESIGNS)]
    suite: Annotated[str, _known(SUITES)]
    n_layer: Annotated[Count | None, Optional]
    d_model: Annotated[Count | None, Optional]
    metric: Annotated[str, _known(METRICS)]
    value: Number
    unit: str
    source: Text


@dataclass(frozen=True)
class Industry:
    """A published model."""

    model: Text
    parameters_b: Loss
    d_model: Count
    n_layers: Count
    source: Text


@dataclass(frozen=True)
class Claim:
    """What the paper says, and how it is measured here; without metric: a contradiction in it."""

    id: Text
    section: Text
    claim: Text
    paper: Text
    metric: str
    selector: str
    relation: Literal["<", ">", "=", "between", ""]
    value: str

    def __post_init__(self) -> None:
        """Raise ValueError where relation and value do not fit each other, or the metric."""
        if bool(self.metric) != bool(self.relation):
            raise ValueError("metric and relation belong together")
        bounds(self.relation, self.value)


def bounds(relation: str, value: str) -> tuple[float, float]:
    """Return what a claim allows: `< 0`, `> 2`, `= 5`, `between 1..2`.

    Raises:
        ValueError: for a value that is not the relation's.
    """
    if not relation:
        return -math.inf, math.inf
    first, _, last = value.partition("..") if relation == "between" else (value, "", value)
    low, high = float(first), float(last)
    if not low <= high:
        raise ValueError(f"{value!r} is no range")
    return (-math.inf if relation == "<" else low), (math.inf if relation == ">" else high)


@dataclass(frozen=True)
class Compared:
    """A loss of a model that was trained elsewhere."""

    label: Text
    n_layers: Count
    d_model: Count
    loss: Loss
    loss_lo: Annotated[Loss | None, Optional] = None
    loss_hi: Annotated[Loss | None, Optional] = None

    def __post_init__(self) -> None:
        """Raise ValueError where the interval does not hold the loss."""
        low, high = self.loss_lo or self.loss, self.loss_hi or self.loss
        if not low <= self.loss <= high:
            raise ValueError(f"loss {self.loss} is not between loss_lo {low} and loss_hi {high}")


class Kind(NamedTuple):
    """How a file is read: its rows, the columns that name one, what to do about a fault."""

    row: type
    keys: tuple[str, ...]
    code: str
    remedy: str


_OURS = ("E-REFERENCE", "bring back the file of the repository")
KINDS = {
    "paper_reported.csv": Kind(Reported, (), *_OURS),
    "industry_shapes.csv": Kind(Industry, ("model",), *_OURS),
    "claims.csv": Kind(Claim, ("id",), *_OURS),
    "compare.csv": Kind(Compared, ("label", *SHAPE), "E-COMPARE", "mend it, or take compare out of the study"),
}
COLUMNS = {
    "paper_reported.csv": dict.fromkeys(("design", "suite", "scale", "metric", "source"), "str")
    | {"n_layers": "Int64", "d_model": "Int64", "value": "float64"},
    "industry_shapes.csv": {"model": "str", "parameters_b": "float64", "d_model": "int64", "n_layers": "int64"}
    | {"source": "str"},
    "claims.csv": dict.fromkeys((field.name for field in fields(Claim)), "str"),
    "compare.csv": {"label": "str", "n_layers": "int64", "d_model": "int64"}
    | dict.fromkeys(("loss", "loss_lo", "loss_hi"), "float64"),
}


def read(path: Path, name: str) -> pd.DataFrame:
    """Return a file with the columns of `COLUMNS`; `name` says which of `KINDS` it is.

    Raises:
        UserError: E-REFERENCE or E-COMPARE, for a file, column or value that is not as it must be, or a row twice.
    """
    kind = KINDS[name]
    try:
        rows = _rows(path, kind)
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(kind.code, f"{path}: {reason}; {kind.remedy}") from None
    frame = pd.DataFrame(rows)
    if kind.row is Reported:
        places = pd.DataFrame(frame["suite"].map(SUITES).tolist(), columns=["suite", "scale"])
        frame = frame.assign(design=frame["architecture"].map(DESIGNS), n_layers=frame["n_layer"], **places)
    return frame[list(COLUMNS[name])].astype(COLUMNS[name])


def _rows(path: Path, kind: Kind) -> list:
    names = [field.name for field in fields(kind.row)]
    needed = names if kind.row is not Compared else names[:4]
    with path.open(encoding="utf-8-sig", newline="") as file:
        table = csv.DictReader(file, restkey="", strict=True)
        header = table.fieldnames or []
        if lacking := [column for column in needed if column not in header]:
            raise ValueError(f"no column {lacking[0]}")
        # Of a user's table, which may be our own `losses` of another study, other columns are left aside.
        if kind.row is not Compared and (strange := [column for column in header if column not in names]):
            raise ValueError(f"unknown column {strange[0]!r}")
        adapter: TypeAdapter = TypeAdapter(kind.row)
        rows, seen = [], set()
        for values in table:
            if "" in values:  # what no column is for
                raise ValueError(f"line {table.line_num} is too long")
            rows.append(_row(adapter, {key: values[key] for key in names if key in values}, table.line_num))
            if kind.keys and (key := tuple(getattr(rows[-1], name) for name in kind.keys)) in seen:
                raise ValueError(f"line {table.line_num}: {' '.join(map(str, key))} stands there twice")
            elif kind.keys:
                seen.add(key)
    if not rows:
        raise ValueError("no rows")
    return rows


def _row(adapter: TypeAdapter, values: dict[str, str | None], line: int) -> object:
    if None in values.values():
        raise ValueError(f"line {line} is too short")
    try:
        return adapter.validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f" {part}:" for part in first["loc"])
        got = f" (got {first['input']!r:.60})" if where else ""
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"line {line}:{where} {message}{got}") from None


def published(frames: dict[str, pd.DataFrame], metric: str, suite: str) -> pd.DataFrame:
    """Return the paper's values of a metric in a suite of ours: design, scale, n_layers, d_model, value.

    One a shape: that of the paper's text where it gives one. None in a study that shows none: where the artifact does
    not read paper_reported.csv.
    """
    table = frames.get("paper_reported", pd.DataFrame(columns=list(COLUMNS["paper_reported.csv"])))
    rows = table[(table["metric"] == metric) & (table["suite"] == suite)]
    text = rows["source"].str.startswith("paper text")
    rows = pd.concat([rows[text], rows[~text]]).drop_duplicates(["design", "scale", *SHAPE])
    return rows[["design", "scale", *SHAPE, "value"]]


def beside(rows: pd.DataFrame, frames: dict[str, pd.DataFrame], metric: str, suite: str) -> list[float]:
    """Return the paper's value for each run of `rows`, by design, scale and shape; nan where it has none.

    Its values are those of the rate that it found best: a run of another rate has none.
    """
    keys = ["design", "scale", *SHAPE]
    values = published(frames, metric, suite).set_index(keys)["value"].to_dict()
    best = published(frames, "optimal_lr", "main").set_index("design")["value"].to_dict()
    runs = rows[[*keys, "lr"]].itertuples(index=False, name=None)
    return [
        float(values.get(key, "nan")) if float(lr) == best.get(key[0], float(lr)) else float("nan")
        for *own, lr in runs
        for key in [tuple(own)]
    ]


def marks(rows: pd.DataFrame, kind: Literal["hollow", "ring"] = "hollow") -> pd.DataFrame:
    """Return the rows of an aspect-ratio plot and, once more as marks, those that have a `published` value."""
    own = rows.assign(hollow=rows.get("hollow", False), ring=False)
    found = own[own["published"].notna()]
    found = found.assign(status="ok", loss=found["published"], loss_lo=float("nan"), loss_hi=float("nan"))
    return pd.concat([own, found.assign(hollow=kind == "hollow", ring=kind == "ring")], ignore_index=True)

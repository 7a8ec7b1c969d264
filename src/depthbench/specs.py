"""What jobs are told, as JSON: resolved slices of the configuration that hold all that changes their results.

No torch here: a dry-run imports this module.
"""

from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from depthbench.errors import UserError
from depthbench.schema import (
    AnalysisName,
    CalibrationSize,
    Corpus,
    Count,
    Fraction,
    Index,
    Optimizer,
    ParquetName,
    Precision,
    Rate,
    Schedule,
    Strict,
    Task,
    TaskName,
    Tokenizer,
    check_templates,
)


class Spec(Strict):
    """A resolved slice of the configuration, handed to a job as JSON."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, what is not set left out: a new key that is none does not change the specs there are."""
        return self.model_dump(mode="json", exclude_none=True)

    def matches(self, record: Any) -> bool:
        """Return whether plain values, as they stand in a record, are this spec."""
        try:
            return type(self).model_validate(record) == self
        except ValidationError:
            return False

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a spec from JSON.

        Raises:
            UserError: E-SPEC, one line for each problem.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise spec_error(error) from None


class DataSpec(Spec, Corpus):
    """All that changes the prepared data."""

    corpus: str
    tokenizer: Tokenizer
    version: Count


class PartSpec(Spec):
    """All that changes the token files of one parquet file of a hub corpus, its content aside."""

    file: ParquetName
    text_column: str
    id_column: str | None = None
    val_fraction: Fraction  # 0: all of it is training text, 1: all of it is held out
    decontaminate: Literal["drop", "count", "off"]
    tokenizer: Tokenizer
    version: Count


class RunSpec(Spec):
    """All that changes a trained model. Nothing else may enter: a change of it trains the run again."""

    run_id: str  # path below results/
    version: tuple[Count, Count]  # of training, of the design
    model: dict[str, Any]  # arguments of `ModelConfig`
    steps: Count
    lr: Rate
    seed: Index
    sequence_length: Count
    batch_sequences: Count
    optimizer: Optimizer
    schedule: Schedule
    precision: Precision
    threads: Count | None = None
    data: DataSpec


class ImportSpec(Spec):
    """All that decides what is made of a released checkpoint, the files in its folder aside.

    In a record `model` is the whole model that was found, and the two last keys are filled in. A study declares the
    rest; people need not.
    """

    run_id: str
    version: Count
    source: str  # folder of the checkpoint
    model: dict[str, Any] = Field({})  # what the checkpoint must be; `hc_readout` is taken as said
    steps: Count | None = None  # the checkpoint must be the last of such a training
    lr: Rate | None = None
    seed: Index | None = None
    data: DataSpec | None = None  # of other data it is imported again, while its source is still there
    sequence_length: Count | None = None
    precision: Precision | None = None

    def matches(self, record: Any) -> bool:
        """Return whether the spec of a record is that of an import of this."""
        try:
            found = type(self).model_validate(record)
        except ValidationError:
            return False
        filled_in = {"model", "sequence_length", "precision"}
        same = self.model_dump(exclude=filled_in) == found.model_dump(exclude=filled_in)
        return same and self.model.items() <= found.model.items()


class TaskSpec(Spec, Task):
    """A task to score: templates, source and how many items."""

    limit: Count | None = None


class EvaluationSpec(Spec):
    """All that changes the scores of a trained model on tasks; no tasks: none is asked for."""

    tasks: dict[TaskName, TaskSpec] = Field({})
    max_truncated: Fraction | None = None

    @model_validator(mode="after")
    def _templates_name_fields(self) -> Self:
        if problems := [line for name, task in self.tasks.items() for line in check_templates(name, task)]:
            raise ValueError("; ".join(problems))
        return self


class AnalysisSpec(Spec):
    """All that changes the layer analyses of a trained model."""

    names: list[AnalysisName]
    calibration: CalibrationSize
    arc_easy: TaskSpec | None = None  # what `prune` is scored on

    @model_validator(mode="after")
    def _pruning_is_scored(self) -> Self:
        if "prune" in self.names and self.arc_easy is None:
            raise ValueError("prune wants arc_easy, the items that it scores")
        return self


def spec_error(error: ValidationError) -> UserError:
    """Return what to tell the user of a spec that cannot be read: E-SPEC, one line for each problem."""
    problems = (f"{'.'.join(map(str, e['loc'])) or '--spec'}: {e['msg']}" for e in error.errors())
    return UserError("E-SPEC", *problems)

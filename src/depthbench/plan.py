"""What a study asks for, before anything runs: runs, tokens, passes over the text, FLOPs, GPU-hours, disk.

FLOPs are those of `cost.training_flops`, three forward passes for each sequence. GPU-hours = FLOPs / (MFU x peak of the
device). Disk is that of the weights that stay (4 bytes a parameter, 2 with bfloat16 weights); a run at work needs nine
times its weights more (two checkpoints of weights and both moments, and one that is being written).
"""

from dataclasses import dataclass

from depthbench import cost, runs
from depthbench.model.config import ModelConfig
from depthbench.peaks import PEAKS, SHORT
from depthbench.runs import Run
from depthbench.schema import Config

WEIGHT_BYTES = {None: 4, "bfloat16": 2}


@dataclass(frozen=True)
class Row:
    """The runs of one suite, or of all; `n_new` of them are trained and stand in no suite before it."""

    suite: str
    n_runs: int
    n_new: int
    tokens_per_run: tuple[int, int]  # fewest, most
    tokens: int  # of the new runs, as all below
    epochs: float | None  # passes of the longest run over the training text; None: text not prepared
    parameters: tuple[int, int]  # fewest, most
    flops: float
    gpu_hours: float
    disk_bytes: int


def plan(config: Config, train_tokens: int | None, mfu: float, device: str) -> list[Row]:
    """Return a row for each suite, one for the study, and those of the control suites, which are not in it.

    `train_tokens` is the size of the prepared text.
    """
    imported = set(runs.imported(config))
    seen: set[Run] = set(imported)
    rows, speed = [], mfu * PEAKS[SHORT[device]]
    for suite, members in runs.suites(config).items():
        rows.append(_row(config, suite, members, seen, train_tokens, speed))
        seen |= set(members)
    rows.append(_row(config, "study", list(seen), imported, train_tokens, speed))
    for suite, members in runs.controls(config).items():
        rows.append(_row(config, f"control {suite}", members, seen, train_tokens, speed))
    return rows


def _row(config: Config, suite: str, members: list[Run], seen: set[Run], train_tokens: int | None, speed: float) -> Row:
    specs = {run: runs.spec(config, run) for run in members}
    models = {run: ModelConfig.read(spec.model) for run, spec in specs.items()}
    tokens = {run: spec.steps * spec.batch_sequences * spec.sequence_length for run, spec in specs.items()}
    sizes = {run: model.count_params() for run, model in models.items()}
    new = [run for run in members if run not in seen]
    flops = sum(
        cost.training_flops(models[run], specs[run].sequence_length) * specs[run].steps * specs[run].batch_sequences
        for run in new
    )
    return Row(
        suite=suite,
        n_runs=len(members),
        n_new=len(new),
        tokens_per_run=(min(tokens.values()), max(tokens.values())),
        tokens=sum(tokens[run] for run in new),
        epochs=max(tokens.values()) / train_tokens if train_tokens else None,
        parameters=(min(sizes.values()), max(sizes.values())),
        flops=flops,
        gpu_hours=flops / speed / 3600,
        disk_bytes=sum(sizes[run] * WEIGHT_BYTES[specs[run].precision.master] for run in new),
    )

"""Reading a trained run back: weights, configuration, tokenizer, record."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file
from tokenizers import Tokenizer

from depthbench import files
from depthbench.data import tokenizer
from depthbench.data.loader import manifest
from depthbench.errors import UserError
from depthbench.model import ModelConfig, build_model
from depthbench.model.backbone import Model
from depthbench.specs import RunSpec

KEYS = ("run_id", "status", "spec", "data", "data_id", "sha256")  # of run.json, that are read here and in evaluations


class Loaded(NamedTuple):
    """A model in evaluation mode on the CPU, and what belongs to it."""

    model: Model
    config: ModelConfig
    tokenizer: Tokenizer
    record: dict[str, Any]  # run.json


def record(folder: Path) -> dict[str, Any]:
    """Return the run.json of a run's folder.

    Raises:
        UserError: E-RUN if there is none, or none that can be read.
    """
    path = folder / "run.json"
    try:
        found = json.loads(path.read_text())
        RunSpec.model_validate(found["spec"])
        return {key: found[key] for key in KEYS} | found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            "E-RUN",
            f"{path}: {getattr(error, 'strerror', None) or 'not a record'}; name the folder of a finished run",
        ) from None


def data_of(folder: Path, found: dict[str, Any]) -> Path:
    """Return the prepared data that the run in `folder` was trained on."""
    return (folder / found["data"]).resolve()


def load(folder: str | Path, data: str | Path | None = None) -> Loaded:
    """Load a run.

    Args:
        folder: The run's folder, e.g. `results/tiny/runs/preln/t-d28-l16/lr1e-2-s0`.
        data: The prepared data whose tokenizer is read; default: the one named in run.json.

    Raises:
        UserError: E-RUN if the folder holds no finished run or its weights are not those of its record,
            E-SHARD if the prepared data is not there.
    """
    folder = Path(folder)
    found = record(folder)
    weights = folder / "model.safetensors"
    if not weights.exists() or files.sha256(weights) != found["sha256"]["model.safetensors"]:
        raise UserError("E-RUN", f"{weights}: missing, or not the weights of its run.json; train the run again")
    config = ModelConfig.read(found["spec"]["model"])
    model = build_model(config)
    model.load_state_dict(load_file(weights))
    prepared = Path(data) if data else data_of(folder, found)
    manifest(prepared)
    return Loaded(model.eval(), config, tokenizer.load(prepared / "tokenizer.json"), found)

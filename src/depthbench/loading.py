"""Reading a run back, trained here or imported, or an exported folder: weights, configuration, tokenizer, record."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from depthbench import files, llama
from depthbench.data import tokenizer
from depthbench.data.loader import manifest
from depthbench.errors import UserError
from depthbench.model import ModelConfig, build_model
from depthbench.model.backbone import Model
from depthbench.specs import ImportSpec, RunSpec

KEYS = ("run_id", "status", "spec", "data", "data_id", "sha256")  # of run.json, that are read here and in evaluations


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode on the CPU, and what belongs to it: `model, config, tokenizer = load(...)`."""

    model: Model
    config: ModelConfig
    tokenizer: Tokenizer
    record: dict[str, Any]  # run.json

    def __iter__(self) -> Iterator[Any]:
        """Yield model, configuration and tokenizer."""
        return iter((self.model, self.config, self.tokenizer))


def record(folder: Path) -> dict[str, Any]:
    """Return the run.json of a run's folder, or what the config.json of an exported folder holds of it.

    Raises:
        UserError: E-RUN if there is none, or none that can be read.
    """
    path = folder / "run.json"
    try:
        if not path.exists() and (folder / "config.json").exists():
            path = folder / "config.json"
            found = json.loads(path.read_text())["depthbench"]
        else:
            found = json.loads(path.read_text())
        (ImportSpec if "source" in found["spec"] else RunSpec).model_validate(found["spec"])
        return {key: found[key] for key in KEYS} | found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            "E-RUN",
            f"{path}: {getattr(error, 'strerror', None) or 'not a record'}; name the folder of a finished run",
        ) from None


def data_of(folder: Path, found: dict[str, Any]) -> Path:
    """Return the prepared data that belongs to the run in `folder`: that of its training.

    Raises:
        UserError: E-RUN for an import or export that names none.
    """
    if found["data"] is None:
        raise UserError("E-RUN", f"{folder}: names no prepared data; give some with --data")
    return (folder / found["data"]).resolve()


def load(folder: str | Path, data: str | Path | None = None) -> Loaded:
    """Load a run, trained here or imported, or an exported folder.

    Args:
        folder: The run's folder, e.g. `results/tiny/runs/preln/t-d28-l16/lr1e-2-s0`.
        data: The prepared data whose tokenizer is read; default: the one in the folder, or named in run.json.

    Raises:
        UserError: E-RUN if the folder holds no finished run or its weights are not those of its record,
            E-SHARD if the prepared data is not there, E-TOK if the model was trained with another tokenizer.
    """
    folder = Path(folder)
    found = record(folder)
    state, config = weights(folder, found), ModelConfig.read(found["spec"]["model"])
    model = build_model(config)
    try:
        model.load_state_dict(state)
    except RuntimeError:
        other = "has other weights than the design's file makes now; bring that file back, or train it anew"
        raise UserError("E-RUN", f"{folder}: {other} with a raised `version` of the design") from None
    return Loaded(model.eval(), config, tokenizer_of(folder, found, config, data)[1], found)


def weights(folder: Path, found: dict[str, Any]) -> dict[str, Tensor]:
    """Return the weights of a run or an exported folder under our names, in their stored types.

    Raises:
        UserError: E-RUN if they are not those of its record.
    """
    path = folder / "model.safetensors"
    if not path.exists() or files.sha256(path) != found["sha256"]["model.safetensors"]:
        raise UserError("E-RUN", f"{path}: missing, or not the weights of its record; make the folder again")
    state = load_file(path)
    return llama.ours(state) if found.get("format") == llama.FORMAT else state


def tokenizer_of(
    folder: Path, found: dict[str, Any], config: ModelConfig, data: str | Path | None
) -> tuple[Path, Tokenizer]:
    """Return the folder in which the tokenizer of a model stands, and the tokenizer.

    Raises:
        UserError: E-RUN, E-SHARD, E-TOK as `load`.
    """
    # one beside a run that was trained here is left from an import that had its path
    trained_here = (folder / "run.json").exists() and found["status"] != "imported"
    place = folder
    if data or trained_here or not (folder / "tokenizer.json").exists():
        place = Path(data) if data else data_of(folder, found)
        manifest(place)
    loaded = tokenizer.load(place / "tokenizer.json")
    tokenizer.check(loaded, config.vocab_size, place)
    return place, loaded

"""Released checkpoints of the paper's authors as runs: `run.json`, `model.safetensors`, `tokenizer.json`.

A checkpoint is a folder with `config.json` and `model_and_optim/`, or holds such folders `step<N>/`, of which the last
is taken. The weights keep the type that they are stored in; a model of them is float32, which is exact.
"""

import json
import math
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depthbench import checkpoint, files, lock, provenance, runfiles, runs
from depthbench.data import tokenizer
from depthbench.data.loader import manifest
from depthbench.errors import UserError
from depthbench.model.config import CHOICES, ModelConfig
from depthbench.released import distcp, names, readout, settings
from depthbench.specs import ImportSpec

WINDOW = 2048  # tokens; the paper's, where config.json does not say
# What two imports share of which the same measurements hold.
MEASURED_OF = (("imported", "sha256"), ("spec", "model"), ("data_id",))


def import_checkpoint(spec: ImportSpec, out: Path, data: Path | None = None) -> dict[str, Any]:
    """Make a run of a released checkpoint in the folder `out`; return its record.

    With prepared `data` the run belongs to these texts, as if it had been trained on them; without, to all.

    Raises:
        UserError: E-CKPT, E-PICKLE, E-VARIANT, E-KEYS, E-SHAPE, E-READOUT, E-TOK, E-RUN, E-SHARD, E-LOCK, E-DISK.
    """
    with files.disk_errors():
        lock.tell(spec.run_id)
        before = _import_in(out)
        data_id = data and manifest(data)["data_id"]
        source, step = runs.find_checkpoint(Path(spec.source))
        about = _settings(source)
        cfg = settings.model_config(about)
        _check_asked(spec, cfg, source)
        notes = _training(spec, about, source, step)
        state = names.ours(distcp.read(source / "model_and_optim"), cfg)
        window = _number(about, WINDOW, "train_module", "max_sequence_length")
        notes |= _first_values(state, cfg, step)
        if cfg.design == "hc":
            cfg, notes["readout"] = _with_readout(spec, cfg, state, data, window)
        text = _tokenizer(source, about, cfg, data)
        record: dict[str, Any] = {
            "run_id": spec.run_id,
            "status": "imported",
            "step": step,
            "tokens": None,
            "n_params": cfg.count_params(),
            "table_params": cfg.table_params(),
            "data": data and os.path.relpath(Path(data).resolve(), out.resolve()),
            "data_id": data_id,
            "legs": [],  # nothing was trained here
            "imported": {**notes, "sha256": _sums(source), **provenance.commit()},
            "spec": _found(spec, cfg, window, state).as_dict(),
        }
        with lock.held(out, spec.run_id):
            # first what makes the rest count, so that none of it passes for this checkpoint's if we are killed
            (out / "run.json").unlink(missing_ok=True)
            if any(_value(before, *keys) != _value(record, *keys) for keys in MEASURED_OF):
                runfiles.remove(out)
            (out / "tokenizer.json").unlink(missing_ok=True)
            checkpoint.save_tensors(out / "model.safetensors", state)
            if text is not None:
                files.write_text(out / "tokenizer.json", text)
            record["sha256"] = {"model.safetensors": files.sha256(out / "model.safetensors")}
            files.write_text(out / "run.json", json.dumps(record, indent=1) + "\n")
    return record


def _import_in(out: Path) -> dict[str, Any]:
    """Return the record of the import that the folder holds, an empty one of none."""
    try:
        there = json.loads((out / "run.json").read_text())
    except FileNotFoundError:
        return {}
    except ValueError:
        there = None
    if not isinstance(there, dict) or there.get("status") != "imported":
        raise UserError("E-RUN", f"{out}: holds a run that was not imported; name another folder")
    return there


def _settings(source: Path) -> dict[str, Any]:
    path = source / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError
    except ValueError:
        raise UserError("E-CKPT", f"{path}: not a JSON mapping; download it again") from None
    return found


def _value(about: Any, *keys: str) -> Any:
    """Return what stands under the keys, one inside the other; None if nothing does."""
    for key in keys:
        about = about.get(key) if isinstance(about, dict) else None
    return about


def _number(about: dict[str, Any], default: int, *keys: str) -> int:
    found = _value(about, *keys)
    if found is None:
        return default
    if type(found) is not int or found < 2:
        raise UserError("E-CKPT", f"config.json: {'.'.join(keys)} is {found!r}, a whole number is wanted; mend it")
    return found


def _check_asked(spec: ImportSpec, cfg: ModelConfig, source: Path) -> None:
    if "hc_readout" in spec.model and cfg.design != "hc":
        raise UserError("E-READOUT", f"{source}: {cfg.design} has one readout; leave it out")
    found = asdict(cfg) | {"hc_readout": spec.model.get("hc_readout")}  # which the checkpoint does not tell
    wrong = [f"{key}={found.get(key)!r}, not {v!r}" for key, v in spec.model.items() if found.get(key) != v]
    if wrong:
        raise UserError("E-CKPT", f"{source}: not the model of {spec.run_id}: {', '.join(wrong)}; name another folder")


def _training(spec: ImportSpec, about: dict[str, Any], source: Path, step: int | None) -> dict[str, Any]:
    """Return what is told of the training: step, length and rate, which must be those that a study declares."""
    length = _value(about, "trainer", "max_duration")
    in_steps = _value(length, "value") if _value(length, "unit") == "steps" else None
    found = {"step": step, "steps": in_steps, "lr": _value(about, "train_module", "optim", "lr")}
    if strange := [f"{key} is {v!r}" for key, v in found.items() if v is not None and type(v) not in (int, float)]:
        raise UserError("E-CKPT", f"{source}/config.json: {', '.join(strange)}, a number is wanted; mend it")
    declared = {key: value for key in found if (value := spec.lr if key == "lr" else spec.steps) is not None}
    wrong = [
        f"{key} {found[key]}, not {value}"
        for key, value in declared.items()
        if found[key] is not None and not math.isclose(found[key], float(value))
    ]
    if wrong:
        raise UserError("E-CKPT", f"{source}: not the finished {spec.run_id}: {'; '.join(wrong)}; name another folder")
    told = {key: value for key, value in found.items() if value is not None}
    return dict.fromkeys(declared, "as declared") | told


def _first_values(state: dict[str, Tensor], cfg: ModelConfig, step: int | None) -> dict[str, Any]:
    """Return how weights were drawn that the authors' code began with in two ways, which only step 0 tells."""
    if step != 0 or cfg.design not in ("mhc", "attnres_full", "attnres_block"):
        return {}
    if cfg.design == "mhc":
        drawn = bool(state["blocks.0.attn_mhc.phi"].any())
        return {"init": "legacy" if drawn else "default"}
    drawn = bool(state["final_res.query"].any())
    return {"queries": "drawn" if drawn else "zeros"}


def _with_readout(
    spec: ImportSpec, cfg: ModelConfig, state: dict[str, Tensor], data: Path | None, window: int
) -> tuple[ModelConfig, dict[str, Any]]:
    """Return the model with the readout that was said or has the lower loss, and what to record of it."""
    said = spec.model.get("hc_readout")
    if said is None and data is None:
        ways = " or ".join(f"--readout {name}" for name in CHOICES["hc_readout"])
        raise UserError("E-READOUT", f"HC was released with two readouts; give --data to tell by loss, or {ways}")
    found = readout.losses(state, cfg, data, window) if data and said is None else None
    chosen = said or readout.choose(found or {})
    print(f"readout {chosen}: {'as said' if found is None else f'by loss, {found}'}", flush=True)
    return replace(cfg, hc_readout=chosen), {"chosen": chosen, "losses": found}


def _tokenizer(source: Path, about: dict[str, Any], cfg: ModelConfig, data: Path | None) -> str | None:
    """Return the text of the tokenizer: of the data, else of the checkpoint; both there must hold the same entries."""
    said = _number(about, cfg.vocab_size - 1, "dataset", "tokenizer", "eos_token_id")
    if said != cfg.vocab_size - 1:
        known = "the designs are trained with GPT-NeoX's tokenizer, whose last entry ends a text"
        raise UserError("E-TOK", f"config.json: eos_token_id {said} of {cfg.vocab_size} entries; {known}")
    places = [data] if data else []
    places += [p for p in (source / "tokenizer", source.parent / "tokenizer") if (p / "tokenizer.json").is_file()]
    loaded = {place: tokenizer.load(place / "tokenizer.json") for place in places}
    for place, one in loaded.items():
        tokenizer.check(one, cfg.vocab_size, place)
    vocabularies = [one.get_vocab() for one in loaded.values()]
    if any(vocabulary != vocabularies[0] for vocabulary in vocabularies):
        raise UserError("E-TOK", f"{places[0]}: other entries than {places[1]}; prepare data with its tokenizer")
    if not places:
        print("no tokenizer beside the checkpoint: name prepared data with --data to load it", flush=True)
    return (places[0] / "tokenizer.json").read_text(encoding="utf-8") if places else None


def _found(spec: ImportSpec, cfg: ModelConfig, window: int, state: dict[str, Tensor]) -> ImportSpec:
    """Return the spec with what was found: it computes in the type that it was trained in."""
    low = state["embed.weight"].dtype == torch.bfloat16
    precision = {"master": "bfloat16", "compute": "bfloat16"} if low else {"compute": "float32"}
    told = {"model": asdict(cfg), "sequence_length": window, "precision": precision}
    return ImportSpec.model_validate({**spec.as_dict(), **told})


def _sums(source: Path) -> dict[str, str]:
    paths = [source / "config.json", *sorted((source / "model_and_optim").iterdir())]
    return {str(path.relative_to(source)): files.sha256(path) for path in paths if path.is_file()}

"""A run as a folder in the style of Hugging Face, which `depthbench.load` reads back to the bit.

`config.json` holds the shape and, under `depthbench`, the record of the run; it is written last and makes the rest
count. Pre-LN is in the format of Llama; other designs keep our names.
"""

import json
from pathlib import Path
from typing import Any

from depthbench import card, checkpoint, files, llama, loading, runfiles, runs
from depthbench.data import tokenizer
from depthbench.data.loader import manifest
from depthbench.errors import UserError
from depthbench.model.config import ModelConfig


def export(folder: Path, out: Path, data: Path | None = None) -> str:
    """Write the run in `folder` into the folder `out`; return in words what it is.

    Raises:
        UserError: E-RUN for a run that is not finished, has diverged or was trained on other texts; E-SHARD, E-TOK,
            E-DISK.
    """
    with files.disk_errors():
        record = loading.record(folder)
        _check(folder, out, record)
        state, cfg = loading.weights(folder, record), ModelConfig.read(record["spec"]["model"])
        place, _ = loading.tokenizer_of(folder, record, cfg, data)
        prepared = data or (loading.data_of(folder, record) if record["data"] else None)
        about = manifest(prepared) if prepared else None
        if about and record["data_id"] not in (None, about["data_id"]):
            raise UserError("E-RUN", f"{folder}: belongs to other texts than {prepared} holds; name those with --data")
        # no record yet, but the mark of an export: one that is cut can be made again
        files.write_text(out / "config.json", '{"depthbench": null}\n')
        runfiles.remove(out)  # what was measured of the model before
        checkpoint.save_tensors(out / "model.safetensors", llama.theirs(state) if cfg.design == "preln" else state)
        files.write_text(out / "tokenizer.json", (place / "tokenizer.json").read_text(encoding="utf-8"))
        length = record["spec"].get("sequence_length")
        files.write_text(out / "tokenizer_config.json", json.dumps(_tokenizer_config(length), indent=1) + "\n")
        files.write_text(out / "README.md", card.card(folder, record, cfg, about))
        dtype = str(state["embed.weight"].dtype).removeprefix("torch.")
        config = _config(cfg, record, dtype, files.sha256(out / "model.safetensors"))
        files.write_text(out / "config.json", json.dumps(config, indent=1) + "\n")
    return "Llama, for transformers and depthbench.load" if cfg.design == "preln" else "for depthbench.load"


def _check(folder: Path, out: Path, record: dict[str, Any]) -> None:
    if not (folder / "run.json").exists():
        raise UserError("E-RUN", f"{folder}: is exported already; name the folder of a run")
    if record["status"] == "diverged":
        raise UserError("E-RUN", f"{folder}: diverged at step {record['step']}; export a run that did not")
    if (out / "run.json").exists():
        raise UserError("E-RUN", f"{out}: holds a run; name another folder")
    if out.exists() and any(out.iterdir()) and not _is_export(out):
        raise UserError("E-RUN", f"{out}: is not empty and no export; name another folder")


def _is_export(out: Path) -> bool:
    try:
        about = json.loads((out / "config.json").read_text(encoding="utf-8"))
        return isinstance(about, dict) and "depthbench" in about
    except (OSError, ValueError):
        return False


def _config(cfg: ModelConfig, record: dict[str, Any], dtype: str, sha256: str) -> dict[str, Any]:
    kept = {key: value for key, value in record.items() if key not in ("data", "legs")}  # of this machine
    kept["spec"] = _without_folders(record["spec"])
    kept |= {
        "data": None,
        "sha256": {"model.safetensors": sha256},
        "commits": list(runs.commits((leg["commit"], leg["dirty"]) for leg in record["legs"])),
        "format": llama.FORMAT if cfg.design == "preln" else "depthbench",
    }
    if cfg.design != "preln":
        return {"model_type": "depthbench", "dtype": dtype, "depthbench": kept}
    eos, length = cfg.vocab_size - 1, record["spec"]["sequence_length"]
    return llama.config(cfg, length, eos, tokenizer.PAD_ID, dtype) | {"depthbench": kept}


def _without_folders(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a spec with the names alone of what lies on this machine: checkpoint, texts, a local data set."""
    kept = dict(spec)
    if "source" in spec:
        kept["source"] = Path(spec["source"]).name
    if data := spec.get("data"):
        paths = [Path(path).name for path in data.get("paths") or []]
        folder = Path(data.get("path") or "").expanduser()  # or the name of a data set of the hub
        local = data.get("path") and (folder.is_absolute() or folder.is_dir())
        kept["data"] = data | ({"paths": paths} if paths else {}) | ({"path": folder.name} if local else {})
    return kept


def _tokenizer_config(length: int) -> dict[str, Any]:
    """Return what makes transformers encode as we do: control tokens in a text are ordinary text."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokenizer.EOS,
        "pad_token": tokenizer.PAD,
        "model_max_length": length,
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }

"""Checkpoints that survive being killed in mid-write: tensors, then a small record with their checksum.

`step-N.safetensors` holds the tensors; `step-N.json` is written after it and makes it count. Both appear whole or
not at all, the last two are kept, and a broken one is told by name and passed over.
"""

import errno
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from depthbench import files

KEEP = 2
UMASK = os.umask(0)
os.umask(UMASK)


def save(folder: Path, step: int, tensors: dict[str, torch.Tensor], record: dict[str, Any]) -> None:
    """Write a checkpoint of `step` and remove all but the last two; `record` is JSON that `latest` gives back."""
    path = folder / f"step-{step:09d}.safetensors"
    save_tensors(path, tensors)
    record = {**record, "step": step, "bytes": path.stat().st_size, "sha256": files.sha256(path)}
    files.write_text(path.with_suffix(".json"), json.dumps(record))
    remove(folder, keep=KEEP)


def remove(folder: Path, keep: int = 0) -> None:
    """Remove all checkpoints but the last `keep`, and tensors whose writer was killed before their record."""
    for old in sorted(folder.glob("step-*.json"))[: -keep or None]:
        _unlink(old)
    for tensors in folder.glob("step-*.safetensors"):
        if not tensors.with_suffix(".json").exists():
            tensors.unlink()


def remove_after(folder: Path, step: int) -> None:
    """Remove the checkpoints behind `step`: they are broken, and would pass for the newest."""
    for path in folder.glob("step-*.json"):
        if int(path.stem.removeprefix("step-")) > step:
            _unlink(path)


def _unlink(record: Path) -> None:
    record.unlink()
    record.with_suffix(".safetensors").unlink(missing_ok=True)


def save_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write a whole safetensors file, or nothing."""
    with files.published(path) as part:
        try:
            save_file({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}, part)
            part.chmod(0o666 & ~UMASK)  # the library makes files that only their owner reads
        except SafetensorError as error:  # its word for a full disk
            raise OSError(errno.EIO, str(error), str(path)) from error


def latest(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
    """Return tensors (on the CPU) and record of the newest sound checkpoint; None if there is none.

    Raises:
        OSError: if one cannot be read: a file system that fails for now makes no checkpoint a broken one.
    """
    broken = False
    for path in sorted(folder.glob("step-*.json"), reverse=True):
        try:
            record = json.loads(path.read_text())
            tensors = path.with_suffix(".safetensors")
            if (tensors.stat().st_size, files.sha256(tensors)) != (record["bytes"], record["sha256"]):
                raise ValueError("size or checksum differs from its record")
            found = load_file(tensors)
        except (FileNotFoundError, ValueError, KeyError, SafetensorError) as error:
            print(f"checkpoint {path.with_suffix('.safetensors')} is passed over: {error}", flush=True)
            broken = True
            continue
        if broken:
            print(f"checkpoint {tensors} is used instead", flush=True)
        return found, record
    return None

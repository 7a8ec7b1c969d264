"""Weights in the files of torch.distributed.checkpoint as OLMo-core writes them, read without OLMo-core.

`.metadata` is a pickle: type, shape and chunks of each tensor; file, offset and length of each chunk.
`__<rank>_<n>.distcp` hold the chunks back to back, each an archive of `torch.save`. A pickle may call whatever it
names, and set what it likes of what is looked up: nothing but the classes below is, and only their instances are
filled. The library's own reader asks for OLMo-core's classes.
"""

import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from depthbench.errors import UserError

PREFIX = "model."  # of the weights; the moments of the optimizer are not read
METADATA = "torch.distributed.checkpoint.metadata"
FILLED = {
    *((METADATA, name) for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata")),
    *((METADATA, name) for name in ("ChunkStorageMetadata", "MetadataIndex", "StorageMeta", "TensorProperties")),
}
CLASSES = {
    *FILLED,
    (METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
}
WRITERS = ("torch.distributed.checkpoint.filesystem", "olmo_core.distributed.checkpoint.filesystem")
PATH_MODULES = ("pathlib", "pathlib._local")
PATHS = ("Path", "PosixPath", "PurePath", "PurePosixPath")


class StorageInfo:
    """Where a chunk lies: what either writer's `_StorageInfo` becomes."""

    relative_path: str
    offset: int
    length: int


class _Path:
    """Stands in for paths, which the file may hold and nothing reads: the chunks' own are strings."""

    def __init__(self, *parts: Any) -> None:
        pass


class _Unpickler(pickle._Unpickler):  # the one in Python: the other's opcodes cannot be narrowed
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]

    def load_build(self) -> None:
        """Fill an instance of ours; what is shared with the rest of the program, classes above all, stays as it is."""
        filled = self.stack[-2]
        kind = type(filled)
        if kind is not StorageInfo and (kind.__module__, kind.__name__) not in FILLED:
            name = getattr(filled, "__name__", kind.__name__)
            raise UserError("E-PICKLE", f"{name}: not to be changed by .metadata; do not use this checkpoint")
        super().load_build()  # type: ignore[misc]

    dispatch[pickle.BUILD[0]] = load_build

    def find_class(self, module: str, name: str) -> Any:
        if module in WRITERS and name == "_StorageInfo":
            return StorageInfo
        if module in PATH_MODULES and name in PATHS:
            return _Path
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        if (module, name) not in CLASSES:
            raise UserError("E-PICKLE", f"{module}.{name}: not allowed in .metadata; do not use this checkpoint")
        return super().find_class(module, name)


def read(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights in `model_and_optim/` by name, on the CPU and in the type that they are stored in.

    Raises:
        UserError: E-PICKLE for a class that has no place there; E-CKPT if a file is missing, cut or broken.
    """
    path = folder / ".metadata"
    with _told(path):
        found = _Unpickler(io.BytesIO(path.read_bytes())).load()
        places = {(index.fqn, tuple(index.offset or ())): info for index, info in found.storage_data.items()}
        entries = {n: entry for n, entry in found.state_dict_metadata.items() if n.startswith(PREFIX)}
    tensors = {}
    for name, entry in entries.items():
        with _told(path, name):
            if not isinstance(entry, TensorStorageMetadata):
                raise ValueError("not a tensor")
            tensors[name.removeprefix(PREFIX)] = _assembled(name, entry, places, folder)
    return tensors


@contextmanager
def _told(path: Path, name: str = "") -> Iterator[None]:
    """Turn whatever a damaged file leads to into one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a pickle can raise anything
        where = f"{path}: {name}".removesuffix(": ")
        reason = " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
        raise UserError("E-CKPT", f"{where}: cannot be read ({reason:.200}); download it again") from error


def _assembled(name: str, entry: TensorStorageMetadata, places: dict, folder: Path) -> torch.Tensor:
    """Return a tensor put together from its chunks, which must cover it."""
    shape, dtype = tuple(entry.size), entry.properties.dtype
    infos = [places[name, tuple(chunk.offsets)] for chunk in entry.chunks]
    if prod(shape) * dtype.itemsize > sum(info.length for info in infos):
        raise ValueError(f"{list(shape)} numbers are more than its chunks hold")
    whole, covered = torch.empty(shape, dtype=dtype), torch.zeros(shape, dtype=torch.bool)
    for chunk, info in zip(entry.chunks, infos, strict=True):
        part = _chunk(folder, info)
        if (tuple(part.shape), part.dtype) != (tuple(chunk.sizes), dtype):
            raise ValueError(f"a chunk is {list(part.shape)} {part.dtype}, not {list(chunk.sizes)} {dtype}")
        at = tuple(slice(start, start + n) for start, n in zip(chunk.offsets, chunk.sizes, strict=True))
        whole[at], covered[at] = part, True
    if not covered.all():
        raise ValueError("its chunks do not cover it")
    return whole


def _chunk(folder: Path, info: StorageInfo) -> torch.Tensor:
    if (type(info.relative_path), type(info.offset), type(info.length)) != (str, int, int):
        raise ValueError("file, offset and length are not a string and two numbers")
    relative = PurePosixPath(info.relative_path)
    if relative.is_absolute() or ".." in relative.parts:
        raise UserError("E-CKPT", f"{relative}: leads out of {folder}; do not use this checkpoint")
    path = folder / relative
    size = path.stat().st_size if path.is_file() else 0
    if not 0 <= info.offset <= info.offset + info.length <= size:
        wanted = f"expected at least {info.offset + info.length}"
        raise UserError("E-CKPT", f"{path}: {size} bytes, {wanted}; download it again")
    with path.open("rb") as file:
        file.seek(info.offset)
        return torch.load(io.BytesIO(file.read(info.length)), map_location="cpu", weights_only=True)

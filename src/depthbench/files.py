"""Files that are either whole or not there."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EDQUOT, EFBIG, EIO, ENOSPC, EPERM, EROFS, ESTALE, ETIMEDOUT
from pathlib import Path
from typing import Any

from depthbench.errors import UserError


@contextmanager
def published(path: Path) -> Iterator[Path]:
    """Give a temporary name to write to; on success it replaces `path`, flushed to the disk first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        sync(part)
        part.replace(path)
        sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file, or nothing."""
    with published(path) as part:
        part.write_text(text, encoding="utf-8")


def read_record(path: Path, keys: set[str], code: str, command: str) -> dict[str, Any]:
    """Return the JSON mapping in a file that `command` has written, with `keys` among others.

    Raises:
        UserError: with `code` if it is not there or not whole.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not keys <= set(found):
            raise ValueError
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a whole record"
        raise UserError(code, f"{path}: {reason}; run `{command}` first") from error
    return found


def sync(path: Path) -> None:
    """Wait until the file, or the names in the folder, have reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """Return the checksum of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def disk_error(error: OSError, name: str | Path = "a file") -> UserError:
    """Return what to tell the user of an error of the operating system."""
    remedies = {
        "make room": (ENOSPC, EDQUOT, EFBIG, EIO),
        "check the rights": (EACCES, EPERM, EROFS),
        "wait for the file system": (ESTALE, ETIMEDOUT),
    }
    remedy = next((words for words, numbers in remedies.items() if error.errno in numbers), "check the path")
    return UserError("E-DISK", f"{error.filename or name}: {error.strerror or error}; {remedy}, then run again")


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn what the operating system refuses (disk full, no permission) into one line.

    Raises:
        UserError: E-DISK, with the file and the system's own words.
    """
    try:
        yield
    except OSError as error:
        raise disk_error(error) from error

"""One writer per run: a lock of the file system that names its holder and ends with its process, however it ends."""

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from depthbench.errors import UserError

NAME = ".lock"


@contextmanager
def held(folder: Path, what: str) -> Iterator[None]:
    """Hold the lock of a folder.

    Raises:
        UserError: E-LOCK, with host, process and Slurm job of the holder, if another process has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / NAME).open("a+", encoding="utf-8") as file:
        if not any(_take(file, fcntl.LOCK_EX) for _ in _waits()):
            raise UserError("E-LOCK", f"{what}: {_read(file)} is at work on it; wait for it, or stop it first")
        file.truncate(0)
        print(who(), file=file, flush=True)
        yield


def who() -> str:
    """Return host, process and Slurm job of this process."""
    job = os.environ.get("SLURM_JOB_ID", "none")
    return f"host {socket.gethostname()}, process {os.getpid()}, Slurm job {job}"


def tell(what: object) -> None:
    """Print where a job runs, before all else: the log of one that is killed holds that much."""
    print(f"{what}: {who()}", flush=True)


def holder(folder: Path) -> str | None:
    """Return who holds the lock of a folder, None if nobody does; a folder of others is looked at as well."""
    try:
        with (folder / NAME).open(encoding="utf-8") as file:
            return None if _take(file, fcntl.LOCK_SH) else _read(file)
    except (FileNotFoundError, PermissionError):
        return None


def _waits() -> Iterator[None]:
    """Wait between tries, half a second in all: `holder` takes a lock for an instant to look at it."""
    for seconds in (0.0, 0.1, 0.4):
        time.sleep(seconds)
        yield


def _take(file: TextIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            print(f"{file.name}: no locks on this file system, a second copy would not be noticed", flush=True)
        else:
            raise
    return True


def _read(file: TextIO) -> str:
    file.seek(0)
    return file.read().strip() or "another process"

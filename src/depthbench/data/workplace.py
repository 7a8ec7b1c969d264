"""A private folder beside a target, so that the target appears whole or not at all.

The folder holds a locked file for as long as its process lives. The next process to work on the same target
removes the folders whose lock is free: those were left by a killed one. Locks of the file system rather than
process ids, since the killed process may have run on another node.
"""

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from depthbench.files import disk_error


@contextmanager
def workplace(target: Path) -> Iterator[Path]:
    """Yield an empty folder on the disk of `target`, removed at the end with all that is left in it.

    Raises:
        UserError: E-DISK if the disk is full or not writable, at any time inside the block.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target)
        private = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
        try:
            with (private / "unlocked").open("w") as lock:
                # on a file system without locks nobody cleans up after this process
                with suppress(OSError):
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    (private / "unlocked").rename(private / "lock")
                (private / "work").mkdir()
                yield private / "work"
        finally:
            shutil.rmtree(private, ignore_errors=True)
    except OSError as error:
        raise disk_error(error, target) from error


def replace_folder(new: Path, target: Path, scratch: Path) -> None:
    """Put the folder `new` in the place of `target`; what stood there is moved into `scratch`.

    Each turn of the loop is lost only to another process that has just put its own whole folder there.
    """
    for attempt in range(100):
        try:
            new.rename(target)  # also over an empty folder
            return
        except OSError:
            if not target.is_dir():
                raise
        try:
            target.rename(scratch / f"replaced-{attempt}")
        except FileNotFoundError:
            continue
    raise OSError(f"{target} cannot be replaced: other processes write it all the time")


def _remove_abandoned(target: Path) -> None:
    for path in target.parent.glob(f".{target.name}.*.part/lock"):
        try:
            with path.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
        except OSError:  # its process lives, or a third one has just removed it
            continue

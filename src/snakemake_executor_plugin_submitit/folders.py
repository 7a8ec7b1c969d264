"""What is kept under `.snakemake/submitit`: a folder for each main process, in it one for each job.

A Slurm id can come back after years, and with it the name of a result file; a new main process never looks into the
folders of an old one, but for the jobs it takes over.
"""

import hashlib
import os
import pickle
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LONGEST_NAME = 120  # file systems end at 255 bytes


def of_this_run(home: Path) -> Path:
    """Return the folder of this main process."""
    return home / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def of_job(folder: Path, job: Any) -> Path:
    """Return the folder of a job: its rule, and its wildcards where it has some."""
    if job.is_group():
        return folder / _plain(f"group-{job.name}")
    words = "_".join(str(word) for word in job.wildcards)
    return folder / _plain(job.rule.name) / _plain(words) if words else folder / _plain(job.rule.name)


def frozen_configs(folder: Path, files: Sequence[Any], n_overriding: int) -> list[Path]:
    """Copy the configuration files of this moment; return the copies, those of the Snakefile first.

    A job reads the workflow when it starts, maybe days later. Given on its command line, the copies win over what the
    files say by then. The first `n_overriding` of `files` come from this process's command line and win over the rest.
    """
    copies = []
    for number, path in enumerate([*files[n_overriding:], *files[:n_overriding]]):
        copy = folder / "config" / f"{number}-{Path(path).name}"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        copies.append(copy)
    return copies


def outcome(paths: Any) -> str | None:
    """Return "" for a job that succeeded, its last words for one that failed, None where no result is to be seen."""
    try:
        kind, value = pickle.loads(paths.result_pickle.read_bytes())
    except (OSError, EOFError, ValueError, pickle.UnpicklingError):
        return None
    return "" if kind == "success" else str(value).strip().splitlines()[-1]


def _plain(name: str) -> str:
    """A name without separators and without `%`, which Slurm replaces in paths."""
    plain = re.sub(r"[^\w.=,+-]", "-", name)
    if len(plain) <= LONGEST_NAME:
        return plain
    return f"{plain[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"

"""The private folder `resume/` of a run: what an interrupted training goes on from, and what a finished one published.

Snakemake deletes declared outputs and logs before it starts a job again, so nothing here is declared. `owner.json` says
whose folder it is, `step-*` are checkpoints, `metrics.jsonl` and `log.txt` grow over all legs, `final/` holds links of
the published files.
"""

import hashlib
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any, TextIO

from depthbench import files
from depthbench.errors import UserError
from depthbench.runs import dumps

OUTPUTS = ("model.safetensors", "metrics.jsonl", "run.json")  # run.json last: it makes the others count


def claim(folder: Path, spec: dict[str, Any]) -> Path:
    """Return the private folder of this very spec below the run's `folder`; another spec's is moved aside.

    One of this spec that was moved aside before is taken back.

    Raises:
        UserError: E-RESUME if this very Slurm job trained another spec before it was requeued.
    """
    resume, job = folder / "resume", os.environ.get("SLURM_JOB_ID")
    note = resume / "owner.json"
    theirs = json.loads(note.read_text()) if note.exists() else None
    if theirs and theirs["spec"] != spec:
        # An allocation in which one trains by hand keeps its id, too, but was never started again.
        if job is not None and theirs["job"] == job and int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0:
            raise UserError(
                "E-RESUME",
                f"{resume}: job {job} began with another spec; the configuration changed while it waited: "
                "cancel the job and start again",
            )
        aside = _unused(_aside(theirs["spec"]), folder)
        resume.rename(aside)
        print(f"{resume} belongs to another spec: moved to {aside}", flush=True)
    if not resume.exists():
        _take_back(resume, spec)
    for part in resume.rglob(".*.part"):  # of a leg that was killed while it wrote
        part.unlink()
    files.write_text(note, dumps({"spec": spec, "job": job}))
    return resume


def _aside(spec: dict[str, Any]) -> str:
    return f"resume-{hashlib.sha256(dumps(spec).encode()).hexdigest()[:12]}"


def _take_back(resume: Path, spec: dict[str, Any]) -> None:
    """Rename the newest folder of this spec that was moved aside to `resume`, if there is one."""
    own = [note for note in resume.parent.glob(f"{_aside(spec)}*/owner.json") if _owner(note) == spec]
    if own:
        newest = max(own, key=lambda note: note.stat().st_mtime).parent
        newest.rename(resume)
        print(f"{newest} belongs to this spec: taken back", flush=True)


def _owner(note: Path) -> dict[str, Any] | None:
    try:
        return json.loads(note.read_text())["spec"]
    except (ValueError, KeyError):
        return None


def open_metrics(resume: Path, step: int) -> TextIO:
    """Open the metrics for appending, cut back to the checkpoint's step: no gap, no repeat."""
    path = resume / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)[:step] if path.exists() else []
    if len(lines) < step:
        raise UserError(
            "E-RESUME",
            f"{path}: holds {len(lines)} steps, the checkpoint is of step {step}; "
            f"bring the file back, or remove {resume} to start at step 0",
        )
    files.write_text(path, "".join(lines))
    return path.open("a", encoding="utf-8")


def publish(resume: Path) -> None:
    """Link the files of `final/` to where the workflow looks for them."""
    for name in OUTPUTS:
        with files.published(resume.parent / name) as part:
            try:
                os.link(resume / "final" / name, part)
            except OSError:  # a file system without hard links
                shutil.copyfile(resume / "final" / name, part)


def finished(resume: Path, data_id: str) -> bool:
    """Whether this spec was trained to its end before, on the same data, and all of it is still there."""
    final = resume / "final"
    try:
        record = json.loads((final / "run.json").read_text())
        whole = all(files.sha256(final / name) == record["sha256"][name] for name in OUTPUTS[:-1])
        return whole and record["data_id"] == data_id
    except (FileNotFoundError, ValueError, KeyError):  # what cannot be read for now is no reason to train again
        return False


def _unused(name: str, folder: Path) -> Path:
    names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
    return next(folder / n for n in names if not (folder / n).exists())

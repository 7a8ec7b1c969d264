"""The private folder `resume/` of a run: what an interrupted training goes on from, and what a finished one published.

Snakemake deletes declared outputs before it starts a job again, so nothing here is declared. `spec.json` says whose
folder it is, `step-*` are checkpoints, `metrics.jsonl` grows, `final/` holds links of the published files.
"""

import hashlib
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any, TextIO

from depthbench import files

OUTPUTS = ("model.safetensors", "metrics.jsonl", "run.json")  # run.json last: it makes the others count


def claim(folder: Path, spec: dict[str, Any]) -> Path:
    """Return the private folder of this very spec below the run's `folder`; another spec's is moved aside."""
    resume, text = folder / "resume", json.dumps(spec, sort_keys=True)
    note = resume / "spec.json"
    if note.exists() and note.read_text() != text:
        aside = _unused(f"resume-{hashlib.sha256(note.read_bytes()).hexdigest()[:12]}", folder)
        resume.rename(aside)
        print(f"{resume} belongs to another spec: moved to {aside}, starting at step 0", flush=True)
    if not note.exists():
        files.write_text(note, text)
    return resume


def open_metrics(resume: Path, step: int) -> TextIO:
    """Open the metrics for appending, cut back to the checkpoint's step: no gap, no repeat."""
    path = resume / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)[:step] if path.exists() else []
    assert len(lines) == step, f"{path} holds {len(lines)} of {step} steps"
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
    """Whether this spec was trained to its end before, on the same data."""
    record = resume / "final" / "run.json"
    return record.exists() and json.loads(record.read_text())["data_id"] == data_id


def _unused(name: str, folder: Path) -> Path:
    names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
    return next(folder / n for n in names if not (folder / n).exists())

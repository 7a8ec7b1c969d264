"""Notes of submitted jobs, so that the next main process finds those that outlived this one.

One file for each rule's job, members of a group apart: a group may be put together differently the next time.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from submitit.core.utils import JobPaths

from snakemake_executor_plugin_submitit.clusters import ClusterError


class Records:
    """The notes in one folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def write(self, job: Any, job_id: str, paths: JobPaths) -> None:
        """Note that a job was submitted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for member in _members(job):
            path = self._path(member)
            part = path.with_suffix(".part")
            part.write_text(json.dumps({"job": job_id, "folder": str(paths.folder), "settings": _settings(member)}))
            part.replace(path)

    def any_of(self, job: Any) -> bool:
        """Whether there is a note of a job."""
        return any(self._path(member).exists() for member in _members(job))

    def find(self, job: Any, going: set[str]) -> tuple[str, JobPaths] | None:
        """Return id and paths of the submission among those `going` that does this job's work.

        Raises:
            ClusterError: something else writes the same files now, so that a second job must not.
        """
        notes = [(member, self._read(member)) for member in _members(job)]
        alive = {note["job"] for _, note in notes if note and note["job"] in going}
        if not alive:
            return None
        same = all(note and note["settings"] == _settings(member) for member, note in notes)
        if len(alive) > 1 or not same or any(note["job"] not in alive for _, note in notes if note):
            ids = " ".join(sorted(alive))
            raise ClusterError(
                f"job {ids} was submitted with other settings or for other files beside these, and still writes them; "
                f"wait for its end, or cancel it (scancel {ids}), then call again"
            )
        note = next(note for _, note in notes if note)
        return note["job"], JobPaths(note["folder"], note["job"], 0)

    def remove(self, job: Any, job_id: str) -> None:
        """Forget a submission that has ended."""
        for member in _members(job):
            note = self._read(member)
            if note and note["job"] == job_id:
                self._path(member).unlink(missing_ok=True)

    def _path(self, member: Any) -> Path:
        return self.folder / f"{_digest([member.rule.name, *sorted(map(str, member.output))])}.json"

    def _read(self, member: Any) -> dict[str, str] | None:
        try:
            return json.loads(self._path(member).read_text())
        except (OSError, ValueError):
            return None


def _members(job: Any) -> Iterator[Any]:
    yield from job.jobs if job.is_group() else [job]


def _settings(member: Any) -> str:
    """What decides the content of the outputs, as far as Snakemake knows it."""
    return _digest([member.shellcmd, *sorted(map(str, member.input)), *map(str, member.params)])


def _digest(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

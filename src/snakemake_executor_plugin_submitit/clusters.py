"""Where jobs run: Slurm through its own commands, or processes on this machine. Both submit with submitit."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import JobPaths

from snakemake_executor_plugin_submitit import request
from snakemake_executor_plugin_submitit.payload import SnakemakeJob

TOOLS = ("sbatch", "srun", "squeue", "scancel", "scontrol")
TIMEOUTS = 10_000  # a job of three days on a partition of an hour needs 72; submitit gives up after 3 unless told
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
    *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),
}
TOLD = ("JobState", "Reason", "ExitCode", "Restarts")


class ClusterError(Exception):
    """The cluster refuses or does not answer; the text is its own."""


class Slurm:
    """Slurm, through sbatch, squeue, scontrol and scancel."""

    name = "slurm"
    commands_only = True  # a submission starts no process that lives on

    def __init__(self, signal_delay: int):
        self.signal_delay = signal_delay
        if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
            raise ClusterError(
                f"no Slurm on this machine ({', '.join(missing)} not found): call from a login node of the cluster, "
                "or add --executor local --cores N to run the jobs here"
            )
        try:
            self.left_behind = self.going()  # by earlier main processes; this one has submitted nothing yet
        except ClusterError as error:
            raise ClusterError(
                f"Slurm does not answer: {'; '.join(str(error).splitlines())}; call from a login node of a cluster "
                "that is up, or add --executor local --cores N to run the jobs here"
            ) from None

    def submit(self, folder: Path, job: Any, payload: SnakemakeJob) -> tuple[str, JobPaths]:
        """Submit a job; return its id and its paths."""
        try:
            executor = submitit.SlurmExecutor(folder, max_num_timeout=TIMEOUTS)
            executor.update_parameters(**request.slurm(job.name, job.resources, self.signal_delay))
            submitted = executor.submit(payload)
        except (request.RequestError, submitit.core.utils.FailedJobError, RuntimeError, OSError) as error:
            raise ClusterError(f"submission refused: {error}") from None
        return submitted.job_id, submitted.paths

    def going(self) -> set[str]:
        """Return the ids of all jobs of this user that wait, run or are being ended."""
        return set(_run("squeue", "--noheader", "--all", "--me", "--format=%i").split())

    def still_has(self, job_id: str) -> bool:
        """Whether a job that the listing lacks has not ended all the same."""
        state = self._show(job_id).get("JobState")
        return state is not None and state not in ENDED

    def state_of(self, job_id: str) -> str:
        """Return Slurm's own words on a job."""
        try:
            shown = self._show(job_id)
        except ClusterError as error:
            return str(error)
        return " ".join(f"{key}={shown[key]}" for key in TOLD if key in shown) or "Slurm no longer knows it"

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel jobs."""
        if job_ids:
            _run("scancel", *job_ids)

    def _show(self, job_id: str) -> dict[str, str]:
        try:
            line = _run("scontrol", "--oneliner", "show", "job", job_id)
        except ClusterError as error:
            if "Invalid job id" in str(error):
                return {}
            raise
        return dict(word.split("=", 1) for word in line.split() if "=" in word)


class Local:
    """Processes on this machine, with submitit's time limits; they end with the main process's Ctrl-C."""

    name = "local"
    commands_only = False

    def __init__(self, signal_delay: int):
        self.signal_delay = signal_delay
        self._jobs: dict[str, submitit.Job] = {}
        self.left_behind: set[str] = set()  # none that can be waited for

    def submit(self, folder: Path, job: Any, payload: SnakemakeJob) -> tuple[str, JobPaths]:
        """Start a job; return its id and its paths."""
        try:
            executor = submitit.LocalExecutor(folder, max_num_timeout=TIMEOUTS)
            executor.update_parameters(**request.local(job.resources, self.signal_delay))
            started = executor.submit(payload)
        except (request.RequestError, RuntimeError, OSError) as error:
            raise ClusterError(f"not started: {error}") from None
        self._jobs[started.job_id] = started
        return started.job_id, started.paths

    def going(self) -> set[str]:
        """Return the ids of the jobs that run."""
        return {job_id for job_id, job in self._jobs.items() if not job.done()}

    def still_has(self, job_id: str) -> bool:
        """Whether a job that the listing lacks has not ended all the same."""
        return False

    def state_of(self, job_id: str) -> str:
        """Return how its process ended."""
        return self._jobs[job_id].state

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Interrupt jobs."""
        for job_id in job_ids:
            self._jobs[job_id].cancel()


CLUSTERS: dict[str, type[Slurm] | type[Local]] = {"slurm": Slurm, "local": Local}


def _run(*command: str) -> str:
    """Run one of Slurm's commands and return what it prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{command[0]}: {error}") from None
    if done.returncode:
        raise ClusterError(done.stderr.strip() or f"{command[0]}: exit status {done.returncode}")
    return done.stdout

"""What runs on the node: one Snakemake as a child, which is told to save, and started again after a requeue.

Slurm sends USR2 some time before the limit, to every process of every step. It also ends jobs by TERM, USR1 or USR2
when it preempts them, as the site has it. All lead to the same: the child's processes get USR2 until they have ended,
then submitit requeues the job under its own id. A job that was cancelled gets TERM too; Slurm then no longer counts it
as running, and it is not requeued.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import submitit

SECONDS_BETWEEN_SIGNALS = 1.0
SECONDS_BETWEEN_LOOKS = 0.1
EARLY = 150.0  # seconds, by which a warning may come before its time, as this process counts it
ANNOUNCED = (signal.SIGUSR1, signal.SIGTERM)  # beside USR2, which submitit handles


class SnakemakeJob(submitit.helpers.Checkpointable):
    """A shell command that can be stopped and started again.

    One that keeps nothing has a `limit_min`: near it, the job fails instead of beginning anew for ever. It is told
    of its limit `grace_s` before, by Slurm up to a minute earlier still.
    """

    limit_min: int | None = None  # a job that an earlier version has submitted knows of none
    _started = float("inf")  # a signal may come before the command is run

    def __init__(self, command: str, folder: str, grace_s: float, limit_min: int | None = None):
        self.command, self.folder, self.grace_s, self.limit_min = command, folder, grace_s, limit_min
        self._child: subprocess.Popen | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_child": None}

    def __call__(self) -> None:
        """Run the command.

        Raises:
            RuntimeError: it did not end with status 0.
        """
        _remove_leftovers()
        self._started = time.monotonic()
        for number in ANNOUNCED:
            signal.signal(number, self._warned)
        # `python` in a rule is the one that Snakemake runs with, whatever the caller's PATH was
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self._child = subprocess.Popen(
            ["bash", "-c", self.command],
            cwd=self.folder,
            env={**os.environ, "PATH": path, "SUBMITIT_FROZEN_CONFIG": "1"},
            preexec_fn=_deafen,
            start_new_session=True,
        )
        try:
            # Popen.wait() holds a lock that a handler which calls it again would wait for
            os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)
        except KeyboardInterrupt:
            self._stop(signal.SIGTERM)
            raise
        status = self._child.wait()
        if status == 0:
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # nothing is left to be saved
            return
        self._wait()  # a signal ends the shell at once, and what runs in it may still be saving
        sys.tracebacklimit = 0  # where in this file says nothing to the reader of the log
        raise RuntimeError(f"exit status {status} on {os.environ.get('SLURMD_NODENAME', socket.gethostname())}")

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Stop the child, inside of submitit's handler; return the same job for the next leg.

        Raises:
            RuntimeError: the job has met its limit and keeps nothing to go on from.
        """
        self._stop(signal.SIGUSR2)
        if self.limit_min and time.monotonic() - self._started > 60 * self.limit_min - self.grace_s - EARLY:
            sys.tracebacklimit = 0
            raise RuntimeError(f"met its limit of {self.limit_min} minutes and would begin anew: raise its runtime")
        return submitit.helpers.DelayedSubmission(self)

    def _warned(self, number: int, _: Any) -> None:
        """Pass a warning on to submitit's handler, which saves and requeues; the end of a job only to the child."""
        if _wanted():
            signal.raise_signal(signal.SIGUSR2)
        else:
            print(f"{signal.Signals(number).name}: the job was ended", flush=True)
            self._signal(number)  # Slurm may know nothing of a process in a session of its own
            self._wait()  # it kills all that is left of the job once this process has ended

    def _stop(self, number: int) -> None:
        """Make the child's processes save and end; kill them when the time is over."""
        end = time.monotonic() + self.grace_s
        while not self._ended() and time.monotonic() < end:
            self._signal(number)  # again and again: a program may not have its handler yet
            time.sleep(SECONDS_BETWEEN_SIGNALS)
        if not self._ended():
            print(f"still running after {self.grace_s} s: killed", flush=True)
            self._signal(signal.SIGKILL)

    def _wait(self) -> None:
        """Give the child's processes the time to save and end."""
        end = time.monotonic() + self.grace_s
        while not self._ended() and time.monotonic() < end:
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _ended(self) -> bool:
        """Whether no process of the child's group runs; the child itself, a shell, ends before what it started."""
        return self._child is None or not _runs(self._child.pid)

    def _signal(self, number: int) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)


def _runs(group: int) -> bool:
    """Whether a process of a group runs; one that has ended and that nobody has waited for does not."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, _, own = path.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(own) == group and state != "Z":
                return True
    return False


def _deafen() -> None:
    """Shells and Snakemake would die of what programs are to save on; being ignored is inherited, a handler wins."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _wanted() -> bool:
    """Whether Slurm counts this job as running: not one that was cancelled, is requeued or has met its limit."""
    if (job_id := os.environ.get("SLURM_JOB_ID")) is None:
        return False
    command = ["scontrol", "--oneliner", "show", "job", job_id]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "JobState=RUNNING" in shown.split()


def _remove_leftovers() -> None:
    """Remove the result of an earlier leg, and files that it was killed over, which submitit would stumble on."""
    paths = submitit.JobEnvironment().paths
    for path in (paths.result_pickle, paths.submitted_pickle):
        path.with_suffix(path.suffix + ".save_tmp").unlink(missing_ok=True)
    paths.result_pickle.unlink(missing_ok=True)

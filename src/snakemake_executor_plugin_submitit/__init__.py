"""Snakemake executor plugin: each job, or group of jobs, is one submitit job, on Slurm or on this machine.

A job that meets its time limit or is preempted is told by a signal, saves what it can, and is requeued under its own
Slurm id. The queue is listed once per interval for all jobs; how a job ended is told by the result file that submitit
writes, so Slurm's accounting is not needed. Jobs that outlive the main process are waited for by the next one.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase
from snakemake_interface_executor_plugins.utils import format_cli_arg

from snakemake_executor_plugin_submitit import environment, folders, request
from snakemake_executor_plugin_submitit.clusters import CLUSTERS, ClusterError
from snakemake_executor_plugin_submitit.interrupts import interrupts_held
from snakemake_executor_plugin_submitit.payload import SnakemakeJob
from snakemake_executor_plugin_submitit.records import Records

SECONDS_BETWEEN_GLANCES = 0.5  # at the wish to stop, while waiting for the next look at the queue


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Options `--submitit-...`, and keys of that name in a profile."""

    cluster: str = field(
        default="slurm",
        metadata={"help": "Where jobs run: slurm, or local for processes on this machine", "choices": list(CLUSTERS)},
    )
    signal_delay: int = field(
        default=120,
        metadata={"help": "Seconds before the time limit at which a job is told to save; it is then requeued"},
    )


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_group_args=True,
    # any installed storage plugin would put a `pip install` before each job
    auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=1,
)


class Executor(RemoteExecutor):
    """Submits jobs, looks after them, cancels them."""

    def __post_init__(self) -> None:
        """Check that jobs can be submitted, and freeze the configuration that they will read."""
        settings = self.workflow.executor_settings
        self._job_cores = 1
        self._delay: int = settings.signal_delay
        self._live: dict[str, SubmittedJobInfo] = {}
        self._gone_since: dict[str, float] = {}
        environment.forget_caller()
        try:
            self.cluster = CLUSTERS[settings.cluster](self._delay)
        except ClusterError as error:
            raise WorkflowError(str(error)) from None
        home = Path(".snakemake/submitit").absolute()
        self._folder = folders.of_this_run(home)
        self._records = Records(home / "active")
        self._configs = folders.frozen_configs(
            self._folder, self.workflow.configfiles, len(self.workflow.overwrite_configfiles)
        )

    @property
    def cores(self) -> int:
        """Cores of the job in hand: `all` would cut its threads down to what the node shows."""
        return self._job_cores

    def get_job_args(self, job: Any, **kwargs: Any) -> str:
        """Return the arguments of the job's own Snakemake."""
        self._job_cores = max(1, int(job.resources.get("_cores", 1)))
        return super().get_job_args(job, **kwargs)

    def additional_general_args(self) -> str:
        """Return arguments that hold retries back in the job, and give it the configuration of this moment.

        A rule's own `retries` would be obeyed again inside of the first attempt's allocation; rules that count as
        preemptible have retries of their own.
        """
        configs = format_cli_arg("--configfiles", self._configs, skip=not self._configs)
        return f"--preemptible-rules --preemptible-retries 0 {configs}"

    def run_job(self, job: Any) -> None:
        """Submit a job, or take over the one that an earlier main process has left behind."""
        try:
            if not self._adopt(job):
                self._submit(job)
        except ClusterError as error:
            self.report_job_error(SubmittedJobInfo(job), msg=f"{error}\n")

    def _submit(self, job: Any) -> None:
        try:
            limit = request.last_minutes(job.resources)
        except request.RequestError as error:
            raise ClusterError(f"submission refused: {error}") from None
        payload = SnakemakeJob(self.format_job_exec(job), str(Path.cwd()), max(1, self._delay - 15), limit)
        with interrupts_held(self.cluster.commands_only):
            job_id, paths = self.cluster.submit(folders.of_job(self._folder, job), job, payload)
            self._records.write(job, job_id, paths)
            self._watch(job, job_id, paths)
        self.logger.info(f"Job {job.jobid} is {self.cluster.name} job {job_id}, log: {paths.stdout}")

    def _adopt(self, job: Any) -> bool:
        """Whether the job already runs or waits in the queue, submitted by a main process that has died."""
        if not self._records.any_of(job):
            return False
        found = self._records.find(job, self.cluster.left_behind)
        if found is None:
            return False
        job_id, paths = found
        self.logger.info(f"Job {job.jobid} still runs as {self.cluster.name} job {job_id}, log: {paths.stdout}")
        self._watch(job, job_id, paths)
        return True

    def _watch(self, job: Any, job_id: str, paths: Any) -> None:
        info = SubmittedJobInfo(job, external_jobid=job_id, aux={"paths": paths})
        self._live[job_id] = info
        self.report_job_submission(info)

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report the jobs that have ended; yield the others."""
        if not active_jobs:
            return
        try:
            going = await asyncio.to_thread(self.cluster.going)
        except ClusterError as error:
            self.logger.warning(f"{error}; asking again at the next check")
            going = {info.external_jobid for info in active_jobs}
        for info in active_jobs:
            # the queue comes first: a requeued job may have left the result of an earlier leg
            if info.external_jobid in going or not await asyncio.to_thread(self._settle, info):
                yield info

    def _settle(self, info: SubmittedJobInfo) -> bool:
        """Report how a job ended that is no longer in the queue; False if that cannot be told yet."""
        job_id, paths = info.external_jobid, info.aux["paths"]
        outcome = folders.outcome(paths)
        if outcome is None:
            gone = time.monotonic() - self._gone_since.setdefault(job_id, time.monotonic())
            if gone < self.workflow.execution_settings.latency_wait:
                return False
            try:
                if self.cluster.still_has(job_id):
                    del self._gone_since[job_id]
                    return False
            except ClusterError:
                return False
        self._live.pop(job_id, None)
        self._records.remove(info.job, job_id)
        if outcome == "":
            self.report_job_success(info)
        else:
            how = outcome or "ended without a result"
            line = f"{self.cluster.name} job {job_id}: {how} ({self.cluster.state_of(job_id)})\n"
            self.report_job_error(info, msg=line, aux_logs=[str(paths.stdout)])
        return True

    def cancel_jobs(self, active_jobs: Iterable[SubmittedJobInfo]) -> None:
        """Cancel all jobs; the list handed in lacks those that are just being looked at."""
        live = list(self._live.values())
        try:
            self.cluster.cancel([info.external_jobid for info in live])
        except ClusterError as error:
            self.logger.error(str(error))
            return
        for info in live:
            self._records.remove(info.job, info.external_jobid)

    async def sleep(self) -> None:
        """Wait for the next look at the queue, or until there is nothing left to wait for."""
        end = time.monotonic() + self.next_seconds_between_status_checks
        while self.wait and time.monotonic() < end:
            await asyncio.sleep(SECONDS_BETWEEN_GLANCES)

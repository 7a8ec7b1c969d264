"""What the executor plugin asks Slurm for, and what it keeps of the caller's environment."""

import os
import sys
import time
from types import SimpleNamespace

import pytest

from snakemake_executor_plugin_submitit import environment, folders, request
from snakemake_executor_plugin_submitit.clusters import ClusterError
from snakemake_executor_plugin_submitit.payload import SnakemakeJob
from snakemake_executor_plugin_submitit.records import Records


def asked(**resources):
    return request.slurm("rule", resources, 90)


def test_gpus_are_of_the_whole_job_and_asked_for_on_each_node():
    """As in the stock plugin, `gpu` is a total (--gpus); --gres is per node."""
    assert asked(gpu=8, nodes=2)["gres"] == "gpu:4"
    assert asked(gpu=8, nodes=2, gpu_model="h100")["gres"] == "gpu:h100:4"
    assert asked(gpu_model="h100")["gres"] == "gpu:h100:1"
    assert "gres" not in asked(gpu=0, gpu_model="h100")
    assert "gres" not in asked()


def test_memory_limit_and_words_are_passed_on():
    got = asked(mem_mb=1500, runtime=7, _cores=3, slurm_partition="p", slurm_account="a", qos="q", constraint="x|y")
    expected = {
        "mem": "1500MB", "time": 7, "cpus_per_task": 3, "partition": "p", "account": "a", "qos": "q",
        "constraint": "x|y", "signal_delay_s": 90,
    }  # fmt: skip
    assert expected.items() <= got.items()
    assert not {"partition", "account", "qos", "constraint", "mem"} & asked().keys()


@pytest.mark.parametrize("resources", [{"gpu": "two"}, {"nodes": 0}, {"runtime": 1.5}, {"mem_mb": -1}, {"mpi": True}])
def test_what_slurm_would_misread_is_refused(resources):
    with pytest.raises(request.RequestError, match=next(iter(resources))):
        asked(**resources)


def test_a_job_that_keeps_nothing_must_end_within_its_limit():
    assert request.last_minutes({"resumable": 0, "runtime": 240}) == 240
    assert request.last_minutes({"resumable": 0}) == 60
    assert request.last_minutes({"resumable": 1, "runtime": 240}) is None
    assert request.last_minutes({"runtime": 240}) is None


def test_near_its_limit_it_fails_and_before_that_it_is_queued_again(monkeypatch):
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)  # put back behind the test
    job = SnakemakeJob("true", ".", 1, limit_min=10)
    assert job.checkpoint().function is job  # a signal before it has begun
    job._started = time.monotonic() - 60
    assert job.checkpoint().function is job
    job._started = time.monotonic() - 599
    with pytest.raises(RuntimeError, match="met its limit of 10 minutes and would begin anew: raise its runtime"):
        job.checkpoint()


def test_a_job_that_an_earlier_version_has_submitted_goes_on(monkeypatch):
    """Its pickle has none of the attributes that came later."""
    waiting = SnakemakeJob.__new__(SnakemakeJob)
    waiting.__dict__ = {"command": "true", "folder": ".", "grace_s": 1, "_child": None}
    assert waiting.checkpoint().function is waiting


def test_a_job_is_requeued_unless_it_says_otherwise():
    assert asked()["additional_parameters"] == {"requeue": True}
    assert asked(slurm_extra="--no-requeue")["additional_parameters"] == {"no-requeue": True}


def test_extra_options_keep_their_quotes():
    assert request.extra("--exclusive --comment='a b' --mail-type=END") == {
        "exclusive": True,
        "comment": "a b",
        "mail-type": "END",
    }
    for wrong in ("-w n1", "--nodelist n1", "exclusive", "--"):
        with pytest.raises(request.RequestError, match="is not of the form"):
            request.extra(wrong)


def test_the_way_to_the_cluster_is_all_that_is_kept_of_the_callers_job(monkeypatch):
    for name in ("SLURM_JOB_ID", "SBATCH_PARTITION", "PMIX_RANK", "SQUEUE_STATES", "SLURM_CONF", "SLURM_JWT", "RANK"):
        monkeypatch.setenv(name, "x")
    environment.forget_caller()
    assert {"SLURM_CONF", "SLURM_JWT", "PATH"} <= os.environ.keys()
    assert not {"SLURM_JOB_ID", "SBATCH_PARTITION", "PMIX_RANK", "SQUEUE_STATES", "RANK"} & os.environ.keys()


def test_names_of_folders_fit_any_file_system_and_mean_nothing_to_slurm(tmp_path):
    def named(*wildcards):
        job = SimpleNamespace(is_group=lambda: False, rule=SimpleNamespace(name="rule"), wildcards=wildcards)
        return folders.of_job(tmp_path, job)

    assert named("a/b c", "50%j") == tmp_path / "rule/a-b-c_50-j"
    assert named() == tmp_path / "rule"
    assert named("x" * 300 + "a") != named("x" * 300 + "b")
    assert len(named("x" * 300).name.encode()) < 255


def test_a_result_that_cannot_be_read_yet_is_none(tmp_path):
    paths = SimpleNamespace(result_pickle=tmp_path / "result.pkl")
    assert folders.outcome(paths) is None
    paths.result_pickle.write_bytes(b"\x80\x05half")
    assert folders.outcome(paths) is None


def member(number, command="make"):
    """A rule's job as far as the notes look at it."""
    return SimpleNamespace(
        is_group=lambda: False,
        rule=SimpleNamespace(name="rule"),
        output=[f"{number}.out"],
        input=[f"{number}.in"],
        params=[],
        shellcmd=command,
    )


def group(*members):
    return SimpleNamespace(is_group=lambda: True, jobs=members)


def test_a_group_is_taken_over_by_its_members(tmp_path):
    """The next main process may put together other groups; what is still written by a job is not submitted again."""
    records = Records(tmp_path)
    records.write(group(member(1), member(2)), "7", SimpleNamespace(folder=tmp_path / "log"))
    both, part, other = group(member(2), member(1)), group(member(2)), group(member(2), member(3))
    assert records.find(both, {"7"})[0] == records.find(part, {"7"})[0] == records.find(member(1), {"7"})[0] == "7"
    assert records.find(both, {"8"}) is None  # it has ended
    assert not records.any_of(member(3))
    for case in (other, group(member(1, "make other"))):
        with pytest.raises(ClusterError, match="job 7 was submitted with other settings"):
            records.find(case, {"7"})
    records.remove(both, "8")
    assert records.any_of(both)
    records.remove(both, "7")
    assert not records.any_of(both)

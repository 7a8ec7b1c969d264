"""The plugin with small workflows of any kind, on a real Slurm."""

import json
import os
import signal
import time

import pytest

HEAD = "import os\n"


def test_a_job_gets_what_it_asks_for(workflow, cluster):
    """Cores, GPUs by gres, memory and limit, the node by its feature; the caller's job does not show."""
    workflow.write("""
rule all:
    input: "seen.txt"
rule see:
    output: "seen.txt"
    threads: 6
    resources: gpu=2, gpu_model="a100", constraint="small", mem_mb=3000, runtime=7, slurm_partition="other",
        slurm_extra="--comment='a note' --exclusive=user"
    shell: "env > {output}; scontrol --oneliner show job $SLURM_JOB_ID >> {output}; command -v python >> {output}"
""")
    caller = {
        "SLURM_JOB_ID": "1", "SLURM_CPU_BIND": "mask", "SBATCH_PARTITION": "nowhere", "PMIX_RANK": "3",
        "SLURM_CPUS_PER_TASK": "1", "SQUEUE_STATES": "FAILED", "RANK": "7", "PATH": os.defpath,
    }  # fmt: skip
    workflow.run(env=caller)
    seen = workflow.text("seen.txt")
    lines = seen.splitlines()
    assert {"CUDA_VISIBLE_DEVICES=0,1", "SLURMD_NODENAME=n2", "SLURM_CPUS_PER_TASK=6"} <= set(lines)
    for words in ("Partition=other", "TimeLimit=00:07:00", "MinMemoryNode=3000M", "Requeue=1", "Comment=a note"):
        assert words in seen
    assert not {"SLURM_CPU_BIND=mask", "PMIX_RANK=3", "RANK=7", "SLURM_JOB_ID=1"} & set(lines)
    assert lines[-1] == str(workflow.python)
    assert cluster.queue() == []


def test_two_nodes_run_snakemake_once_on_the_first(workflow):
    workflow.write("""
rule all:
    output: "nodes.txt"
    resources: nodes=2, gpu=4
    shell: "echo started >> starts.txt; srun --overlap --nodes=2 --ntasks=2 --ntasks-per-node=1"
        " bash -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES' | sort > {output}"
""")
    workflow.run()
    assert workflow.text("nodes.txt").splitlines() == ["n1 0,1", "n2 0,1"]
    assert workflow.text("starts.txt").splitlines() == ["started"]


def test_a_failing_job_is_reported_with_both_logs_and_the_state_and_others_go_on(workflow):
    workflow.write("""
rule all:
    input: "good.txt", "bad.txt", "refused.txt"
rule good:
    output: "good.txt"
    shell: "sleep 2; touch {output}"
rule bad:
    output: "bad.txt"
    log: "bad.log"
    shell: "echo words of the rule > {log}; exit 3"
rule refused:
    output: "refused.txt"
    resources: slurm_partition="nowhere"
    shell: "touch {output}"
""")
    printed = workflow.run("--keep-going", status=1)
    assert workflow.has("good.txt")()
    for words in (
        "words of the rule",  # the rule's log
        "Starting with JobEnvironment",  # the job's log
        "exit status 1 on n",
        "JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0 Restarts=0",
        "submission refused: sbatch: error: invalid partition specified: nowhere",
    ):
        assert words in printed, words
    assert "Traceback" not in printed.replace("Starting with", "", 1).split("Starting with")[0]


@pytest.mark.parametrize(
    ("resource", "words"),
    [
        ("gres='gpu:1'", "resource gres=gpu:1 is not known here; use slurm_extra=\"--gres=...\""),
        ("gpu=3, nodes=2", "gpu=3 does not divide over nodes=2"),
        ("slurm_extra='-w n1'", "'-w' is not of the form --option or --option=value"),
        ("gpu=9", "Requested node configuration is not available"),
    ],
)
def test_what_cannot_be_asked_for_fails_that_job_in_words(workflow, resource, words):
    workflow.write(f'rule all:\n    output: "out.txt"\n    resources: {resource}\n    shell: "touch {{output}}"\n')
    printed = workflow.run(status=1)
    assert words in printed
    assert "Traceback" not in printed


def test_interrupt_leaves_an_empty_queue(workflow, cluster):
    """Running jobs are told, so that they can save; jobs that wait go."""
    workflow.write("""
rule all:
    input: expand("{n}.txt", n=range(6)), "never.txt"
rule long:
    output: "{n}.txt"
    shell: "trap 'touch {wildcards.n}.saved; exit 1' TERM; touch {wildcards.n}.started; sleep 100 & wait"
rule never:
    output: "never.txt"
    resources: slurm_extra="--begin=now+1hour"
    shell: "touch {output}"
""")
    main = workflow.start("--seconds-between-status-checks", "20")
    workflow.wait_for(lambda: all(workflow.has(f"{n}.started")() for n in range(6)))
    assert len(cluster.queue()) == 7
    started = time.monotonic()
    os.kill(main.pid, signal.SIGINT)
    assert main.wait(15) == 1
    assert time.monotonic() - started < 10  # not the 20 s between two looks
    cluster.wait_until_empty(15)
    assert all(workflow.has(f"{n}.saved")() for n in range(6))
    assert not list((workflow.folder / ".snakemake/submitit/active").iterdir())


def test_retries_of_the_command_line_get_a_new_job_with_more_memory(workflow):
    workflow.write("""
rule all:
    output: "out.txt"
    resources: mem_mb=lambda wildcards, attempt: 500 * attempt
    shell: "scontrol --oneliner show job $SLURM_JOB_ID | grep -o 'MinMemoryNode=[^ ]*' >> {workflow.basedir}/asked"
        "; echo {resources.mem_mb} >> {workflow.basedir}/told; test $(wc -l < asked) = 3 && touch {output}"
""")
    workflow.run("--retries", "3")
    assert workflow.text("asked").split() == ["MinMemoryNode=500M", "MinMemoryNode=1000M", "MinMemoryNode=1500M"]
    assert workflow.text("told").split() == ["500", "1000", "1500"]


def test_retries_of_a_rule_are_obeyed_once(workflow):
    """Each attempt is a job of its own: the Snakemake inside of the job does not retry in the same allocation."""
    workflow.write("""
rule all:
    output: "out.txt"
    retries: 2
    resources: mem_mb=lambda wildcards, attempt: 500 * attempt
    shell: "echo $SLURM_JOB_ID {resources.mem_mb} >> tries; exit 1"
""")
    workflow.run(status=1)
    tries = [line.split() for line in workflow.text("tries").splitlines()]
    assert [memory for _, memory in tries] == ["500", "1000", "1500"]
    assert len({job for job, _ in tries}) == 3


def test_a_group_is_one_job(workflow):
    workflow.write("""
rule all:
    input: expand("{n}.b", n=range(4))
rule a:
    output: "{n}.a"
    group: "pair"
    threads: 3
    resources: mem_mb=400
    shell: "echo $SLURM_JOB_ID $SLURM_CPUS_PER_TASK > {output}"
rule b:
    input: "{n}.a"
    output: "{n}.b"
    group: "pair"
    resources: mem_mb=400
    shell: "cat {input} > {output}; echo $SLURM_JOB_ID >> {output}"
""")
    workflow.run("--group-components", "pair=2")
    words = [workflow.text(f"{n}.b").split() for n in range(4)]
    assert all(job == same for job, _, same in words)
    assert len({job for job, _, _ in words}) == 2
    assert {cores for _, cores, _ in words} == {"6"}


ONCE = """
rule all:
    input: "out.txt"
rule long:
    output: "out.txt"
    shell: "echo $SLURM_JOB_ID >> starts; touch started; while ! test -e go; do sleep 0.1; done; touch {output}"
"""


def kill_main(workflow):
    workflow.start()
    workflow.wait_for(workflow.has("started"))
    workflow.main.kill()  # -9, and only the main process
    workflow.main.wait()
    workflow.run("--unlock", options=())


def test_a_job_that_outlives_the_main_process_is_taken_over(workflow, cluster):
    workflow.write(ONCE)
    kill_main(workflow)
    (job_id,) = cluster.queue()
    workflow.start("--rerun-incomplete")
    workflow.wait_for(lambda: f"still runs as slurm job {job_id}, log: " in workflow.printed())
    assert cluster.queue() == [job_id]
    (workflow.folder / "go").touch()
    assert workflow.main.wait(40) == 0, workflow.printed()
    assert workflow.text("starts").split() == [job_id]
    assert not list((workflow.folder / ".snakemake/submitit/active").iterdir())


def test_a_job_left_behind_with_other_settings_is_not_taken_over(workflow, cluster):
    """Two jobs must not write one file, and what the old one writes is not what is asked for now."""
    workflow.write(ONCE)
    kill_main(workflow)
    (job_id,) = cluster.queue()
    workflow.write(ONCE.replace("touch {output}", "echo new > {output}"))
    printed = workflow.run("--rerun-incomplete", status=1)
    assert f"job {job_id} was submitted with other settings" in printed
    assert f"scancel {job_id}" in printed
    assert cluster.queue() == [job_id]


def test_an_edited_configuration_does_not_reach_a_job_that_waits(workflow, cluster):
    workflow.write("""
configfile: "config.yaml"
rule all:
    output: "out.txt"
    resources: slurm_extra="--hold"
    params: a=config["a"], b=config["b"]["c"], d=config["d"]
    shell: "echo {params.a} {params.b} {params.d} > {output}"
""")
    (workflow.folder / "config.yaml").write_text("a: 1e-3\nb: {c: file, e: 1}\nd: file\n")
    (workflow.folder / "over.yaml").write_text("b: {c: over}\n")
    workflow.start("--configfile", "over.yaml", "--config", "d=line")
    (job_id,) = workflow.wait_for(cluster.queue)
    (workflow.folder / "config.yaml").write_text("a: edited\nb: {c: edited}\nd: edited\n")
    (workflow.folder / "over.yaml").write_text("b: {c: edited}\n")
    cluster.run("scontrol", "release", job_id)
    assert workflow.main.wait(40) == 0, workflow.printed()
    assert workflow.text("out.txt").split() == ["1e-3", "over", "line"]


SAVING = """
rule all:
    output: "out.txt"
    shell: "python saving.py {output}"
"""
SAVES = """
import os, signal, sys, time
from pathlib import Path
def save(number, frame):
    with open("saved", "a") as file:
        print(signal.Signals(number).name, os.environ["SLURM_JOB_ID"], file=file)
    sys.exit(75)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, save)
Path("started").touch()
while not Path("saved").exists():
    time.sleep(0.05)
Path(sys.argv[1]).write_text(os.environ["SLURM_JOB_ID"] + " " + os.environ["SLURM_RESTART_COUNT"])
"""


@pytest.mark.parametrize("how", ["USR2", "TERM", "USR1", "requeue"])
def test_a_warning_leads_to_save_and_requeue_under_the_same_id(workflow, cluster, how):
    """Sites announce preemption by different signals; TERM alone is also how a cancelled job ends (see above)."""
    workflow.write(SAVING)
    (workflow.folder / "saving.py").write_text(SAVES)
    workflow.start()
    workflow.wait_for(workflow.has("started"))
    (job_id,) = cluster.queue()
    if how == "requeue":  # what Slurm does by itself after a lost node
        cluster.run("scontrol", "requeue", job_id)
    else:
        cluster.run("scancel", f"--signal={how}", job_id)
    assert workflow.main.wait(60) == 0, workflow.printed()
    assert workflow.text("out.txt") == f"{job_id} 1"
    assert workflow.text("saved").split()[1] == job_id


def test_a_job_cancelled_by_hand_is_not_requeued(workflow, cluster):
    workflow.write(SAVING)
    (workflow.folder / "saving.py").write_text(SAVES)
    workflow.start()
    workflow.wait_for(workflow.has("started"))
    (job_id,) = cluster.queue()
    cluster.run("scancel", job_id)
    assert workflow.main.wait(40) == 1
    assert "JobState=CANCELLED" in workflow.printed()
    assert workflow.text("saved").split()[1] == job_id
    assert cluster.queue() == []


def test_a_silent_queue_fails_nothing(workflow, cluster, tmp_path):
    """squeue that does not answer means: ask again."""
    broken = tmp_path / "broken"
    broken.mkdir()
    squeue = broken / "squeue"
    squeue.write_text(
        f"#!/bin/sh\nif test -e {str(broken)!r}/ok; then exec {cluster.which('squeue')} \"$@\"; fi\n"
        "echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1\n"
    )
    squeue.chmod(0o755)
    workflow.write('rule all:\n    output: "out.txt"\n    shell: "touch {output}"\n')
    workflow.start(env={"PATH": f"{broken}:{workflow.env['PATH']}"})
    workflow.wait_for(lambda: workflow.printed().count("Unable to contact slurm controller; asking again") >= 3)
    assert workflow.main.poll() is None
    (broken / "ok").touch()
    assert workflow.main.wait(20) == 0, workflow.printed()


def test_without_slurm_nothing_is_run(workflow, tmp_path):
    """Above all not on this machine, which would be the login node."""
    workflow.write('rule all:\n    output: "out.txt"\n    shell: "touch {output}"\n')
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "env", "python3", "uname"):
        (tmp_path / "bin" / tool).symlink_to(f"/usr/bin/{tool}")
    printed = workflow.run(status=1, env={"PATH": str(tmp_path / "bin")})
    assert "no Slurm on this machine (sbatch, srun, squeue, scancel, scontrol not found)" in printed
    assert "Traceback" not in printed
    assert not workflow.has("out.txt")()


def test_local_jobs_run_without_slurm_and_end_with_the_main_process(workflow):
    workflow.write("""
rule all:
    output: "out.txt"
    resources: runtime=5
    shell: "touch started; trap 'touch saved; exit 1' TERM; if test -e go; then touch {output}; else sleep 100 & wait; fi"
""")
    main = workflow.start("--submitit-cluster", "local")
    workflow.wait_for(workflow.has("started"))
    os.kill(main.pid, signal.SIGINT)
    assert main.wait(20) == 1
    workflow.wait_for(workflow.has("saved"), 10)
    (workflow.folder / "go").touch()
    workflow.run("--submitit-cluster", "local", "--rerun-incomplete")
    assert workflow.has("out.txt")()

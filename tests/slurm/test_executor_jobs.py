"""The plugin with small workflows of any kind on a real Slurm: what jobs ask for, how failures are told."""

import os
import re
import signal

import pytest

NAMED = """
rule all:
    input: "seen.txt", "nodes.txt", expand("{n}.b", n=range(4))
rule see:
    output: "seen.txt"
    threads: 6
    resources: gpu=2, gpu_model="a100", constraint="small", mem_mb=3000, runtime=7, slurm_partition="other",
        slurm_extra="--comment='a note' --exclusive=user"
    shell: "env > {output}; scontrol --oneliner show job $SLURM_JOB_ID >> {output};"
        " scontrol --oneliner show step $SLURM_JOB_ID.$SLURM_STEP_ID | sed 's/^/step /' >> {output};"
        " command -v python >> {output}"
rule nodes:
    output: "nodes.txt"
    resources: nodes=2, gpu=4
    shell: "echo started >> starts; srun --overlap --nodes=2 --ntasks=2 --ntasks-per-node=1"
        " bash -c 'echo $SLURMD_NODENAME ${{CUDA_VISIBLE_DEVICES//[^,]}}' | sort > {output}"
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
"""
# as when memory runs out: the process that would write the result is gone
KILL = """
import os, signal
from pathlib import Path
stat = Path(f"/proc/{os.getsid(0)}/stat").read_text()
os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
"""
# what a shell inside of another job has; its PATH does not hold this environment
CALLER = {
    "SLURM_JOB_ID": "999999", "SLURM_CPU_BIND": "mask", "SBATCH_PARTITION": "nowhere", "PMIX_RANK": "3",
    "SLURM_CPUS_PER_TASK": "1", "SQUEUE_STATES": "FAILED", "RANK": "7", "PATH": os.defpath,
}  # fmt: skip


def test_jobs_get_what_they_ask_for_and_nothing_of_the_callers_job(workflow, cluster):
    workflow.write(NAMED)
    workflow.run("--group-components", "pair=2", env=CALLER)
    seen = workflow.text("seen.txt")
    lines = seen.splitlines()
    assert re.search(r"^CUDA_VISIBLE_DEVICES=\d,\d$", seen, re.MULTILINE)
    assert {"SLURMD_NODENAME=n2", "SLURM_CPUS_PER_TASK=6"} <= set(lines)
    for words in ("Partition=other", "TimeLimit=00:07:00", "MinMemoryNode=3000M", "Requeue=1", "Comment=a note"):
        assert words in seen
    (step,) = (line.split() for line in lines if line.startswith("step "))
    assert "CPUs=6" in step  # of the process itself, not only of the job around it
    assert not {f"{name}={value}" for name, value in CALLER.items()} & set(lines)
    assert lines[-1] == str(workflow.python)

    # both nodes have two GPUs (one comma), Snakemake ran once
    assert workflow.text("nodes.txt").splitlines() == ["n1 ,", "n2 ,"]
    assert workflow.text("starts").split() == ["started"]

    # four pairs in two jobs of 2 x 3 cores
    words = [workflow.text(f"{n}.b").split() for n in range(4)]
    assert all(job == same for job, _, same in words)
    assert len({job for job, _, _ in words}) == 2
    assert {cores for _, cores, _ in words} == {"6"}
    assert cluster.queue() == []


def test_failures_are_told_with_both_logs_and_slurms_words_and_others_go_on(workflow, cluster):
    asked = {
        "nowhere": "slurm_partition='nowhere'",
        "gres": "gres='gpu:1'",
        "uneven": "gpu=3, nodes=2",
        "short": "slurm_extra='-w n1'",
        "many": "gpu=9",
    }
    workflow.write(
        "".join(
            f'rule {name}:\n    output: "{name}.txt"\n    resources: {resources}\n    shell: "touch {{output}}"\n'
            for name, resources in asked.items()
        )
        + """
rule good:
    output: "good.txt"
    shell: "sleep 3; touch {output}"
rule bad:
    output: "bad.txt"
    log: "bad.log"
    shell: "echo words of the rule > {log}; exit 3"
rule killed:
    output: "killed.txt"
    shell: "python kill.py; sleep 60"
rule cancelled:
    output: "cancelled.txt"
    shell: "trap 'echo told >> told; exit 1' TERM; echo $SLURM_JOB_ID > id; while true; do sleep 0.1 || true; done"
"""
    )
    (workflow.folder / "kill.py").write_text(KILL)
    names = (*asked, "good", "bad", "killed", "cancelled")
    workflow.start("--keep-going", *(f"{name}.txt" for name in names))
    workflow.wait_for(workflow.has("id"))
    job_id = workflow.text("id").strip()
    cluster.run("scancel", job_id)
    assert workflow.main.wait(60) == 1
    printed = workflow.printed()
    for words in (
        "submission refused: sbatch: error: invalid partition specified: nowhere",
        'resource gres=gpu:1 is not known here; use slurm_extra="--gres=..."',
        "gpu=3 does not divide over nodes=2",
        "'-w' is not of the form --option or --option=value",
        "Requested node configuration is not available",
        "words of the rule",  # the rule's log
        "Starting with JobEnvironment",  # the job's log
        "exit status 1 on n",
        "JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0 Restarts=0",
        f"slurm job {job_id}: RuntimeError: exit status 1",
        "JobState=CANCELLED",
        "ended without a result (JobState=FAILED",
    ):
        assert words in printed, words
    assert "Traceback" not in printed
    assert [name for name in names if workflow.has(f"{name}.txt")()] == ["good"]
    assert workflow.text("told").split() == ["told"]  # once: a cancelled job is not started again
    assert cluster.queue() == []


@pytest.mark.slow
def test_each_retry_is_a_job_with_the_memory_of_its_attempt(workflow):
    """Also for a rule's own `retries`, which the Snakemake inside of the job would obey, too."""
    workflow.write("""
for name in "given", "own":
    rule:
        name: name
        output: f"{name}.txt"
        params: name=name
        retries: 1 if name == "own" else None
        resources: mem_mb=lambda wildcards, attempt: 500 * attempt
        shell:
            "granted=$(scontrol --oneliner show job $SLURM_JOB_ID | grep -o 'MinMemoryNode=[^ ]*');"
            " echo $granted {resources.mem_mb} $SLURM_JOB_ID >> {params.name}; exit 1"
""")
    workflow.run("--retries", "1", "--keep-going", "given.txt", "own.txt", status=1)
    for name in ("given", "own"):
        tries = [line.split() for line in workflow.text(name).splitlines()]
        assert [words[:2] for words in tries] == [["MinMemoryNode=500M", "500"], ["MinMemoryNode=1000M", "1000"]]
        assert len({job for _, _, job in tries}) == 2


def test_local_jobs_need_no_slurm_and_end_with_the_main_process(workflow):
    workflow.write("""
rule all:
    output: "out.txt"
    shell:
        "touch started; trap 'touch saved; exit 1' TERM;"
        " if test -e go; then touch {output}; else while true; do sleep 0.1 || true; done; fi"
""")
    main = workflow.start("--submitit-cluster", "local")
    workflow.wait_for(workflow.has("started"))
    os.kill(main.pid, signal.SIGINT)
    assert main.wait(20) == 1
    workflow.wait_for(workflow.has("saved"), 10)
    (workflow.folder / "go").touch()
    workflow.run("--submitit-cluster", "local", "--rerun-incomplete")
    assert workflow.has("out.txt")()

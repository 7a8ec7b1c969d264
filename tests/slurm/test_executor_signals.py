"""The plugin with small workflows on a real Slurm: interrupts, requeues, a killed main process, edits meanwhile."""

import os
import signal
import time

LONG = """
rule all:
    input: expand("{n}.txt", n=range(5)), "never.txt"
rule long:
    output: "{n}.txt"
    shell:
        "trap 'touch {wildcards.n}.saved; exit 1' TERM; touch {wildcards.n}.started;"
        " while true; do sleep 0.1 || true; done"
rule never:
    output: "never.txt"
    resources: slurm_extra="--begin=now+1hour"
    shell: "touch {output}"
"""
ONCE = """
rule all:
    input: "out.txt"
rule long:
    output: "out.txt"
    shell: "echo $SLURM_JOB_ID >> starts; touch started; while ! test -e go; do sleep 0.1; done; touch {output}"
"""
# Training in small: it saves and leaves at a signal; started again, it finishes.
SAVING = """
rule all:
    input: expand("{how}.txt", how=["USR1", "USR2", "TERM", "requeue"])
rule save:
    output: "{how}.txt"
    shell: "python saving.py {wildcards.how} {output}"
"""
SAVES = """
import os, signal, sys, time
from pathlib import Path
how, out = sys.argv[1:]
saved, job = Path(f"{how}.saved"), os.environ["SLURM_JOB_ID"]
def save(number, frame):
    saved.write_text(f"{signal.Signals(number).name} {job}")
    sys.exit(75)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, save)
Path(f"{how}.started").write_text(job)
while not saved.exists():
    time.sleep(0.05)
Path(out).write_text(f"{job} {os.environ['SLURM_RESTART_COUNT']}")
"""
# A checkpoint takes longer to write than its shell, which no signal is caught in, takes to die.
SLOW = """
rule all:
    input: "out.txt"
rule train:
    output: "out.txt"
    shell: "python slow.py {output} > lines.txt"
"""
SAVES_SLOWLY = """
import signal, sys, time
from pathlib import Path
def save(number, frame):
    time.sleep(4)
    Path("saved").write_text(signal.Signals(number).name)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
Path("started").touch()
time.sleep(300)
"""
HELD = """
configfile: "config.yaml"
rule all:
    output: "out.txt"
    resources: slurm_extra="--hold"
    params: rate=config["rate"], value=config["nested"]["value"], word=config["word"]
    shell: "echo {params.rate} {params.value} {params.word} > {output}"
"""


def notes(workflow):
    return list((workflow.folder / ".snakemake/submitit/active").iterdir())


def test_interrupt_leaves_an_empty_queue(workflow, cluster):
    """Running jobs are told, so that they can save; jobs that wait go."""
    workflow.write(LONG)
    main = workflow.start("--seconds-between-status-checks", "20")
    workflow.wait_for(lambda: all(workflow.has(f"{n}.started")() for n in range(5)))
    assert len(cluster.queue()) == 6
    started = time.monotonic()
    os.kill(main.pid, signal.SIGINT)
    assert main.wait(15) == 1
    assert time.monotonic() - started < 10  # not the 20 s between two looks
    cluster.wait_until_empty()
    assert [n for n in range(5) if not workflow.has(f"{n}.saved")()] == [], workflow.logs()
    assert notes(workflow) == []


def test_a_cancelled_job_has_time_to_save(workflow, cluster):
    workflow.write(SLOW)
    (workflow.folder / "slow.py").write_text(SAVES_SLOWLY)
    workflow.start()
    workflow.wait_for(workflow.has("started"))
    (job_id,) = cluster.queue()
    cluster.run("scancel", job_id)
    assert workflow.main.wait(60) == 1
    cluster.wait_until_empty()
    assert workflow.text("saved") == "SIGTERM", workflow.logs()


def test_an_interrupt_in_the_middle_of_a_submission_leaves_an_empty_queue(workflow, cluster, tmp_path):
    """Of a terminal, which sends it to sbatch as well: Slurm has the job, its id is not known yet."""
    slow = tmp_path / "slow/sbatch"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/bash\nsaid=$({cluster.which("sbatch")} "$@")\ntouch submitting\nsleep 2\necho "$said"\n')
    slow.chmod(0o755)
    workflow.write('rule all:\n    output: "out.txt"\n    shell: "sleep 60"\n')
    main = workflow.start(env={"PATH": f"{slow.parent}:{workflow.env['PATH']}"})
    workflow.wait_for(workflow.has("submitting"))
    assert cluster.queue() != []
    os.killpg(main.pid, signal.SIGINT)
    assert main.wait(20) == 1
    cluster.wait_until_empty()


def test_a_job_that_outlives_the_main_process_is_taken_over_unless_other_work_is_asked_for(workflow, cluster):
    workflow.write(ONCE)
    workflow.start()
    workflow.wait_for(workflow.has("started"))
    workflow.main.kill()  # -9, and only the main process
    workflow.main.wait()
    workflow.run("--unlock", options=())
    (job_id,) = cluster.queue()

    # two jobs must not write one file
    workflow.write(ONCE.replace("touch {output}", "echo new > {output}"))
    printed = workflow.run("--rerun-incomplete", status=1)
    assert f"job {job_id} was submitted with other settings" in printed
    assert f"scancel {job_id}" in printed

    workflow.write(ONCE)
    workflow.start("--rerun-incomplete")
    workflow.wait_for(lambda: f"still runs as slurm job {job_id}, log: " in workflow.printed())
    assert cluster.queue() == [job_id]
    (workflow.folder / "go").touch()
    assert workflow.main.wait(40) == 0, workflow.printed()
    assert workflow.text("starts").split() == [job_id]
    assert notes(workflow) == []


def test_a_warning_leads_to_save_and_requeue_under_the_same_id(workflow, cluster):
    """Sites announce preemption by different signals; a lost node or preemption without one is Slurm's own requeue."""
    workflow.write(SAVING)
    (workflow.folder / "saving.py").write_text(SAVES)
    workflow.start()
    for how in ("USR1", "USR2", "TERM", "requeue"):
        workflow.wait_for(workflow.has(f"{how}.started"))
        job_id = workflow.wait_for(lambda how=how: workflow.text(f"{how}.started"))
        told = ("scontrol", "requeue") if how == "requeue" else ("scancel", f"--signal={how}")
        cluster.run(*told, job_id)
    assert workflow.main.wait(90) == 0, workflow.printed()
    for how in ("USR1", "USR2", "TERM", "requeue"):
        job_id = workflow.text(f"{how}.started")
        assert workflow.text(f"{how}.txt") == f"{job_id} 1"
        assert workflow.text(f"{how}.saved").split()[1] == job_id


def test_an_edited_configuration_does_not_reach_a_job_that_waits(workflow, cluster):
    workflow.write(HELD)
    (workflow.folder / "config.yaml").write_text("rate: 1e-3\nnested: {value: file, other: 1}\nword: file\n")
    (workflow.folder / "over.yaml").write_text("nested: {value: over}\n")
    workflow.start("--configfile", "over.yaml", "--config", "word=line")
    (job_id,) = workflow.wait_for(cluster.queue)
    (workflow.folder / "config.yaml").write_text("rate: edited\nnested: {value: edited}\nword: edited\n")
    (workflow.folder / "over.yaml").write_text("nested: {value: edited}\n")
    cluster.run("scontrol", "release", job_id)
    assert workflow.main.wait(40) == 0, workflow.printed()
    assert workflow.text("out.txt").split() == ["1e-3", "over", "line"]


def test_a_queue_that_does_not_answer_fails_nothing(workflow, cluster, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    squeue = broken / "squeue"
    squeue.write_text(
        f"#!/bin/sh\ncd {str(broken)!r}\n"
        # it answers as the call begins, or the call would be refused
        f'if test -e ok || test ! -e asked; then touch asked; exec {cluster.which("squeue")} "$@"; fi\n'
        "echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1\n"
    )
    squeue.chmod(0o755)
    workflow.write('rule all:\n    output: "out.txt"\n    shell: "touch {output}"\n')
    workflow.start(env={"PATH": f"{broken}:{workflow.env['PATH']}"})
    workflow.wait_for(lambda: workflow.printed().count("Unable to contact slurm controller; asking again") >= 3)
    assert workflow.main.poll() is None
    (broken / "ok").touch()
    assert workflow.main.wait(20) == 0, workflow.printed()

"""What takes minutes: a real time limit, and more jobs than a study has."""

import pickle
import re
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

LIMITED = """
rule all:
    output: "out.txt"
    resources: runtime=2
    shell: "python work.py && mv done {output}"
"""
WORK = """
import os, signal, sys, time
from pathlib import Path
state = Path("state")
done = int(state.read_text()) if state.exists() else 0
with open("legs", "a") as file:
    print(os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_RESTART_COUNT", "0"), done, file=file)
def save(number, frame):
    state.write_text(str(done))
    sys.exit(75)
signal.signal(signal.SIGUSR2, save)
while done < 150:
    time.sleep(1)
    done += 1
Path("done").write_text(str(done))
"""
# In the place of srun: the output and submitit's result, so that the machine is not busy with 1,200 Pythons.
MOCK = """\
#!/bin/bash
folder=${{@: -1}}
touch "out/$(basename "$folder")"
cp {result} "$folder/${{SLURM_JOB_ID}}_0_result.pkl"
"""


def test_a_job_that_meets_its_limit_saves_and_goes_on_under_the_same_id(workflow):
    """150 s of work under a limit of two minutes; Slurm warns up to a minute early, so there may be three legs."""
    workflow.write(LIMITED)
    (workflow.folder / "work.py").write_text(WORK)
    workflow.run("--submitit-signal-delay", "40", timeout=500)
    assert workflow.text("out.txt") == "150"
    legs = [line.split() for line in workflow.text("legs").splitlines()]
    assert len({job for job, _, _ in legs}) == 1
    assert [int(restarts) for _, restarts, _ in legs] == list(range(len(legs)))
    assert 2 <= len(legs) <= 4
    assert [int(done) for _, _, done in legs] == sorted({int(done) for _, _, done in legs})


def test_a_job_that_keeps_nothing_fails_at_its_limit_and_not_when_preempted(workflow, cluster):
    """Preempted it is queued again, since that says nothing of how long it takes."""
    workflow.write(LIMITED.replace("runtime=2", "runtime=4, resumable=0"))
    (workflow.folder / "work.py").write_text(WORK.replace("state.write_text(str(done))", "").replace("150", "1000"))
    workflow.start("--submitit-signal-delay", "30")
    workflow.wait_for(workflow.has("legs"))
    (job_id,) = cluster.queue()
    cluster.run("scancel", "--signal=TERM", job_id)
    assert workflow.main.wait(600) == 1
    assert "met its limit of 4 minutes and would begin anew: raise its runtime" in workflow.printed()
    legs = [line.split() for line in workflow.text("legs").splitlines()]
    assert [(job, restarts) for job, restarts, _ in legs] == [(job_id, "0"), (job_id, "1")]


def test_1200_jobs(workflow, cluster, tmp_path):
    """The main process stays below 300 MB; prints what it took."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "result.pkl").write_bytes(pickle.dumps(("success", None)))
    mock = tmp_path / "bin/srun"
    mock.write_text(MOCK.format(result=tmp_path / "result.pkl"))
    mock.chmod(0o755)
    workflow.write(
        "rule all:\n    input: expand('out/{n}', n=range(1200))\n"
        "rule one:\n    output: 'out/{n}'\n    shell: 'touch {output}'\n"
    )
    (workflow.folder / "out").mkdir()
    began = time.monotonic()
    main = workflow.start("--jobs", "1200", env={"PATH": f"{tmp_path / 'bin'}:{workflow.env['PATH']}"})
    submitted, looks, peak = [], [], 0
    while main.poll() is None:
        now = time.monotonic()
        submitted.append((now, workflow.printed().count(" is slurm job ")))
        cluster.queue()
        looks.append(time.monotonic() - now)
        status = Path(f"/proc/{main.pid}/status").read_text()
        peak = max([peak, *(int(kilobytes) for kilobytes in re.findall(r"VmHWM:\s+(\d+)", status))])
        time.sleep(1)
    took = time.monotonic() - began
    assert main.returncode == 0, workflow.printed()[-3000:]
    assert len(list((workflow.folder / "out").iterdir())) == 1200
    first = next(at for at, n in submitted if n)
    last = next(at for at, n in submitted if n == 1200)
    rate, look = 1200 / (last - first), sorted(looks)[len(looks) // 2]
    print(f"1,200 jobs in {took:.0f} s: {rate:.1f} submissions/s, {peak / 1024:.0f} MB, squeue {look * 1000:.0f} ms")
    assert peak / 1024 < 300

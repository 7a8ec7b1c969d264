"""Thirty SIGKILLs at random moments over the micro study, each followed by the documented commands."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checkout import compared

MICRO = ("--config", "study=micro")
KILLS = 30
LONGEST = 25.0  # seconds; the whole study takes about that long


def start(checkout):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["snakemake", "-c2", *MICRO],
        cwd=checkout.folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def jobs_of(group):
    """Process ids of the `depthbench` commands in a process group."""
    listed = subprocess.run(["ps", "-eo", "pid,pgid,args"], capture_output=True, text=True, check=True).stdout
    rows = (line.split(None, 2) for line in listed.splitlines()[1:])
    return [int(pid) for pid, pgid, args in rows if int(pgid) == group and args.startswith("python -m depthbench")]


def kill(main, draw):
    """Kill the whole group, Snakemake alone, or one of its jobs; return what was hit."""
    target = draw.choice(["all", "snakemake", "job"])
    if target == "job" and (jobs := jobs_of(main.pid)):
        os.kill(draw.choice(jobs), signal.SIGKILL)
        main.wait()
        return "job"
    (os.killpg if target == "all" else os.kill)(main.pid, signal.SIGKILL)
    main.wait()
    while target == "snakemake" and jobs_of(main.pid):  # its jobs live on; a second copy would be refused
        time.sleep(0.2)
    return target


@pytest.mark.slow
def test_thirty_kills_change_nothing(checkout, finished):
    draw = random.Random(20260929)
    hits = []
    while len(hits) < KILLS:
        main = start(checkout)
        try:
            assert main.wait(timeout=draw.uniform(0.3, LONGEST)) == 0
            shutil.rmtree(checkout.folder / "results")  # it got through: begin again
            continue
        except subprocess.TimeoutExpired:
            hits.append(kill(main, draw))
        checkout.call("snakemake", "--unlock", *MICRO)
    assert set(hits) == {"all", "snakemake", "job"}
    checkout.snakemake("-c2", *MICRO)
    assert "Nothing to be done" in checkout.snakemake("-n", *MICRO)
    assert compared(checkout.folder) == compared(finished.folder)

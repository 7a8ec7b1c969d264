"""Thirty SIGKILLs over the micro study on a real Slurm: of trainings, of Snakemake inside and outside, of a node."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from checkout import Checkout, compared
from flows import Workflow

MICRO = ("--config", "study=micro")
CALL = ("--jobs", "4", "--keep-going", "--rerun-incomplete", *MICRO)
KILLS = 30
LONGEST = 30.0  # seconds between two
SECONDS_DOWN = 25  # Slurm misses only jobs that began 20 s before a node is back
TARGETS = ("rank", "inner", "outer", "node")


class Processes:
    """What runs on this machine now, as far as it belongs to the checkout in `folder`."""

    def __init__(self, folder):
        listed = subprocess.run(
            ["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True
        ).stdout
        rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
        self.args = {int(pid): args for pid, _, args in rows}
        self.parents = {int(pid): int(parent) for pid, parent, _ in rows}
        self.here = {pid for pid in self.args if self._folder(pid) == folder}

    @staticmethod
    def _folder(pid):
        try:
            return Path(f"/proc/{pid}/cwd").readlink()
        except OSError:
            return None

    def ranks(self):
        return [pid for pid in self.here if self.args[pid].startswith("python -m depthbench")]

    def inner(self):
        return [pid for pid in self.here if "-m snakemake" in self.args[pid] and "bash" not in self.args[pid][:12]]

    def trained(self):
        """Count the processes that train each run."""
        words = (self.args[pid].split() for pid in self.ranks())
        return Counter(w[w.index("--out") + 1] for w in words if w[2].startswith("depthbench") and "train" in w[:5])

    def below(self, roots):
        found = set(roots)
        while more := {pid for pid, parent in self.parents.items() if parent in found} - found:
            found |= more
        return found


def node_processes(cluster, node, processes):
    """The daemon of a node, its steps and all that they have started."""
    jobs = cluster.run("squeue", "--noheader", f"--nodelist={node}", "--format=%i").split()
    steps = {pid for pid, args in processes.args.items() for job in jobs if args.startswith(f"slurmstepd: [{job}.")}
    daemon = int((cluster.folder / f"slurmd.{node}.pid").read_text())
    return [daemon, *processes.below(steps)]


def kill(what, cluster, workflow, draw):
    """Kill one thing of a kind; return whether there was one."""
    now = Processes(workflow.folder)
    if what == "outer":
        workflow.stop()
        return True
    if what == "node":
        busy = set(cluster.run("squeue", "--noheader", "--states=RUNNING", "--format=%N").split())
        node = draw.choice(sorted(busy) or ["n1"])
        found = node_processes(cluster, node, now)
    else:
        found = {"rank": now.ranks, "inner": now.inner}[what]()
        found = [draw.choice(sorted(found))] if found else []
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    if what == "node":
        time.sleep(SECONDS_DOWN)
        cluster.run("slurmd", "-N", node, "-f", str(cluster.folder / "slurm.conf"))
    return bool(found)


def begin(workflow):
    workflow.run("--unlock", *MICRO)
    workflow.start(*CALL)


@pytest.mark.slow
def test_thirty_kills_on_slurm_change_nothing(cluster, tmp_path):
    draw = random.Random(20261129)
    workflow = Workflow(Checkout(tmp_path / "on slurm").folder, cluster.env)
    hits = []
    begin(workflow)
    while len(hits) < KILLS:
        end = time.monotonic() + draw.uniform(0.5, LONGEST)
        while time.monotonic() < end and workflow.main.poll() is None:
            twice = {run: n for run, n in Processes(workflow.folder).trained().items() if n > 1}
            assert not twice, workflow.printed()
            time.sleep(0.3)
        if workflow.main.poll() == 0:  # it got through: begin again
            shutil.rmtree(workflow.folder / "results")
            begin(workflow)
        elif workflow.main.poll() is not None:  # some jobs failed: the same call
            begin(workflow)
        elif kill(what := draw.choice(TARGETS), cluster, workflow, draw):
            hits.append(what)
            if what == "outer":
                begin(workflow)
    while workflow.main.wait(300) != 0:
        begin(workflow)
    assert set(hits) == set(TARGETS)
    assert "E-LOCK" not in workflow.printed() + workflow.logs()
    assert cluster.queue() == []
    undisturbed = Checkout(tmp_path / "undisturbed")
    undisturbed.snakemake("-c2", *MICRO)
    assert compared(workflow.folder) == compared(undisturbed.folder)

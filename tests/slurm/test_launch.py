"""Training on several processes of one and of two nodes, as the rule starts it, in a real Slurm."""

import json
import re
import shlex
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from depthbench import train

STEPS = 28


@pytest.fixture
def job(cluster, prepared, tmp_path):
    """Write a batch script that trains into `run`, and the ways to run it."""
    return Job(cluster, prepared, tmp_path)


class Job:
    def __init__(self, cluster, prepared, folder):
        self.cluster = cluster
        self.folder, self.log, self.run = folder, folder / "log.txt", folder / "run"
        self.spec = prepared.spec(steps=STEPS, batch_sequences=8)
        self.script = folder / "job.sh"
        self.data = prepared.folder

    def submit(self, *options, ranks=(), step=()):
        command = [
            *step, sys.executable, "-m", "depthbench.launch", *ranks, "train",
            "--spec", json.dumps(self.spec.as_dict()), "--data", str(self.data),
            "--out", str(self.run), "--micro-batch", "2", "--checkpoint-seconds", "0",
        ]  # fmt: skip
        self.script.write_text(f"#!/bin/sh\n{shlex.join(command)}\necho ended with $?\n")
        options = [*options, "--time=5", "--open-mode=append", f"--output={self.log}", str(self.script)]
        return self.cluster.run("sbatch", "--parsable", *options).strip()

    def steps_done(self):
        path = self.run / "resume" / "metrics.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def training(self, id):
        """Wait until a few steps are done."""
        self._wait(id, 120, lambda: self.steps_done() > 3)

    def ended(self, id, seconds=120):
        """Wait for the end of the job and return its log."""
        self._wait(id, seconds, lambda: id not in self.cluster.queue())
        return self.log.read_text()

    def _wait(self, id, seconds, condition):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                self.cluster.run("scancel", id)
                raise AssertionError(self.log.read_text())
            time.sleep(0.02)

    def leg(self):
        return json.loads((self.run / "run.json").read_text())["legs"][-1]

    def equals_one_process(self, data):
        assert train.train(self.spec, data, self.folder / "alone", 2, 600.0)
        found, expected = (load_file(p / "model.safetensors") for p in (self.run, self.folder / "alone"))
        for name, tensor in expected.items():
            assert (found[name] - tensor).norm() <= 1e-5 * tensor.norm(), name


def test_two_processes_on_one_node(job, prepared):
    log = job.ended(job.submit(ranks=("--ranks", "2")))
    assert "ended with 0" in log
    assert log.count("ok at step") == 1
    assert [job.leg()[key] for key in ("ranks", "nodes", "accumulation")] == [2, 1, 2]
    job.equals_one_process(prepared.folder)


def test_gpus_of_the_job_that_pytorch_cannot_use_are_told(job):
    """The pretended GPUs of this cluster are such."""
    log = job.ended(job.submit("--gres=gpu:2"))
    assert "E-GPU Slurm gave 2 GPUs, PyTorch can use 0" in log
    assert "ended with 2" in log


EACH = ("--ranks", "1")  # a process on each node
OUTER = ("srun", "--overlap", "--nodes=1", "--ntasks=1")  # a job's program runs once, on the first node


@pytest.mark.slow
def test_two_nodes_stop_at_a_signal_and_go_on(job, prepared):
    id = job.submit("--nodes=2", ranks=EACH, step=OUTER)
    job.training(id)
    job.cluster.run("scancel", "--signal=USR2", id)
    log = job.ended(id)
    assert re.search(r"ended with [1-9]", log)  # 75, or 143 where srun ended the other node's launcher first
    assert log.count("SIGUSR2: saved step") == 1
    assert not (job.run / "run.json").exists()
    assert "ended with 0" in job.ended(job.submit("--nodes=2", ranks=EACH, step=OUTER))
    assert [job.leg()[key] for key in ("ranks", "nodes", "accumulation")] == [2, 2, 2]
    job.equals_one_process(prepared.folder)


@pytest.mark.slow
def test_a_process_killed_on_one_node_ends_the_other(job):
    id = job.submit("--nodes=2", ranks=EACH)
    job.training(id)
    listed = subprocess.check_output(["ps", "-ww", "-eo", "pid,args"], text=True).splitlines()
    ranks = [line.split()[0] for line in listed if "-m depthbench train" in line and str(job.run) in line]
    subprocess.run(["kill", "-9", ranks[-1]], check=True)
    log = job.ended(id, seconds=60)
    assert re.search(r"ended with [1-9]", log)

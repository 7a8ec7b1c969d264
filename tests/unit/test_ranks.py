"""Several processes train what one trains: real ones, over gloo on the CPU."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from depthbench import checkpoint, device, launch, ranks, train
from depthbench.data.loader import Windows
from depthbench.designs import DESIGNS
from depthbench.errors import UserError

STEPS, BATCH = 10, 8
FAMILIES = ("preln", "sandwich", "hc", "attnres_full", "moda")


def command(prepared, spec, folder, processes, micro_batch=1):
    return [
        sys.executable, "-m", "depthbench.launch", "--ranks", str(processes),
        "train", "--spec", json.dumps(spec.as_dict()), "--data", str(prepared.folder), "--out", str(folder),
        "--micro-batch", str(micro_batch), "--checkpoint-seconds", "0",
    ]  # fmt: skip


def launched(*args, **options):
    return subprocess.run(command(*args, **options), capture_output=True, text=True, timeout=240)


def ranks_of(launcher):
    """Process ids of the ranks, in their order."""
    listed = subprocess.check_output(["ps", "-o", "pid=", "--ppid", str(launcher.pid)], text=True)
    return sorted(map(int, listed.split()))


def interrupt(prepared, spec, folder, act):
    """Start two processes, `act` on the launcher once they train, and return how it ended and what it said."""
    metrics = folder / "resume" / "metrics.jsonl"
    with subprocess.Popen(
        command(prepared, spec, folder, 2),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as launcher:
        while not metrics.exists() or metrics.read_text().count("\n") < 3:
            assert launcher.poll() is None, launcher.stdout.read()
            time.sleep(0.002)
        act(launcher)
        said, _ = launcher.communicate(timeout=60)
    return launcher.returncode, said


def distance(found, expected):
    """||found - expected|| / ||expected|| over all weights of a model together, in float64."""
    assert found.keys() == expected.keys()
    error = sum((found[name].double() - tensor.double()).square().sum() for name, tensor in expected.items())
    return (error / sum(tensor.double().square().sum() for tensor in expected.values())).sqrt().item()


def weights(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_the_shares_together_are_the_global_batch(prepared, monkeypatch, processes):
    """Case C10, for each step of two epochs."""
    windows = Windows(prepared.folder, 32)
    monkeypatch.setattr(ranks, "count", lambda: processes)
    for step in range(2 * windows.n_windows // BATCH):
        parts = []
        for number in range(processes):
            monkeypatch.setattr(ranks, "rank", lambda number=number: number)
            parts.append(windows.batch(step, BATCH, 0, ranks.share(BATCH)))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert np.array_equal(np.concatenate(parts), windows.batch(step, BATCH, 0))


@pytest.mark.parametrize("design", [d if d == "moda" else pytest.param(d, marks=pytest.mark.slow) for d in FAMILIES])
def test_two_processes_train_what_one_does(prepared, tmp_path, design):
    """Case D07: 2 ranks x accumulation 4 = 1 rank x accumulation 8, to float32's rounding."""
    spec = prepared.spec(design, steps=STEPS, batch_sequences=BATCH)
    done = launched(prepared, spec, tmp_path / "two", 2)
    assert done.returncode == 0, done.stderr
    assert train.train(spec, prepared.folder, tmp_path / "one", 1, 600.0)
    assert distance(weights(tmp_path / "two"), weights(tmp_path / "one")) <= 1e-6
    one, two = (json.loads((tmp_path / n / "run.json").read_text())["legs"][0] for n in ("one", "two"))
    assert (one["ranks"], one["accumulation"]) == (1, 8)
    assert (two["ranks"], two["nodes"], two["accumulation"]) == (2, 1, 4)


def test_a_signal_to_one_of_them_stops_both_and_any_number_goes_on(prepared, tmp_path):
    """Two are stopped, one goes on and is stopped, two finish: as if one had trained undisturbed."""
    spec = prepared.spec(steps=28, batch_sequences=BATCH)
    status, said = interrupt(
        prepared, spec, tmp_path / "run", lambda launcher: os.kill(ranks_of(launcher)[1], signal.SIGUSR2)
    )
    assert status == 75, said
    assert said.count("SIGUSR2: saved step") == 1
    tensors, record = checkpoint.latest(tmp_path / "run/resume")
    assert 3 <= record["step"] < 28

    alone = train.Training(spec, Windows(prepared.folder, 32), tmp_path / "run/resume", 1)
    assert {f"model.{name}" for name in alone.model.state_dict()} < tensors.keys()
    assert alone.step == record["step"]
    alone.advance()
    alone.save()
    done = launched(prepared, spec, tmp_path / "run", 2)
    assert done.returncode == 0, done.stderr
    legs = json.loads((tmp_path / "run/run.json").read_text())["legs"]
    assert [leg["from_step"] for leg in legs] == [0, record["step"], record["step"] + 1]
    assert [leg["ranks"] for leg in legs] == [2, 1, 2]
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 29))

    assert train.train(spec, prepared.folder, tmp_path / "one", 1, 600.0)
    assert distance(weights(tmp_path / "run"), weights(tmp_path / "one")) <= 1e-5


def test_a_killed_process_ends_the_other_and_the_run_goes_on_to_the_bit(prepared, tmp_path):
    spec = prepared.spec(steps=28, batch_sequences=BATCH)
    status, said = interrupt(
        prepared, spec, tmp_path / "run", lambda launcher: os.kill(ranks_of(launcher)[1], signal.SIGKILL)
    )
    assert status == 128 + signal.SIGKILL, said
    _, record = checkpoint.latest(tmp_path / "run/resume")
    assert 0 < record["step"] < 28
    for folder in ("run", "undisturbed"):
        done = launched(prepared, spec, tmp_path / folder, 2)
        assert done.returncode == 0, done.stderr
    found, expected = weights(tmp_path / "run"), weights(tmp_path / "undisturbed")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_signals_to_the_launcher_or_its_group_save(prepared, tmp_path, number, send):
    spec = prepared.spec(steps=28, batch_sequences=BATCH)
    status, said = interrupt(prepared, spec, tmp_path, lambda launcher: send(launcher.pid, number))
    assert status == 75, said
    assert said.count(f"{number.name}: saved step") == 1


def test_what_is_wrong_is_told_once_and_nobody_waits(prepared, tmp_path):
    few = prepared.spec(steps=STEPS, batch_sequences=1)
    done = launched(prepared, few, tmp_path / "few", 2)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "E-CONFIG batch_sequences=1: less than one for each of 2 processes; train on 1 GPUs or fewer"
    ]
    (tmp_path / "full/resume").mkdir(parents=True)
    (tmp_path / "full/resume/log.txt").symlink_to("/dev/full")  # fails on rank 0, while the other waits
    done = launched(prepared, prepared.spec(steps=STEPS), tmp_path / "full", 2)
    assert done.returncode == 2
    assert done.stderr.startswith("E-DISK")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("asked", "given", "there", "expected"), [(None, "", 0, 1), (None, "", 4, 4), (None, "2", 4, 2), (3, "2", 4, 3)]
)
def test_as_many_processes_as_asked_for_or_given_or_there(monkeypatch, asked, given, there, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", given or "0")
    assert launch.ranks_here(asked) == expected


@pytest.mark.parametrize(
    ("most", "nodes", "there", "expected"), [(0, 1, 4, 1), (1, 1, 4, 1), (4, 1, 8, 4), (4, 1, 2, 2), (8, 2, 8, 4)]
)
def test_no_more_gpus_than_the_job_wants(monkeypatch, most, nodes, there, expected):
    """A machine without Slurm gives all it has: the demo's four sequences would not go round eight GPUs."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", str(nodes))
    assert launch.ranks_here(None, most) == expected


def test_an_allocation_with_more_gpus_than_the_job_wants_gives_it_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "8")
    assert launch.ranks_here(None, 2) == 2


@pytest.mark.parametrize("there", [0, 1])
def test_gpus_that_pytorch_cannot_use_are_an_error(monkeypatch, there):
    """A build without CUDA in a job with GPUs would train for days on the CPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    with pytest.raises(UserError, match=rf"E-GPU Slurm gave 2 GPUs, PyTorch can use {there}; install"):
        launch.ranks_here(None)


def test_what_is_no_training_does_not_pass_over_gpus_either(monkeypatch):
    """Analyses would take hours on a core, and times of a prefill would be those of a CPU."""
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        UserError, match=r"E-GPU Slurm gave 2 GPUs, PyTorch can use 0; install .* SLURM_GPUS_ON_NODE=0$"
    ):
        device.choose(1)
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "0")
    assert device.choose(1).type == "cpu"


@pytest.mark.parametrize(("asked", "there"), [(5, 4), (0, 4), (-1, 0)])
def test_more_processes_than_gpus_are_refused(monkeypatch, asked, there):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    with pytest.raises(UserError, match=rf"E-GPU {asked} processes asked for, PyTorch can use {there} GPUs; ask for"):
        launch.ranks_here(asked)


@pytest.mark.parametrize("design", DESIGNS)
def test_every_parameter_has_a_gradient(prepared, tmp_path, design):
    """Case D12: DDP is not asked to look for unused parameters."""
    run = train.Training(prepared.spec(design), Windows(prepared.folder, 32), tmp_path / "resume", 4)
    run.advance()
    assert not [name for name, parameter in run.model.named_parameters() if parameter.grad is None]


def test_on_several_nodes_srun_is_not_bound_to_the_cpus_of_the_first(tmp_path):
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/bash\nenv; echo called $*\n")
    srun.chmod(0o755)
    job = {"SLURM_JOB_NUM_NODES": "2", "SLURM_CPU_BIND": "quiet,mask_cpu:0x3", "SLURM_CPU_BIND_LIST": "0x3"}
    environment = os.environ | job | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    called = [sys.executable, "-m", "depthbench.launch", "train", "--spec", "{}"]
    found = subprocess.run(called, env=environment, capture_output=True, text=True, check=True).stdout
    assert "depthbench.launch train --spec {}" in found
    assert "SLURM_JOB_NUM_NODES=2" in found
    assert "SLURM_CPU_BIND" not in found


def test_a_run_without_gpus_is_one_process_in_an_allocation_of_two_nodes(prepared, tmp_path):
    """Two would sum in another order than the same run elsewhere."""
    command_ = command(prepared, prepared.spec(steps=1), tmp_path, 1)
    at = command_.index("--ranks")
    command_[at : at + 2] = ["--most", "0"]
    subprocess.run(command_, env=os.environ | {"SLURM_JOB_NUM_NODES": "2", "PATH": ""}, check=True)
    assert json.loads((tmp_path / "run.json").read_text())["legs"][0]["ranks"] == 1

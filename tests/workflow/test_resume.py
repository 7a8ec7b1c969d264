"""Exact resume through the command line: a real SIGKILL, then a signal, then the end; equal to the bit."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from depthbench import checkpoint, train
from depthbench.data.loader import Windows
from depthbench.designs import DESIGNS

NOT_COMPARED = {"time", "tokens_per_s", "memory_bytes"}
BATCH, MICRO_BATCH, STEPS = 4, 2, 40


def command(prepared, spec, folder):
    return [
        sys.executable, "-m", "depthbench", "train", "--spec", json.dumps(spec.as_dict()),
        "--data", str(prepared.folder), "--out", str(folder),
        "--micro-batch", str(MICRO_BATCH), "--checkpoint-seconds", "0",
    ]  # fmt: skip


def stop(prepared, spec, folder, after, number):
    """Start a training process, send it a signal once it has logged `after` steps, and return its exit status."""
    metrics = folder / "resume" / "metrics.jsonl"
    with subprocess.Popen(command(prepared, spec, folder), stdout=subprocess.DEVNULL) as process:
        while not metrics.exists() or metrics.read_text().count("\n") < after:
            assert process.poll() is None
            time.sleep(0.002)
        os.kill(process.pid, number)
        return process.wait()


def logged(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in NOT_COMPARED} for row in rows]


FAST = ("preln", "attnres_full")  # a plain stream, and a workspace


@pytest.mark.parametrize(
    "design", [d if d in FAST else pytest.param(d, marks=pytest.mark.slow) for d in DESIGNS if d != "denseformer"]
)
def test_killed_stopped_and_finished_equals_undisturbed(prepared, tmp_path, design):
    spec = prepared.spec(design, steps=STEPS)
    windows = Windows(prepared.folder, spec.sequence_length)
    border = windows.n_windows // BATCH  # the step in which the first epoch ends
    assert 10 < border < STEPS - 10, "the corpus of the fixture has changed"
    folder = tmp_path / "run"

    assert stop(prepared, spec, folder, border - 6, signal.SIGKILL) == -signal.SIGKILL
    _, killed = checkpoint.latest(folder / "resume")
    assert 0 < killed["step"] < border
    assert stop(prepared, spec, folder, border + 3, signal.SIGUSR2) == 75

    tensors, stopped = checkpoint.latest(folder / "resume")
    assert border < stopped["step"] < STEPS
    undisturbed = train.Training(spec, windows, tmp_path / "undisturbed", MICRO_BATCH)
    for _ in range(stopped["step"]):
        undisturbed.advance()
    state = {f"model.{n}": t for n, t in undisturbed.model.state_dict().items()}
    state |= undisturbed.optimizer.moments()
    assert state.keys() == tensors.keys()
    assert all(torch.equal(tensors[name], value) for name, value in state.items())
    assert stopped["next_windows"] == windows.ids(stopped["step"], BATCH, spec.seed).tolist()

    subprocess.run(command(prepared, spec, folder), check=True, stdout=subprocess.DEVNULL)
    for _ in range(STEPS - stopped["step"]):
        undisturbed.advance()
    weights = load_file(folder / "model.safetensors")
    assert all(torch.equal(weights[name], value) for name, value in undisturbed.model.state_dict().items())
    rows = logged(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert rows == logged(tmp_path / "undisturbed" / "metrics.jsonl")
    record = json.loads((folder / "run.json").read_text())
    assert [leg["from_step"] for leg in record["legs"]] == [0, killed["step"], stopped["step"]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_every_stop_signal_saves_and_leaves_with_75(prepared, tmp_path, number):
    spec = prepared.spec(steps=STEPS)
    assert stop(prepared, spec, tmp_path, 5, number) == 75
    assert not (tmp_path / "run.json").exists()
    assert checkpoint.latest(tmp_path / "resume")[1]["step"] >= 5

"""A whole training of each design of the tiny study: `eager` takes the steps that `reference` takes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from depthbench import config, runs

ROOT = Path(__file__).parents[2]
STUDY = config.load({**yaml.safe_load((ROOT / "config.yaml").read_text()), "study": "tiny"})
ALL = runs.union(runs.suites(STUDY))
RUNS = {run.design: run for run in ALL if (run.n_layers, run.d_model, run.scale, run.seed) == (8, 40, "t", 0)}


def depthbench(*arguments):
    subprocess.run([sys.executable, "-m", "depthbench", *map(str, arguments)], check=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "embedded_ci-v512"
    depthbench("prepare", "--spec", runs.dumps(runs.data_spec(STUDY).as_dict()), "--out", folder)
    return folder


@pytest.fixture
def losses(data, tmp_path):
    """Train a run with a backend, by default at its own rate, and return the loss of every step."""

    def train(spec, kernels, lr=None):
        out = tmp_path / f"{kernels}-{lr}"
        text = runs.dumps({**spec.as_dict(), "lr": lr or spec.lr})
        depthbench("train", "--spec", text, "--data", data, "--out", out, "--kernels", kernels)
        assert [leg["kernels"] for leg in json.loads((out / "run.json").read_text())["legs"]] == [kernels]
        return [json.loads(row)["loss"] for row in (out / "metrics.jsonl").read_text().splitlines()]

    return train


def apart(some, others):
    return [abs(a - b) for a, b in zip(some, others, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("design", RUNS)
def test_eager_trains_as_reference_does(design, losses):
    """Within 1e-4 after 20 steps and 1e-3 to the end, or as near as training itself lets a rounding stay.

    A rate larger by 1e-7 of itself moves every step by less than a rounding of most weights.
    """
    spec = runs.spec(STUDY, RUNS[design])
    reference = losses(spec, "reference")
    found = apart(losses(spec, "eager"), reference)
    print(f"{design}: {len(found)} steps, apart {max(found[:20]):.1e} by step 20, {max(found):.1e} by the end")
    assert len(found) == spec.steps
    assert max(found[:20]) < 1e-4
    if max(found) > 1e-3:
        carried = apart(losses(spec, "reference", float(spec.lr) * (1 + 1e-7)), reference)
        print(f"{design}: reference apart from itself by {max(carried):.1e}")
        assert max(found) < 10 * max(carried)

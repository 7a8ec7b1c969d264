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


@pytest.mark.slow
@pytest.mark.parametrize("design", RUNS)
def test_eager_trains_as_reference_does(design, data, tmp_path):
    spec, losses = runs.spec(STUDY, RUNS[design]), {}
    for kernels in ("reference", "eager"):
        out = tmp_path / kernels
        depthbench("train", "--spec", runs.dumps(spec.as_dict()), "--data", data, "--out", out, "--kernels", kernels)
        assert [leg["kernels"] for leg in json.loads((out / "run.json").read_text())["legs"]] == [kernels]
        rows = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        losses[kernels] = [row["loss"] for row in rows]
    apart = [abs(a - b) for a, b in zip(*losses.values(), strict=True)]
    print(f"{design}: {len(apart)} steps, apart {max(apart[:20]):.1e} by step 20, {max(apart):.1e} by the end")
    assert len(apart) == spec.steps
    assert max(apart[:20]) < 1e-4
    assert max(apart) < 1e-3

import json
import re
import subprocess
import sys

import pytest

from depthbench import config, runs
from depthbench.errors import UserError


def every_run(raw):
    for study in raw["studies"]:
        loaded = config.load({**raw, "study": study})
        for run in runs.union(runs.suites(loaded)):
            yield loaded, run


def test_every_path_parses_back_to_its_run(raw):
    found = list(every_run(raw))
    assert len(found) > 20
    for _, run in found:
        assert runs.parse(run.path) == run
        assert re.fullmatch(runs.PATTERN, run.path)


@pytest.mark.parametrize(
    "run",
    [
        runs.Run("attnres_block", "400m", 1216, 16, "5e-4"),
        runs.Run("attnres", "400m", 1216, 16, "5e-4"),
        runs.Run("a1_b", "t", 8, 1, "15e-4", 12),
        runs.Run("a", "1600m", 2048, 28, "1e4", 3),
    ],
)
def test_names_with_separators_parse_back(run):
    assert runs.parse(run.path) == run


@pytest.mark.parametrize(
    "path",
    [
        "preln/t-d28-l16/lr0.01-s0", "preln/t-d28-l16/lr1e-2", "preln/t-d28-l16/lr1e-2-s0/x",
        "Preln/t-d28-l16/lr1e-2-s0",
        "preln/t_x-d28-l16/lr1e-2-s0", "../preln/t-d28-l16/lr1e-2-s0",
    ],
)  # fmt: skip
def test_other_paths_are_no_runs(path):
    with pytest.raises(ValueError, match="is not the path of a run"):
        runs.parse(path)


def test_tiny_shares_runs_between_suites(raw):
    loaded = config.load({**raw, "study": "tiny"})
    views = runs.suites(loaded)
    n = len(loaded.designs)
    # main: designs x 3 shapes; 3 of 4 swept rates are new; backbone adds (4, 56) of two designs; 3 of another
    # budget; 3 of another seed.
    assert {name: len(found) for name, found in views.items()} == {
        "main": 3 * n, "backbone": 6, "ladder": 3, "sweep": 4, "seeds": 6,
    }  # fmt: skip
    assert len(runs.union(views)) == 3 * n + 3 + 2 + 3 + 3


def test_the_spec_holds_what_trains_and_nothing_else(raw):
    loaded = config.load(raw)
    run = runs.parse("preln/t-d28-l16/lr1e-2-s0")
    before = runs.spec(loaded, run)
    spec = json.loads(before)
    assert spec["model"] == {
        "design": "preln", "d_model": 28, "n_layers": 16, "n_heads": 2, "vocab_size": 512, "init_std": 0.05,
    }  # fmt: skip
    assert (spec["steps"], spec["lr"], spec["seed"]) == (loaded.scales["t"].steps, "1e-2", 0)
    assert spec["data"]["origins"] == ["wiki_leads"]

    same = {
        **raw,
        "kernels": "reference",
        "partial": True,
        "resources": {"default": {"mem_mb": 1, "runtime": 1, "micro_batch": 1}},
    }
    assert runs.spec(config.load(same), run) == before
    spelled = {
        **raw,
        "recipes": {**raw["recipes"], "default": {**raw["recipes"]["default"], "init_std": "2.0e-2"}},
    }
    assert runs.spec(config.load(spelled), run) == before
    raw["recipes"]["default"]["optimizer"]["weight_decay"] = 0.2
    assert runs.spec(config.load(raw), run) != before


def test_a_spec_reads_back_and_a_wrong_one_is_told(raw):
    loaded = config.load(raw)
    text = runs.spec(loaded, runs.parse("hc/t-d28-l16/lr1e-2-s0"))
    assert runs.dumps(runs.RunSpec.read(text).as_dict()) == text
    with pytest.raises(UserError, match="E-SPEC steps"):
        runs.RunSpec.read(text.replace('"steps":120', '"steps":0'))
    with pytest.raises(UserError, match="E-SPEC"):
        runs.RunSpec.read("{")


def test_an_artifact_names_the_suites_of_its_runs(raw):
    loaded = config.load({**raw, "study": "tiny"})
    picked = runs.select(loaded, [runs.Pick("main", ("preln",)), runs.Pick("backbone", ("preln",))])
    spec = json.loads(runs.artifact_spec(loaded, "figure", "f", ["validation.csv"], picked, []))
    assert spec["runs"] == {
        "preln/t-d52-l4/lr1e-2-s0": ["main"],
        "preln/t-d56-l4/lr1e-2-s0": ["backbone"],
        "preln/t-d40-l8/lr1e-2-s0": ["backbone", "main", "seeds"],
        "preln/t-d28-l16/lr1e-2-s0": ["backbone", "main", "sweep"],
    }
    plan = spec["plans"]["preln/t-d28-l16/lr1e-2-s0"]
    assert plan == {
        "model": json.loads(runs.spec(loaded, runs.parse("preln/t-d28-l16/lr1e-2-s0")))["model"],
        "steps": 120, "tokens": 120 * 8 * 128, "lr": "1e-2", "seed": 0, "declared_lr": "1e-2",
    }  # fmt: skip


def test_a_plan_needs_no_run_and_knows_the_declared_rate(raw):
    """Of planned runs an artifact has the plan and no files; a sweep's rate is not the declared one."""
    loaded = config.load({**raw, "study": "tiny"})
    swept = runs.parse("preln/t-d28-l16/lr25e-4-s0")
    spec = json.loads(runs.artifact_spec(loaded, "table", "t", [], [], [], [swept]))
    assert spec["runs"] == {}
    assert list(spec["labels"]) == ["preln"]
    assert [spec["plans"][swept.path][key] for key in ("lr", "declared_lr")] == ["25e-4", "1e-2"]


def test_planning_imports_neither_torch_nor_pandas():
    code = "import sys; import depthbench.runs; print([m for m in ('torch', 'pandas', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

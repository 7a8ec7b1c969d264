import json

import pytest

from depthbench import config, picks, runs


def test_a_pick_can_follow_the_shapes_of_another_suite(raw):
    def moda(study):
        loaded = config.load({**raw, "study": study})
        return [run.path for run in picks.select(loaded, [picks.Pick("main", ("moda",), like="moda_norms")])]

    assert moda("tiny") == ["moda/t-d40-l8/lr1e-2-s0"]
    assert moda("paper") == ["moda/400m-d1024-l24/lr2e-3-s0"]
    assert moda("mini") == []  # it has no such suite


def test_an_artifact_names_the_suites_of_its_runs(raw):
    loaded = config.load({**raw, "study": "tiny"})
    picked = picks.select(loaded, [picks.Pick("main", ("preln",)), picks.Pick("backbone", ("preln",))])
    spec = json.loads(picks.artifact_spec(loaded, "figure", "f", ["validation.csv"], picked, []))
    assert spec["runs"] == {
        "preln/t-d52-l4/lr1e-2-s0": ["main"],
        "preln/t-d56-l4/lr1e-2-s0": ["backbone"],
        "preln/t-d40-l8/lr1e-2-s0": ["backbone", "main", "seeds"],
        "preln/t-d28-l16/lr1e-2-s0": ["backbone", "main", "sweep"],
    }
    plan = spec["plans"]["preln/t-d28-l16"]
    assert plan == {
        "model": runs.spec(loaded, runs.parse("preln/t-d28-l16/lr1e-2-s0")).as_dict()["model"],
        "steps": 192, "warmup_steps": 19, "tokens": 192 * 4 * 128, "design": "preln", "scale": "t",
        "declared_lr": "1e-2",
    }  # fmt: skip


def test_an_artifact_knows_depths_where_it_reads_layer_analyses(raw):
    loaded = config.load({**raw, "study": "paper"})
    picked = picks.select(loaded, [picks.Pick("sweep", ("preln",), depths=(32,), lr="2e-3")])
    assert [run.path for run in picked] == ["preln/400m-d896-l32/lr2e-3-s0"]
    spec = json.loads(picks.artifact_spec(loaded, "figure", "f", ["analysis/angular.csv"], picked, []))
    assert (spec["depths"], spec["common_lr"]) == ({"one": 32, "three": [16, 24, 32]}, "2e-3")
    assert "depths" not in json.loads(picks.artifact_spec(loaded, "table", "t", ["validation.csv"], picked, []))


def test_a_plan_needs_no_run_and_knows_the_declared_rate(raw):
    """Of planned runs an artifact has the plan and no files; a sweep's rate is not the declared one."""
    loaded = config.load({**raw, "study": "tiny"})
    swept = runs.parse("preln/t-d28-l16/lr25e-4-s0")
    spec = json.loads(picks.artifact_spec(loaded, "table", "t", [], [], [], [swept]))
    assert spec["runs"] == {}
    assert list(spec["labels"]) == ["preln"]
    assert spec["plans"]["preln/t-d28-l16"]["declared_lr"] == "1e-2"


@pytest.mark.parametrize(("study", "scored", "limit"), [("micro", 0, None), ("tiny", 30, 16), ("paper", 56, None)])
def test_runs_of_the_main_suite_are_scored(raw, study, scored, limit):
    loaded = config.load({**raw, "study": study})
    specs = {run: runs.evaluation_spec(loaded, run) for run in runs.union(runs.suites(loaded) | runs.controls(loaded))}
    asked = [run for run, spec in specs.items() if spec.tasks]
    assert len(asked) == scored
    assert set(asked) <= set(runs.suites(loaded)["main"])
    assert {task.limit for run in asked for task in specs[run].tasks.values()} <= {limit}
    assert picks.select(loaded, [picks.Pick("main", scored=True)]) == sorted(asked, key=lambda run: run.path)


def test_accuracy_alone_is_in_no_category(raw):
    raw["studies"]["tiny"]["evaluate"] = {"tasks": ["arc_easy"]}
    loaded = config.load({**raw, "study": "tiny"})
    assert picks.select(loaded, [picks.Pick("main", scored=True)]) == []


def test_an_artifact_is_told_which_runs_have_no_layer_analyses(raw):
    """The ladder's run has none; the others are of the main suite."""
    loaded = config.load({**raw, "study": "tiny"})
    picked = picks.select(loaded, [picks.Pick("main", ("preln",)), picks.Pick("ladder", ("preln",))])
    spec = json.loads(picks.artifact_spec(loaded, "table", "t", ["analysis/transport.csv"], picked, []))
    assert spec["unanalyzed"] == ["preln/s-d40-l8/lr1e-2-s0"]
    assert len(spec["runs"]) == 4


def test_losses_to_compare_belong_to_the_artifacts_that_read_them(raw):
    raw["studies"]["tiny"]["compare"] = "my/losses.csv"
    loaded = config.load({**raw, "study": "tiny"})
    told = {file: picks.artifact_spec(loaded, "figure", "f", [file], [], []) for file in ("compare.csv", "arc.csv")}
    assert json.loads(told["compare.csv"])["compare"] == "my/losses.csv"
    assert "my/losses.csv" not in told["arc.csv"]

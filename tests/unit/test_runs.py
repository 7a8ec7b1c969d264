import json
import re
import subprocess
import sys

import pytest

from depthbench import config, runs, specs
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
        runs.Run("a", "400m", 2048, 28, "1e4", 3, "d12_l3"),
    ],
)
def test_names_with_separators_parse_back(run):
    assert runs.parse(run.path) == run


@pytest.mark.parametrize(
    "path",
    [
        "preln/t-d28-l16/lr0.01-s0", "preln/t-d28-l16/lr1e-2", "preln/t-d28-l16/lr1e-2-s0/x",
        "Preln/t-d28-l16/lr1e-2-s0", "preln/t-Released-d28-l16/lr1e-2-s0", "preln/t--d28-l16/lr1e-2-s0",
        "preln/t_x-d28-l16/lr1e-2-s0", "../preln/t-d28-l16/lr1e-2-s0",
    ],
)  # fmt: skip
def test_other_paths_are_no_runs(path):
    with pytest.raises(ValueError, match="is not the path of a run"):
        runs.parse(path)


# Per suite: its runs, and those that stand in no suite before it (design of the studies; 246 is the paper's number).
COUNTS = {
    "micro": ({"main": (4, 4)}, 4),
    "tiny": (
        {
            "main": (30, 30), "backbone": (6, 2), "ladder": (3, 3), "moda_norms": (2, 2), "sweep": (8, 6),
            "seeds": (6, 3),
        },
        46,
    ),
    "mini": ({"main": (30, 30), "sweep": (30, 20), "seeds": (27, 18)}, 68),
    "paper": (
        {
            "main": (56, 56), "backbone": (18, 12), "ladder": (36, 27), "large": (9, 9), "moda_norms": (2, 2),
            "sweep": (180, 140),
        },
        246,
    ),
}  # fmt: skip


@pytest.mark.parametrize("study", COUNTS)
def test_runs_per_suite(raw, study):
    views = runs.suites(config.load({**raw, "study": study}))
    found, seen = {}, set()
    for suite, members in views.items():
        found[suite] = (len(members), len(set(members) - seen))
        seen |= set(members)
    assert (found, len(runs.union(views))) == COUNTS[study]


def test_the_large_suite_has_grouped_heads_and_wide_ffns(raw):
    loaded = config.load({**raw, "study": "paper"})
    spec = runs.spec(loaded, runs.parse("hc/1600m-d1728-l40/lr5e-4-s0"))
    assert (spec.model["n_kv_heads"], spec.model["d_ff"], spec.steps) == (8, 5184, 30400)
    legacy = runs.spec(loaded, runs.parse("mhc_legacy/400m-d896-l32/lr5e-3-s0"))
    assert (legacy.model["design"], legacy.model["init"]) == ("mhc", "legacy")


def test_the_spec_holds_what_trains_and_nothing_else(raw):
    loaded = config.load(raw)
    run = runs.parse("preln/t-d28-l16/lr1e-2-s0")
    before = runs.spec(loaded, run)
    spec = before.as_dict()
    assert spec["model"] == {
        "design": "preln", "d_model": 28, "n_layers": 16, "n_heads": 2, "vocab_size": 512, "init_std": 0.1,
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
    embedded = {**raw, "study": "mini"}
    mini = runs.data_spec(config.load(embedded))
    embedded["corpora"]["embedded"]["origins"] = ["sciriff", "qasper", "drop", "squad", "boolq", "wiki_leads", "boolq"]
    assert runs.data_spec(config.load(embedded)) == mini
    raw["recipes"]["default"]["optimizer"]["weight_decay"] = 0.2
    assert runs.spec(config.load(raw), run) != before


def test_a_spec_reads_back_and_a_wrong_one_is_told(raw):
    loaded = config.load(raw)
    spec = runs.spec(loaded, runs.parse("hc/t-d28-l16/lr1e-2-s0"))
    text = runs.dumps(spec.as_dict())
    assert specs.RunSpec.read(text) == spec
    assert spec.matches(json.loads(text))
    assert not spec.matches({**json.loads(text), "steps": 241})
    assert not spec.matches({"steps": 240})
    with pytest.raises(UserError, match="E-SPEC steps"):
        specs.RunSpec.read(text.replace('"steps":192', '"steps":0'))
    with pytest.raises(UserError, match="E-SPEC"):
        specs.RunSpec.read("{")


def test_planning_imports_neither_torch_nor_pandas():
    code = "import sys; import depthbench.runs; print([m for m in ('torch', 'pandas', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Key of the configuration, a new value, and which runs of tiny it trains anew.
KEYS = {
    "studies.tiny.n_heads": (1, lambda run: True),
    "studies.tiny.tokenizer.vocab_size": (513, lambda run: True),
    "recipes.tiny.sequence_length": (256, lambda run: True),
    "recipes.tiny.batch_sequences": (8, lambda run: True),
    "recipes.tiny.threads": (2, lambda run: True),
    "recipes.tiny.init_std": (0.04, lambda run: True),
    "recipes.tiny.precision.compute": ("bfloat16", lambda run: True),
    "recipes.tiny.attnres_eps": (1e-5, lambda run: True),
    "recipes.tiny.hc_rms_eps": (1e-8, lambda run: True),
    "recipes.default.optimizer.betas": ([0.9, 0.99], lambda run: True),
    "recipes.default.optimizer.eps": (1e-7, lambda run: True),
    "recipes.default.optimizer.weight_decay": (0.2, lambda run: True),
    "recipes.default.optimizer.clip": (2.0, lambda run: True),
    "recipes.default.schedule.warmup": (0.2, lambda run: True),
    "recipes.default.schedule.final": (0.2, lambda run: True),
    "corpora.embedded_ci.source": ("stdlib", lambda run: True),
    "corpora.embedded_ci.origins": (["boolq"], lambda run: True),
    "corpora.embedded_ci.val_fraction": (0.1, lambda run: True),
    "corpora.embedded_ci.decontaminate": ("off", lambda run: True),
    "corpora.embedded_ci.paths": (["x"], lambda run: True),
    "corpora.embedded_ci.text_column": ("body", lambda run: True),
    "corpora.embedded_ci.id_column": ("id", lambda run: True),
    "scales.t.steps": (121, lambda run: run.scale == "t"),
    "scales.s.steps": (61, lambda run: run.scale == "s"),
    "scales.t.n_kv_heads": (1, lambda run: run.scale == "t"),
    "scales.t.ffn_ratio": (3, lambda run: run.scale == "t"),
    "designs.hc.version": (2, lambda run: run.design == "hc"),
    "designs.mhc.init": ("legacy", lambda run: run.design == "mhc"),
    "designs.hc.hc_readout": ("norm_then_sum", lambda run: run.design == "hc"),
    # no part of how a run is trained
    "designs.hc.label": ("HyperC", lambda run: False),
    "designs.hc.family": ("norm", lambda run: False),
    "designs.hc.lr": (1e-3, lambda run: False),  # the scale declares the rate
    "designs.hc.grid": ([1e-3], lambda run: False),
    "studies.tiny.bootstrap": (7, lambda run: False),
    "scales.400m.steps": (1, lambda run: False),
    "recipes.mini.batch_sequences": (2, lambda run: False),
    "corpora.embedded.val_fraction": (0.2, lambda run: False),
    "resources.default.micro_batch": (1, lambda run: False),
    "resources.default.gpu": (1, lambda run: False),
    "resources.default.cpus": (4, lambda run: False),
    "kernels": ("reference", lambda run: False),
    "partial": (True, lambda run: False),
}


def test_bfloat16_weights_train_every_run(raw):
    loaded = config.load({**raw, "study": "tiny"})
    tiny = runs.union(runs.suites(loaded))
    before = {run: runs.spec(loaded, run) for run in tiny}
    raw["recipes"]["tiny"]["precision"] = {"master": "bfloat16", "compute": "bfloat16"}
    changed = config.load({**raw, "study": "tiny"})
    assert all(runs.spec(changed, run) != before[run] for run in tiny)


@pytest.mark.parametrize("key", KEYS)
def test_each_key_trains_exactly_the_runs_it_touches(raw, key):
    loaded = config.load({**raw, "study": "tiny"})
    tiny = runs.union(runs.suites(loaded))
    before = {run: runs.spec(loaded, run) for run in tiny}
    value, touches = KEYS[key]
    *path, last = key.split(".")
    inner = raw
    for name in path:
        inner = inner[name]
    inner[last] = value
    changed = config.load({**raw, "study": "tiny"})
    assert {run for run in tiny if runs.spec(changed, run) != before[run]} == set(filter(touches, tiny))


def test_the_keys_above_are_all_that_a_spec_holds(raw):
    spec = runs.spec(config.load({**raw, "study": "tiny"}), runs.parse("mhc/t-d28-l16/lr1e-2-s0"))

    def leaves(value, where=""):
        if not isinstance(value, dict):
            return {where}
        return set().union(*(leaves(inner, f"{where}.{key}".lstrip(".")) for key, inner in value.items()))

    of_the_run = {"run_id", "version", "lr", "seed", "model.design", "model.d_model", "model.n_layers"}
    of_the_data = {"data.corpus", "data.version"}
    named = {key.rpartition(".")[2] for key in KEYS} | {"master"}
    found = leaves(spec.as_dict()) - of_the_run - of_the_data
    assert {leaf for leaf in found if leaf.rpartition(".")[2] not in named} == set()


def test_a_raised_version_trains_its_runs(raw, monkeypatch):
    loaded = config.load({**raw, "study": "tiny"})
    tiny = runs.union(runs.suites(loaded))
    before = {run: runs.spec(loaded, run) for run in tiny}
    monkeypatch.setitem(runs.VERSION, "train", 2)
    assert all(runs.spec(loaded, run) != before[run] for run in tiny)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("path", "somebody/else"),
        ("name", "sample-10BT"),
        ("revision", "0123abc"),
        ("files", ["000_00000.parquet"]),
        ("val_file", "013_00009.parquet"),
        ("val_tokens", 5),
        ("text_column", "body"),
        ("id_column", "id"),
        ("decontaminate", "off"),
    ],
)
def test_each_key_of_the_hub_trains_every_run(raw, key, value):
    loaded = config.load({**raw, "study": "paper"})
    run = runs.parse("hc/400m-d1024-l24/lr2e-3-s0")
    before = runs.spec(loaded, run)
    raw["corpora"]["fineweb_edu"][key] = value
    changed = runs.spec(config.load({**raw, "study": "paper"}), run)
    assert changed != before
    assert specs.RunSpec.read(runs.dumps(changed.as_dict())) == changed


def test_mini_limits_arc_easy_alone(raw):
    loaded = config.load({**raw, "study": "mini"})
    spec = runs.evaluation_spec(loaded, runs.suites(loaded)["main"][0])
    assert {name: task.limit for name, task in spec.tasks.items() if task.limit} == {"arc_easy": 500}
    assert len(spec.tasks) == 7


def test_wording_is_part_of_what_is_scored_and_not_of_what_is_trained(raw):
    before = config.load(raw)
    raw["tasks"]["sciq"]["context"] = "Q: {question}"
    after, run = config.load(raw), runs.suites(before)["main"][0]
    assert runs.evaluation_spec(before, run) != runs.evaluation_spec(after, run)
    assert runs.spec(before, run) == runs.spec(after, run)


def test_a_model_of_no_study_is_scored_on_all_items(raw):
    loaded = config.load(raw)
    of_tiny, of_none = (runs.task_spec(loaded, ["sciq", "arc_easy"], study) for study in ("tiny", "imported"))
    assert {task.limit for task in of_tiny.tasks.values()} == {16}
    assert {task.limit for task in of_none.tasks.values()} == {None}
    assert [*of_none.tasks] == ["sciq", "arc_easy"]


def test_a_spec_with_a_wrong_template_is_one_line():
    text = '{"tasks": {"sciq": {"context": "{answer}", "continuation": "{support}"}}}'
    with pytest.raises(UserError, match=r"^E-SPEC --spec: .*tasks\.sciq\.context: no field \{answer\}"):
        specs.EvaluationSpec.read(text)

import copy
import json

import jsonschema
import pytest

from depthbench import config, docs, schema
from depthbench.errors import UserError


@pytest.mark.parametrize(
    ("written", "tag"),
    [
        (1e-3, "1e-3"), ("1e-3", "1e-3"), ("0.001", "1e-3"), ("1.0e-3", "1e-3"), ("0.0010", "1e-3"),
        (0.0015, "15e-4"), ("1.50E-3", "15e-4"), (25e-4, "25e-4"), (10000, "1e4"), ("1e4", "1e4"), (1.0, "1e0"),
    ],
)  # fmt: skip
def test_a_rate_has_one_spelling(written, tag):
    assert schema.parse_rate(written) == tag
    assert float(tag) == float(written)


@pytest.mark.parametrize("written", ["fast", True, None, 0, -1e-3, "nan", "inf", "1e-400", [1e-3]])
def test_what_is_no_rate_is_refused(written):
    with pytest.raises(ValueError, match="not a learning rate"):
        schema.parse_rate(written)


def changed(raw, path, value):
    raw = copy.deepcopy(raw)
    *keys, last = path.split(".")
    inner = raw
    for key in keys:
        inner = inner.setdefault(key, {})
    inner[last] = value
    return raw


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("studyy", "tiny", ["studyy: unknown key; did you mean study?"]),
        ("scales.t.step", 1, ["scales.t.step: unknown key; did you mean steps?"]),
        ("qqq", 1, ["qqq: unknown key"]),
        ("study", "huge", ["study:", "'huge'", "tiny"]),
        ("designs.preln.lr", "fast", ["designs.preln.lr", "'fast'"]),
        ("designs.preln.family", "other", ["designs.preln.family", "'other'", "baseline"]),
        ("designs.nope", {"label": "N", "family": "norm", "lr": 1}, ["designs.nope", "residuals/nope.py"]),
        ("recipes.micro.extends", "nothing", ["recipes.micro.extends", "'nothing'"]),
        ("recipes.tiny.extends", ["default"], ["recipes.tiny.extends", "['default']"]),
        ("recipes.tiny.optimizer", {"betas": [0.9, 1.0]}, ["recipes.tiny.optimizer.betas", "1.0"]),
        ("recipes.tiny.threads", 100_000, ["recipes.tiny.threads", "100000"]),
        ("kernels", "cuda", ["kernels", "'cuda'"]),
        ("scales.t.grid", [], ["scales.t.grid"]),
        ("studies.tiny.suites.main", [], ["studies.tiny.suites.main"]),
        ("studies.tiny.suites.seeds.seeds", [], ["studies.tiny.suites.seeds", "seeds"]),
        ("studies.tiny.suites.ladder.shapes", [], ["studies.tiny.suites.ladder", "shapes"]),
        ("studies.tiny.suites.ladder.designs", [], ["studies.tiny.suites.ladder", "designs"]),
        ("recipes.default.extends", "tiny", ["extends"]),
        ("recipes.tiny.batch_sequences", 0, ["recipes.tiny.batch_sequences", "0"]),
        ("recipes.tiny.batch_sequences", True, ["recipes.tiny.batch_sequences", "number"]),
        ("recipes.tiny.optimizer", {"weight_decay": float("nan")}, ["recipes.tiny.optimizer.weight_decay"]),
        ("scales.t.lr", {"nope": 1e-3}, ["nope", "no such design"]),
        ("studies.tiny.tokenizer.vocab_size", 511, ["studies.tiny.tokenizer.vocab_size", "511"]),
        ("studies.tiny.n_heads", 3, ["studies.tiny.n_heads", "28, 40, 52, 56", "2 x 3 heads"]),
        ("scales.t.n_kv_heads", 3, ["scales.t.n_kv_heads: 3 does not divide studies.tiny.n_heads, 2"]),
        ("studies.tiny.corpus", "none", ["studies.tiny.corpus", "'none'"]),
        ("studies.tiny.recipe", "none", ["studies.tiny.recipe", "'none'"]),
        ("studies.tiny.suites.ladder.scale", "none", ["studies.tiny.suites.ladder", "'none'"]),
        ("studies.tiny.suites.ladder.designs", ["none"], ["studies.tiny.suites.ladder.designs", "'none'"]),
        ("corpora.embedded.val_fraction", 0.6, ["corpora.embedded.val_fraction", "0.6"]),
        ("corpora.embedded.origins", [], ["corpora.embedded.origins"]),
        ("corpora.stdlib.files", ["a.parquet"], ["corpora.stdlib.files", "source: hub", "source: stdlib"]),
        ("corpora.stdlib.val_fraction", None, ["corpora.stdlib.val_fraction", "between 0 and 0.5"]),
        ("corpora.fineweb_edu.file", "a.parquet", ["corpora.fineweb_edu.file: unknown key"]),
        ("corpora.fineweb_edu.files", None, ["corpora.fineweb_edu.files", "wanted with `source: hub`"]),
        ("corpora.fineweb_edu.files", [], ["corpora.fineweb_edu.files", "wanted with `source: hub`"]),
        ("corpora.fineweb_edu.files", ["a.parquet"] * 2, ["corpora.fineweb_edu.files", "a.parquet stands there twice"]),
        ("corpora.fineweb_edu.files", ["x/a.parquet"], ["corpora.fineweb_edu.files", "x/a.parquet"]),
        ("corpora.fineweb_edu.path", None, ["corpora.fineweb_edu.path", "wanted"]),
        ("corpora.fineweb_edu.val_file", "000_00001.parquet", ["corpora.fineweb_edu.val_file", "is in files"]),
        ("corpora.fineweb_edu.val_fraction", 0.1, ["corpora.fineweb_edu.val_fraction", "not together with val_file"]),
        ("corpora.fineweb_edu.val_tokens", 0, ["corpora.fineweb_edu.val_tokens", "0"]),
        ("tasks.sciq.context", "Question: {answer}", ["tasks.sciq.context: no field {answer}; known: question"]),
        ("tasks.sciq.context", "a { brace", ["tasks.sciq.context", "doubled", "a { brace"]),
        ("tasks.sciq.context", "{question!r:>9}", ["tasks.sciq.context: no field {question!r:>9}"]),
        ("tasks.sciq.context", "{}", ["tasks.sciq.context: no field {}"]),
        ("tasks.gsm8k.continuation", "42", ["tasks.gsm8k.continuation: names no field"]),
        ("tasks.arc_easy.continuation", " {question}", ["tasks.arc_easy.continuation: {choice} belongs"]),
        ("tasks.arc_easy.context", "{question}{choice}", ["tasks.arc_easy.context: {choice} belongs"]),
        ("studies.tiny.suites.backbone.lr", [1e-2, 2e-2], ["studies.tiny.suites.backbone.lr: several rates"]),
        (
            "studies.tiny.suites.backbone",
            [{"scale": scale, "designs": ["preln"], "shapes": [[8, 40]]} for scale in ("t", "s")],
            ["studies.tiny.suites.backbone.scale: s and t, but its shapes are compared"],
        ),
        ("studies.tiny.suites", {}, ["studies.tiny.suites: declare at least one"]),
        ("studies.tiny.suites.ladder.recipe", "mini", ["studies.tiny.suites.ladder.recipe: only control suites"]),
        ("designs.preln.hc_readout", "norm_then_sum", ["designs.preln.hc_readout: a key of residual hc"]),
        ("designs.hc.init", "legacy", ["designs.hc.init: a key of residual mhc"]),
        ("recipes.released.precision.master", "float16", ["recipes.released.precision.master", "float16"]),
        ("tasks.boolq", {"context": "c", "continuation": "d"}, ["tasks.boolq: unknown key"]),
        ("studies.tiny.evaluate.max_truncated", 2, ["studies.tiny.evaluate.max_truncated", "2"]),
        ("studies.tiny.evaluate", {"tasks": ["boolq"]}, ["studies.tiny.evaluate.tasks", "'boolq'"]),
        ("studies.tiny.evaluate", {"tasks": "all", "limit": 0}, ["studies.tiny.evaluate.limit", "0"]),
        (
            "resources.by_scale",
            {"zz": {"mem_mb": 1, "runtime": 1, "micro_batch": 1}},
            ["resources.by_scale.zz"],
        ),
        ("resources.by_scale.1600m.nodes", 3, ["resources.by_scale.1600m.gpu", "8", "nodes: 3"]),
        ("resources.by_scale.1600m.nodes", 0, ["resources.by_scale.1600m.nodes", "0"]),
        ("resources.default.gpu", -1, ["resources.default.gpu", "-1"]),
    ],
)
def test_a_mistake_is_one_line_with_key_and_value(raw, path, value, words):
    with pytest.raises(UserError) as caught:
        config.load(changed(raw, path, value))
    lines = str(caught.value).splitlines()
    assert all(line.startswith("E-CONFIG ") and len(line) < 300 for line in lines)
    assert any(all(word in line for word in words) for line in lines), lines


def test_all_mistakes_come_at_once(raw):
    wrong = changed(changed(raw, "designs.preln.lr", "fast"), "recipes.default.init_std", -1)
    with pytest.raises(UserError) as caught:
        config.load(wrong)
    assert {"designs.preln.lr", "recipes.default.init_std"} <= {
        line.split()[1].rstrip(":") for line in str(caught.value).splitlines()
    }


def test_extends_fills_in_nested_keys(raw):
    recipe = config.load(raw).recipes["micro"]
    assert (recipe.sequence_length, recipe.batch_sequences, recipe.threads) == (64, 4, 1)
    assert (recipe.optimizer.betas, recipe.precision.compute) == ((0.9, 0.95), "float32")


def test_rates_are_looked_up_scale_first_then_design(raw):
    raw["scales"]["t"]["lr"] = {"hc": 3e-3, "default": 1e-2}
    raw["scales"]["s"].pop("lr")
    loaded = config.load(raw)
    assert config.lookup_rate(loaded, "t", "hc") == "3e-3"
    assert config.lookup_rate(loaded, "t", "preln") == "1e-2"
    assert config.lookup_rate(loaded, "s", "preln") == "2e-3"
    assert config.lookup_grid(loaded, "s", "preln") == ["5e-4", "1e-3", "2e-3", "5e-3"]


def test_a_sweep_of_all_designs_names_those_without_a_grid(raw):
    raw["scales"]["t"].pop("grid")
    raw["studies"]["tiny"]["suites"]["sweep"]["designs"] = "all"
    with pytest.raises(UserError) as told:
        config.load(raw)
    where = "studies.tiny.suites.sweep.lr: grid, but neither scales.t nor designs"
    assert str(told.value).splitlines() == [f"E-CONFIG {where}.{name} has one" for name in ("mhc", "attnres_block")]


def test_the_schema_takes_the_file_and_refuses_a_wrong_key(raw):
    schema = json.loads(json.dumps(docs.schema()))
    jsonschema.validate(raw, schema)
    for path in ("designs.preln.colour", "recipes.tiny.optimizer.epz", "studies.tiny.suits"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(changed(raw, path, 1), schema)


def test_a_hub_corpus_has_defaults_of_its_own(raw):
    hub = raw["corpora"]["fineweb_edu"]
    assert config.load(raw).corpora["fineweb_edu"].val_fraction is None
    del hub["decontaminate"], hub["val_file"], hub["val_tokens"]
    loaded = config.load(raw).corpora["fineweb_edu"]
    assert (loaded.decontaminate, loaded.val_fraction, loaded.text_column) == ("count", 0.001, "text")
    assert len(loaded.files) == 48
    assert (loaded.files[0], loaded.files[-1]) == ("000_00000.parquet", "004_00007.parquet")


def test_known_origins_are_those_of_the_corpus():
    from typing import get_args

    from depthbench.data.corpus import ORIGINS

    assert set(get_args(schema.Origin)) == set(ORIGINS)


@pytest.mark.parametrize(
    "path", ["scales.t.n_kv_heads", "designs.preln.residual", "recipes.tiny.attnres_eps", "tasks.mbpp.path"]
)
def test_null_is_none_wherever_none_is_allowed(raw, path):
    """Inside of a nested `--config` value Snakemake leaves it text."""
    assert config.load(changed(raw, path, "null")) == config.load(changed(raw, path, None))

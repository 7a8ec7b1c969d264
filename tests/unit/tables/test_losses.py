import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom
from synthetic import SPEC, TINY, Study, path

from depthbench import tables
from depthbench.artifacts import ArtifactSpec, read
from depthbench.errors import UserError
from depthbench.tables import losses

PRELN, HC, KEEL = path("preln", TINY[0]), path("hc", TINY[1]), path("keel", TINY[2])
REPORTED = Path(__file__).parents[3] / "workflow" / "reference" / "paper_reported.csv"
EMPTY = ["loss", "loss_lo", "loss_hi", "loss_upstream", "bits_per_byte", "unigram_entropy"]


@pytest.fixture
def study(tmp_path):
    """A run with mixed commits, a missing and a diverged one."""
    study = Study(tmp_path, names=losses.FILES)
    study.add(HC, status="missing")
    study.add(PRELN, ["main", "backbone"], loss=4.625, legs=[("a" * 40, False), ("b" * 40, False)])
    study.add(KEEL, status="diverged")
    return study


def build(study, **changes):
    spec = study.spec(**changes)
    return losses.build(read(study.files, spec), spec)


def test_every_run_has_a_row(study):
    table = build(study)
    assert table["run_id"].tolist() == [f"tiny/runs/{run}" for run in (PRELN, KEEL, HC)]
    assert table["status"].tolist() == ["ok", "diverged", "missing"]
    assert table["suites"].tolist() == ["main, backbone", "main", "main"]
    assert table["label"].tolist() == ["Pre-LN", "KEEL", "HC"]
    assert table["aspect_ratio"].tolist() == [13.0, 1.75, 5.0]
    assert table["lr"].tolist() == ["1e-2"] * 3


def test_losses_of_constant_documents(study):
    """4.625 nats for each of 5000 predictions in 5100 tokens and 20000 bytes; no spread, so no width."""
    row = build(study).iloc[0]
    assert row["loss"] == row["loss_lo"] == row["loss_hi"] == 4.625
    assert row["loss_upstream"] == pytest.approx(4.625 * 5000 / 5100, rel=1e-12)
    assert row["bits_per_byte"] == pytest.approx(4.625 * 5000 / np.log(2) / 20000, rel=1e-12)


def test_diverged_and_missing_runs_have_no_numbers(study):
    table = build(study).set_index("status")
    assert table.loc[["diverged", "missing"], EMPTY].isna().all(axis=None)
    assert table.loc["missing", ["n_params", "overhead_pct", "tokens", "commit", "mixed_commit"]].isna().all()
    assert table.loc["diverged", ["n_params", "tokens"]].tolist() == [187292 + 868, 102400]


@pytest.mark.parametrize(
    ("model", "shape", "design", "percent"),
    [
        ({"n_heads": 16, "vocab_size": 50280}, (24, 1024), "moda", 100 * 2 * 1024**2 * 23 / 405_406_720),  # 11.9
        ({"n_heads": 16, "vocab_size": 50280}, (24, 1024), "mhc", 100 * 4_719_888 / 405_406_720),  # 1.2
        ({"n_heads": 16, "vocab_size": 50280}, (24, 1024), "deepnorm", 0),
        ({"n_heads": 2, "vocab_size": 1024}, (24, 32), "mhc", 100 * 48 * (96 * 32 + 27) / (385_024 + 49 * 32)),  # 38.5
    ],
)
def test_overhead_over_preln_of_the_same_shape(tmp_path, model, shape, design, percent):
    study = Study(tmp_path, names=losses.FILES)
    study.model = model
    study.add(path(design, shape))
    assert build(study)["overhead_pct"].tolist() == [pytest.approx(percent, rel=1e-12)]


def test_overhead_is_that_of_the_record(tmp_path):
    """Of the model that was trained, grouped heads and an FFN of 3 d among it; not of the design's name."""
    study = Study(tmp_path, names=losses.FILES)
    study.model |= {"n_heads": 4, "n_kv_heads": 2, "d_ff": 120}
    run = path("my_design", TINY[1])
    study.add(run)
    record = json.loads(study.file(run, "run.json").read_text())
    preln = 2 * 512 * 40 + 8 * (3 * 40 * 40 + 3 * 40 * 120 + 2 * 40) + 40  # half of the K and V heads: 3 d^2
    study.file(run, "run.json").write_text(json.dumps(record | {"n_params": preln + 1000}))
    spec = study.json(labels={"my_design": ["Mine", "norm"]})
    table = losses.build(read(study.files, ArtifactSpec.from_json(spec)), ArtifactSpec.from_json(spec))
    assert table["overhead_pct"].tolist() == [pytest.approx(100 * 1000 / preln, rel=1e-12)]


@pytest.mark.parametrize(
    ("spec", "word"),
    [({}, "spec.model"), ({"model": {"d_model": 52}}, "missing"), ({"model": {"n_layer": 4}}, "unknown n_layer")],
)
def test_record_without_a_model_is_refused(study, spec, word):
    record = json.loads(study.file(PRELN, "run.json").read_text())
    study.file(PRELN, "run.json").write_text(json.dumps(record | {"spec": SPEC | spec}))
    with pytest.raises(UserError, match=f"E-RUN .*{PRELN}/run.json: .*{word}.*; remove it and run snakemake") as caught:
        build(study)
    assert "\n" not in str(caught.value)


def test_mixed_commits_are_marked(study):
    table = build(study)
    assert table["commit"].tolist()[:2] == ["aaaaaaa, bbbbbbb", "aaaaaaa"]
    assert table["mixed_commit"].tolist()[:2] == [True, False]


def test_interval_of_two_valued_documents(tmp_path):
    """Of 100 documents at 4.4 or 4.6 a resample has Binomial(100, 1/2) at 4.6."""
    study = Study(tmp_path, names=losses.FILES)
    study.add(PRELN, spread=0.1)
    row = build(study, bootstrap=4000).iloc[0]
    exact = 4.4 + 0.2 * binom.ppf([0.025, 0.975], 100, 0.5) / 100
    # one more or less of 100 is 0.002, the step of the exact values
    np.testing.assert_allclose([row["loss_lo"], row["loss_hi"]], exact, atol=0.0021)


def test_resamples_are_shared_by_all_runs(tmp_path):
    study = Study(tmp_path, names=losses.FILES)
    study.add(PRELN, loss=4.5, spread=0.1)
    study.add(HC, loss=4.75, spread=0.1)
    file = study.file(HC, "validation_docs.parquet")
    pd.read_parquet(file).iloc[::-1].to_parquet(file)  # the order in the file does not matter
    table = build(study)
    np.testing.assert_allclose(table["loss_lo"].diff()[1], 0.25, rtol=1e-9)
    np.testing.assert_allclose(table["loss_hi"].diff()[1], 0.25, rtol=1e-9)


def test_documents_of_another_evaluation_are_refused(study):
    file = study.file(PRELN, "validation_docs.parquet")
    pd.read_parquet(file).assign(nll_sum=lambda docs: docs["nll_sum"] * 1.01).to_parquet(file)
    with pytest.raises(UserError, match=f"E-RUN tiny/runs/{PRELN}: .*; remove both"):
        build(study)


def test_csv_keeps_full_precision(study, tmp_path):
    third = path("attnres_full", TINY[0], lr="15e-4")
    study.add(third, loss=13.1 / 3, spread=0.1)
    out = tmp_path / "losses.csv"
    tables.write("losses", study.files, study.spec(), out)
    types = {
        "lr": "str",
        "n_params": "Int64",
        "tokens": "Int64",
        "mixed_commit": "boolean",
        "tasks_missing": "str",
        "rank": "Int64",
    }
    pd.testing.assert_frame_equal(pd.read_csv(out, dtype=types), build(study), check_exact=True)
    first = out.read_bytes(), out.with_suffix(".tex").read_bytes()
    tables.write("losses", study.files, study.spec(), out)
    assert (out.read_bytes(), out.with_suffix(".tex").read_bytes()) == first


def test_latex_is_for_people(study, tmp_path):
    out = tmp_path / "losses.csv"
    labels = {
        "preln": ("Pre_LN & 100% {a}", "baseline"),
        "hc": ("HC", "multi-stream"),
        "keel": ("KEEL", "norm"),
    }
    tables.write("losses", study.files, study.spec(labels=labels), out)
    text = out.with_suffix(".tex").read_text()
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert text.count(rule) == 1
    header, ok, diverged, missing = (line for line in text.splitlines() if "&" in line)
    assert r"2.5 \%" in header
    assert ok.startswith(r"Pre\_LN \& 100\% \{a\} & t & 4 & 52 & 13.00 & 1e-2 & 0 & ok & 4.6250 & 4.6250 & 4.6250 & ")
    assert "& --- & --- & --- & --- & 186,836 & 0.00 & 102,400 & aaaaaaa, bbbbbbb" in ok
    assert "diverged & --- & --- & --- & --- & --- & --- & --- & --- & --- & --- & --- & 188,160 & 0.46 & " in diverged
    assert missing.startswith("HC & ")
    assert missing.count("---") == 15
    assert "nan" not in text.lower()


def test_bad_input_leaves_no_table(study, tmp_path):
    study.file(PRELN, "run.json").write_text("{")
    out = tmp_path / "tables" / "losses.csv"
    with pytest.raises(UserError, match="E-RUN"):
        tables.write("losses", study.files, study.spec(), out)
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize("name", ["loss", "__init__", "../losses"])
def test_unknown_table(study, tmp_path, name):
    with pytest.raises(UserError, match=r"E-ARTIFACT .*known: .*losses"):
        tables.write(name, study.files, study.spec(), tmp_path / "x.csv")


def test_spec_without_the_files_that_the_table_reads(study, tmp_path):
    with pytest.raises(UserError, match=r"E-SPEC .*run\.json"):
        tables.write("losses", [], study.spec(files=("validation.csv",)), tmp_path / "losses.csv")


def test_scores_on_tasks_stand_beside_the_loss(study):
    """A category is the mean of its two tasks; a missing one is named; runs that nobody asked about have none."""
    scored = path("sandwich", TINY[0])
    scores = {"mbpp": 3.0, "humaneval": 2.5, "sciq": 3.25, "gpqa": "not_available: gated", "gsm8k": 2.0, "math500": 2.5}
    study.add(scored, scores=scores)
    table = build(study).set_index("run_id")
    row = table.loc[f"tiny/runs/{scored}"]
    assert row[["nll_coding", "nll_stem", "nll_math"]].tolist() == [2.75, 3.25, 2.25]
    assert row[["nll_mbpp", "nll_sciq", "arc_acc_norm", "arc_chance"]].tolist() == [3.0, 3.25, 0.25, 0.25]
    assert np.isnan(row["nll_gpqa"])
    assert row["tasks_missing"] == "gpqa not_available"
    others = table.drop(index=f"tiny/runs/{scored}")
    assert others[["nll_coding", "nll_mbpp", "tasks_missing", "arc_acc"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("nll.csv", ("not_requested", "maybe"), "status is 'maybe', must be ok, diverged, .* or failed"),
        ("nll.csv", ("\n", ""), "cut short"),
        ("arc.csv", ("not_requested", "ok"), "acc is nan though status is ok"),
    ],
)
def test_scores_that_cannot_be_read_are_refused(study, name, change, told):
    file = study.file(PRELN, name)
    file.write_text(file.read_text().replace(*change))
    with pytest.raises(UserError, match=rf"E-RUN .*{name}: .*{told}.*; remove it and run snakemake"):
        build(study)


def test_published_losses_and_the_difference_by_their_rule(tmp_path):
    """The main suite comes before iso-backbone, where Pre-LN at L = 32 is 2.763; Table 5 goes by the rate.

    Each document of 51 tokens has 50 predictions, so 2.55 nats a prediction are 2.5 by the rule of the released code.
    """
    study = Study(tmp_path, names=losses.FILES)
    runs = {
        path("preln", (32, 896), lr="2e-3", scale="400m"): (["backbone", "main", "sweep"], 2.782),
        path("preln", (16, 1248), lr="2e-3", scale="400m"): (["backbone"], 2.753),
        path("moda_postln", (24, 1024), lr="1e-3", scale="400m"): (["moda_norms"], 2.912),
        path("moda_postln", (24, 1024), lr="2e-3", scale="400m"): (["moda_norms"], 3.842),
        path("preln", (32, 896), lr="5e-3", scale="400m"): (["sweep"], None),
        path("preln", (32, 896), lr="2e-3", seed=1, scale="400m"): (["main"], None),
        path("preln", (32, 896), lr="2e-3", scale="200m"): (["main"], None),
    }
    for run, (suites, _) in runs.items():
        study.add(run, suites, loss=2.55)
    labels = {"preln": ["Pre-LN", "baseline"], "moda_postln": ["MoDA (Post-LN)", "cross-layer"]}
    text = study.json(labels=labels, files=[*losses.FILES, REPORTED.name])
    spec = ArtifactSpec.from_json(text)
    table = losses.build(read([*study.files, REPORTED], spec), spec).set_index("run_id")
    for run, (_, published) in runs.items():
        row = table.loc[f"tiny/runs/{run}"]
        if published is None:
            assert row[["published", "published_difference"]].isna().all(), run
        else:
            assert row["published"] == published
            assert row["published_difference"] == pytest.approx(2.5 - published, abs=1e-12)


def test_without_published_values_the_columns_are_empty(study):
    assert build(study)[["published", "published_difference"]].isna().all(axis=None)


def test_the_rank_is_that_of_the_suite_main_at_one_shape(tmp_path):
    """Ties share a place; a diverged run, a seed, another shape and a run of a sweep have none or one of their own."""
    study = Study(tmp_path, names=losses.FILES)
    for design, loss in (("preln", 4.5), ("lns", 4.25), ("hc", 4.5), ("keel", 4.75)):
        study.add(path(design, TINY[0]), loss=loss)
    study.add(path("mhc", TINY[0]), status="diverged")
    study.add(path("preln", TINY[0], seed=1), ["seeds"], loss=4.0)
    study.add(path("lns", TINY[0], lr="2e-2"), ["sweep"], loss=4.0)
    study.add(path("hc", TINY[1]), loss=5.0)
    spec = study.spec()
    table = losses.build(read(study.files, spec), spec)
    ranks = table.set_index("run_id")["rank"].dropna().to_dict()
    assert {name.removeprefix("tiny/runs/"): rank for name, rank in ranks.items()} == {
        **{path("lns", TINY[0]): 1, path("preln", TINY[0]): 2, path("hc", TINY[0]): 2, path("keel", TINY[0]): 4},
        path("hc", TINY[1]): 1,
    }

"""The layer analyses of one run as a job: which files, what they say of themselves, what stays."""

import math
import weakref

import pandas as pd
import pytest
import torch

from depthbench import loading, runfiles, specs, train
from depthbench.analyses import _baseline, angular
from depthbench.analyses._baseline import Baseline, batches
from depthbench.analyze import MODULES, analyze
from depthbench.data.calibration import calibration
from depthbench.errors import UserError

SUMMARIES = ("causal", "permutation", "block_mix")
FILES = {f"{name}{ending}" for name in MODULES for ending in (".csv", "_docs.parquet")}
FILES |= {f"{name}_summary.csv" for name in SUMMARIES}


def spec(*names, documents=4, tokens=16, arc_easy=None):
    size = {"documents": documents, "tokens": tokens}
    return specs.AnalysisSpec.model_validate({"names": names, "calibration": size, "arc_easy": arc_easy})


@pytest.fixture
def run(prepared, tmp_path):
    train.train(prepared.spec(steps=2), prepared.folder, tmp_path / "run", 4, 600.0)
    return tmp_path / "run"


def states(run):
    return {name: ", ".join(pd.read_csv(run / "analysis" / name)["status"].unique()) for name in csvs(run)}


def csvs(run):
    return sorted(path.name for path in (run / "analysis").glob("*.csv"))


def test_every_table_has_its_status_and_the_keys_of_the_run(run, task_spec):
    record = loading.record(run)
    scored = task_spec("arc_easy", limit=3).as_dict()
    analyze(run, spec(*MODULES, arc_easy=scored))
    assert {path.name for path in (run / "analysis").iterdir()} == FILES
    assert states(run) == {
        **dict.fromkeys(csvs(run), "ok"),
        **dict.fromkeys(("block_mix.csv", "block_mix_summary.csv", "transport.csv"), "not_applicable"),
        # of two blocks none but the first is late
        **dict.fromkeys(("causal_summary.csv", "permutation_summary.csv"), "too_shallow"),
    }
    sample = calibration(loading.data_of(run, record), 4, 16, 32)
    for name in csvs(run):
        table = pd.read_csv(run / "analysis" / name)
        assert (table["run_id"] == record["run_id"]).all()
        assert (table["data_id"] == record["data_id"]).all()
        assert (table["calib_id"] == sample.calib_id).all()
    documents = pd.read_parquet(run / "analysis" / "causal_docs.parquet")
    assert sorted(documents["doc_key"].unique()) == sorted(sample.doc_keys)


def test_a_table_is_that_of_the_analysis(run):
    analyze(run, spec("angular", documents=5))
    record = loading.record(run)
    loaded = runfiles.load(run, loading.data_of(run, record))
    with torch.no_grad():
        (batch,) = batches(calibration(loading.data_of(run, record), 5, 16, 32), torch.device("cpu"))
        expected = angular.table(angular.measure(Baseline(loaded.model, batch)), 1000)
    written = pd.read_csv(run / "analysis" / "angular.csv")
    assert len(written) == 3  # pairs of z_0, z_1, z_2
    pd.testing.assert_frame_equal(written[list(expected)], expected)


def test_what_is_not_asked_for_stays_or_says_so(run):
    analyze(run, spec("angular", "logitlens"))
    before = (run / "analysis" / "angular.csv").read_bytes()
    analyze(run, spec("logitlens", documents=3))
    assert (run / "analysis" / "angular.csv").read_bytes() == before
    assert csvs(run) == ["angular.csv", "logitlens.csv"]
    analyze(run, spec("angular"), complete=True)
    assert {path.name for path in (run / "analysis").iterdir()} == FILES
    others = dict.fromkeys(set(csvs(run)) - {"angular.csv"}, "not_requested")
    assert states(run) == {"angular.csv": "ok", **others}


def test_a_diverged_run_has_tables_without_values(prepared, tmp_path, monkeypatch):
    original = train.linear_cross_entropy
    monkeypatch.setattr(train, "linear_cross_entropy", lambda *a: original(*a) * math.nan)
    train.train(prepared.spec(steps=3), prepared.folder, tmp_path, 4, 600.0)
    analyze(tmp_path, spec("angular", "causal"), complete=True)
    assert (states(tmp_path)["causal.csv"], states(tmp_path)["causal_summary.csv"]) == ("diverged", "diverged")
    assert pd.read_csv(tmp_path / "analysis" / "causal.csv")["score"].isna().all()


def test_a_model_without_a_finite_loss_counts_as_diverged(run, monkeypatch):
    original = runfiles.load

    def broken(*args):
        loaded = original(*args)
        with torch.no_grad():
            loaded.model.lm_head.weight[0, 0] = math.nan
        return loaded

    monkeypatch.setattr(runfiles, "load", broken)
    analyze(run, spec("permutation"))
    assert states(run) == {"permutation.csv": "diverged", "permutation_summary.csv": "diverged"}


def test_too_few_long_documents_are_refused_before_anything_is_written(run, prepared):
    n_long = (pd.read_parquet(prepared.folder / "heldout" / "documents.parquet")["n_tokens"] >= 16).sum()
    told = rf"^E-CALIB calibration of N = 99 documents x C = 16 tokens: .* holds out {n_long} of them, .* T = 32, "
    with pytest.raises(UserError, match=told):
        analyze(run, spec("angular", documents=99))
    with pytest.raises(UserError, match=r"^E-CALIB .* C = 33 tokens: .* C must be at most T = 32"):
        analyze(run, spec("angular", tokens=33))
    assert not (run / "analysis").exists()


def test_an_error_of_an_analysis_names_the_run(run, monkeypatch):
    monkeypatch.setattr(Baseline, "document_nll", lambda self, state: torch.zeros(4, dtype=torch.float64))
    with pytest.raises(UserError, match=r"^E-BASE test/runs/preln/u-d16-l2/lr1e-2-s0: loss of the intact model is 0.0"):
        analyze(run, spec("permutation"))
    assert not (run / "analysis").exists()


def test_on_other_texts_nothing_is_written(run, prepared, tmp_path):
    import json
    import shutil

    other = shutil.copytree(prepared.folder, tmp_path / "other")
    about = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps(about | {"data_id": "another"}))
    found = analyze(run, spec("angular"), other)
    assert not found.written
    assert (found.tables["angular"]["data_id"] == "another").all()
    assert not (run / "analysis").exists()


def test_one_pass_is_in_memory_at_a_time(run, monkeypatch):
    alive, others = [], []
    original = Baseline.__init__

    def counted(self, *args):
        others.append(sum(one() is not None for one in alive))
        alive.append(weakref.ref(self))
        original(self, *args)

    monkeypatch.setattr(Baseline, "__init__", counted)
    monkeypatch.setattr(_baseline, "TOKENS_PER_BATCH", 16)
    analyze(run, spec("angular", "causal", documents=4))
    assert others == [0, 0, 0, 0]

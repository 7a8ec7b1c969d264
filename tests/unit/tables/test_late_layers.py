import pytest
from layer_tables import causal_score, pairs, permutation_score, share
from synthetic import TINY, Study, path

from depthbench import tables
from depthbench.artifacts import read
from depthbench.tables import late_layers


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path, names=late_layers.FILES)


def build(study):
    spec = study.spec()
    return late_layers.build(read(study.files, spec), spec)


def test_shares_at_the_papers_thresholds_and_at_others(study):
    study.add(path("moda", TINY[1]))
    study.add(path("preln", TINY[2]))
    table = build(study)
    assert table[["design", "measure", "skip_mode", "tau"]].to_numpy().tolist() == [
        ["preln", "causal", "mask", 0.45],
        ["preln", "permutation", "", 0.15],
        ["moda", "causal", "mask", 0.45],
        ["moda", "causal", "released", 0.45],
        ["moda", "permutation", "", 0.15],
    ]
    late = {n_layers: [pair for pair in pairs(n_layers) if pair[0] >= n_layers // 4] for n_layers in (8, 16)}
    assert table["n_pairs"].tolist() == [66, 66, 15, 15, 15]
    for row in table.itertuples():
        scores = [causal_score(*pair) for pair in late[row.n_layers]]
        scores = [2 * score for score in scores] if row.skip_mode == "released" else scores
        if row.measure == "permutation":
            scores = [permutation_score(row.n_layers, *pair) for pair in late[row.n_layers]]
        assert row.fraction == row.lo == row.hi == share(scores, row.tau)
    assert (
        table["fraction_0.45"].where(table["measure"] == "causal").dropna() == table["fraction"][table["tau"] == 0.45]
    ).all()
    assert (table["fraction_0.15"][table["tau"] == 0.15] == table["fraction"][table["tau"] == 0.15]).all()


def test_runs_without_a_share_keep_their_row(study):
    study.add(path("preln", TINY[0]), status="diverged")
    study.add(path("preln", TINY[1]), status="missing")
    study.add(path("preln", (2, 60)))
    study.add(path("hc", TINY[0]), layers={"causal_summary": "not_requested", "permutation_summary": "not_requested"})
    table = build(study)
    assert table[["n_layers", "status"]].to_numpy().tolist() == [
        *([2, "too_shallow"], [2, "too_shallow"]),
        *([4, "diverged"], [4, "diverged"]),
        *([8, "missing"], [8, "missing"]),
        *([4, "not_requested"], [4, "not_requested"]),
    ]
    assert table["measure"].tolist() == ["causal", "permutation"] * 4
    assert table[["fraction", *late_layers.FRACTIONS]].isna().all(axis=None)
    text = tables.latex(table, late_layers.PRINTED)
    assert text.count("diverged") == 2


def test_a_study_of_missing_runs(study):
    study.add(path("preln", TINY[1]), status="missing")
    assert build(study)["status"].tolist() == ["missing", "missing"]

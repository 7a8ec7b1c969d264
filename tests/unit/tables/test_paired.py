import numpy as np
import pandas as pd
import pytest
from synthetic import TINY, Study, path

from depthbench.artifacts import read
from depthbench.errors import UserError
from depthbench.tables import paired

FILES = ("validation.csv", "validation_docs.parquet")
NUMBERS = ["diff", "lo", "hi", "n_units", "excludes_zero"]


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path)


def build(study):
    spec = study.spec(files=FILES)
    return paired.build(read(study.only(*FILES), spec), spec)


def test_equal_models_differ_by_nothing(study):
    for design in ("preln", "hc"):
        study.add(path(design, TINY[0]), loss=4.3, spread=0.2)
    (row,) = build(study).itertuples()
    assert (row.contrast, row.design, row.design_ref, row.metric) == ("vs_preln_same_shape", "hc", "preln", "loss")
    assert (row.diff, row.lo, row.hi, row.n_units, row.excludes_zero) == (0, 0, 0, 100, "no")


def test_constant_difference_has_no_width_whatever_the_spread(study):
    study.add(path("preln", TINY[0]), loss=4.5, spread=0.5)
    study.add(path("hc", TINY[0], "5e-3"), loss=4.25, spread=0.5)  # at its own rate
    (row,) = build(study).itertuples()
    np.testing.assert_allclose([row.diff, row.lo, row.hi], -0.25, rtol=1e-9)
    assert (row.lr, row.lr_ref, row.excludes_zero) == ("5e-3", "1e-2", "yes")


def test_opposite_documents_widen_the_interval(study):
    """Documents differ by +0.125 and -0.125: sd of the mean 0.0125, so zero lies within."""
    study.add(path("preln", TINY[0]), loss=4.5, spread=0.0625)
    study.add(path("hc", TINY[0]), loss=4.5, spread=-0.0625)
    (row,) = build(study).itertuples()
    assert -0.04 < row.lo < 0 < row.hi < 0.04
    assert row.excludes_zero == "no"


def test_depths_are_compared_with_the_shallowest(study):
    for shape, loss in zip(TINY, (4.5, 4.25, 4.75), strict=True):
        study.add(path("preln", shape), loss=loss)
    table = build(study)
    assert table["contrast"].tolist() == ["vs_shallowest_same_design"] * 2
    assert table["n_layers"].tolist() == [8, 16]
    assert table["n_layers_ref"].tolist() == [4, 4]
    np.testing.assert_allclose(table["diff"], [-0.25, 0.25], rtol=1e-9)


def test_pairs_stay_within_suite_scale_and_seed(study):
    study.add(path("preln", TINY[0]), ["main"])
    study.add(path("preln", TINY[1], seed=1), ["main", "seeds"])
    study.add(path("preln", (8, 44)), ["backbone"])
    study.add(path("hc", TINY[0], scale="s"), ["main"])
    assert build(study).empty


def test_run_of_two_suites_has_a_row_in_each(study):
    for design in ("preln", "hc"):
        study.add(path(design, TINY[0]), ["backbone", "main", "sweep"])
    assert build(study)["suite"].tolist() == ["main", "backbone"]


@pytest.mark.parametrize(
    ("own", "reference", "note"),
    [
        ("missing", "ok", "run missing"),
        ("ok", "diverged", "reference diverged"),
        ("diverged", "missing", "run diverged, reference missing"),
    ],
)
def test_pair_without_both_losses_has_a_note_instead_of_numbers(study, own, reference, note):
    study.add(path("preln", TINY[0]), status=reference)
    study.add(path("hc", TINY[0]), status=own)
    study.add(path("attnres_full", TINY[0]))
    row = build(study).set_index("design").loc["hc"]
    assert row["note"] == note
    assert row[NUMBERS].isna().all()


def test_other_documents_are_refused(study):
    study.add(path("preln", TINY[0]))
    study.add(path("hc", TINY[0]))
    file = study.file(path("hc", TINY[0]), "validation_docs.parquet")
    docs = pd.read_parquet(file)
    docs.assign(doc_key=docs["doc_key"].str.replace("0", "f")).to_parquet(file)
    with pytest.raises(UserError, match=r"E-RUN tiny/runs/.*: .* are of other documents than those of tiny/runs/.*; "):
        build(study)

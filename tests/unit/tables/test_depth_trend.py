import numpy as np
import pandas as pd
import pytest
from synthetic import TINY, Study, path

from depthbench.artifacts import read
from depthbench.tables import depth_trend

FILES = ("validation.csv", "validation_docs.parquet")


def build(study, **changes):
    spec = study.spec(files=FILES, **changes)
    return depth_trend.build(read(study.only(*FILES), spec), spec)


def test_exact_line_of_equal_documents(tmp_path):
    """4.5 - 0.125 log2(L) at L = 4, 8, 16; without spread the interval has no width and L16 always wins."""
    study = Study(tmp_path)
    for shape, loss in zip(TINY, (4.25, 4.125, 4.0), strict=True):
        study.add(path("preln", shape), loss=loss)
    row = build(study).iloc[0]
    np.testing.assert_allclose(row[["slope", "slope_lo", "slope_hi"]].astype(float), -0.125, rtol=1e-12)
    assert row[["suite", "n_shapes", "best_shape", "best_share", "monotone", "absent"]].tolist() == [
        *("main", 3, "L16 d28", 1.0, "yes", ""),
    ]
    assert row["wins"] == "L4 d52: 0, L8 d40: 0, L16 d28: 1"


def test_least_squares_over_unequal_steps(tmp_path):
    """log2 L = 1, 2, 4 and losses 4, 4.5, 4: by hand (x - 7/3) = -4/3, -1/3, 5/3, slope = (-1/6) / (14/3)."""
    study = Study(tmp_path)
    for shape, loss in zip(((2, 64), (4, 52), (16, 28)), (4.0, 4.5, 4.0), strict=True):
        study.add(path("preln", shape), loss=loss)
    row = build(study).iloc[0]
    assert row["slope"] == pytest.approx(-1 / 28, rel=1e-12)
    assert (row["best_shape"], row["monotone"]) == ("L2 d64", "no")  # of equal losses the shallower


def test_documents_are_resampled_together(tmp_path):
    """Spread that all shapes share moves no slope; spread of one shape does, and makes it win now and then."""
    shared, own = Study(tmp_path / "shared"), Study(tmp_path / "own")
    for study, spread in ((shared, 0.25), (own, 0.0)):
        for shape in TINY[:2]:
            study.add(path("preln", shape), loss=4.5, spread=spread)
        study.add(path("preln", TINY[2]), loss=4.5, spread=0.25)
    row = build(shared, bootstrap=500).iloc[0]
    np.testing.assert_allclose(row[["slope", "slope_lo", "slope_hi"]].astype(float), 0, atol=1e-12)
    row = build(own, bootstrap=2000).iloc[0]
    # The loss of L16 has sd 0.25 / sqrt(100); slope = (loss_16 - loss_4) / 2; 1.96 sd on each side.
    np.testing.assert_allclose([row["slope_lo"], row["slope_hi"]], [-0.0245, 0.0245], atol=0.003)
    # It wins where fewer than 50 of 100 documents are of the bad kind: (1 - C(100, 50) / 2^100) / 2 = 0.46.
    shares = dict(part.split(": ") for part in row["wins"].split(", "))
    assert float(shares["L16 d28"]) == pytest.approx(0.4602, abs=0.035)
    assert float(shares["L8 d40"]) == 0
    assert row["best_share"] == float(shares["L4 d52"])


def test_diverged_and_missing_runs_take_no_part(tmp_path):
    study = Study(tmp_path)
    for shape, loss in zip(((2, 64), *TINY), (9.0, 4.25, 4.125, 4.0), strict=True):
        study.add(path("hc", shape), ["main"], loss=loss, status="missing" if shape[0] == 2 else "ok")
    study.add(path("hc", (32, 20)), ["main"], status="diverged")
    row = build(study).iloc[0]
    assert row["slope"] == pytest.approx(-0.125, rel=1e-12)
    assert (row["n_shapes"], row["absent"]) == (3, "L2 d64 missing, L32 d20 diverged")
    assert "L32" not in row["wins"]


@pytest.mark.parametrize("status", ["missing", "diverged"])
def test_one_depth_has_no_trend(tmp_path, status):
    study = Study(tmp_path)
    study.add(path("hc", TINY[0]))
    study.add(path("hc", TINY[1]), status=status)
    row = build(study).iloc[0]
    assert row[["slope", "slope_lo", "slope_hi", "best_shape", "best_share", "wins", "monotone"]].isna().all()
    assert (row["n_shapes"], row["absent"]) == (1, f"L8 d40 {status}")


def test_each_suite_and_scale_has_its_own_trend(tmp_path):
    study = Study(tmp_path)
    study.add(path("hc", TINY[0]), ["main"], loss=4.0)
    study.add(path("hc", TINY[1]), ["backbone", "main", "sweep"], loss=4.25)
    study.add(path("hc", (4, 56)), ["backbone"], loss=4.5)
    study.add(path("hc", TINY[0], scale="s"), ["ladder"], loss=5.0)
    study.add(path("hc", TINY[1], scale="s"), ["ladder"], loss=5.5)
    table = build(study)
    assert table["suite"].tolist() == ["main", "backbone", "ladder"]
    assert table["scale"].tolist() == ["t", "t", "s"]
    np.testing.assert_allclose(table["slope"], [0.25, -0.25, 0.5], rtol=1e-12)


def test_fewer_than_five_documents_have_no_interval(tmp_path):
    study = Study(tmp_path)
    for shape in TINY[:2]:
        study.add(path("hc", shape), loss=4.5)
        file = study.file(path("hc", shape), "validation_docs.parquet")
        pd.read_parquet(file).iloc[:4].to_parquet(file)
    row = build(study).iloc[0]
    assert row["slope"] == 0
    assert row[["slope_lo", "slope_hi", "best_share"]].isna().all()

import numpy as np
import pytest
from scipy.stats import t
from synthetic import TINY, Study, path

from depthbench.artifacts import read
from depthbench.tables import seed_noise


def build(study):
    spec = study.spec(files=("validation.csv",))
    return seed_noise.build(read(study.only("validation.csv"), spec), spec)


def add(study, design, losses, shape=TINY[1], scale="t"):
    for seed, loss in enumerate(losses):
        special = {"status": loss} if isinstance(loss, str) else {"loss": loss}
        study.add(path(design, shape, seed=seed, scale=scale), ["seeds"], **special)


def test_noise_is_pooled_over_the_cells_of_a_scale(tmp_path):
    """Cells (4.5, 4.5, 4.8) and (4.0, 4.2): variances 0.03 and 0.02, df 2 and 1, pooled 0.08 / 3."""
    study = Study(tmp_path)
    add(study, "preln", (4.5, 4.5, 4.8))
    add(study, "hc", (4.0, 4.2))
    add(study, "hc", (4.0, 4.0), scale="s")
    table = build(study)
    assert table["n_seeds"].tolist() == [3, 2, 2]
    np.testing.assert_allclose(table["loss_mean"], [4.6, 4.0, 4.1], rtol=1e-12)
    np.testing.assert_allclose(table["sd_cell"], [0.03**0.5, 0, 0.02**0.5], rtol=1e-9, atol=1e-12)
    sd = (0.08 / 3) ** 0.5
    np.testing.assert_allclose(table["sd"], [sd, 0, sd], rtol=1e-9, atol=1e-12)
    assert table["df"].tolist() == [3, 1, 3]
    # t_0.975(3) = 3.1824 (any t table)
    expected = [3.1824 * sd * (2 / 3) ** 0.5, 0, 3.1824 * sd]
    np.testing.assert_allclose(table["resolvable"], expected, rtol=1e-4, atol=1e-12)


def test_difference_that_is_resolvable_is_the_border_of_the_t_test(tmp_path):
    """Two cells whose means differ by `resolvable` have p = 0.05 in the t test with the same pooled variance."""
    study = Study(tmp_path)
    add(study, "preln", (4.5, 4.6, 4.8))
    add(study, "hc", (4.0, 4.2, 4.1))
    row = build(study).iloc[0]
    statistic = row["resolvable"] / (row["sd"] * np.sqrt(2 / 3))
    assert 2 * t.sf(statistic, 4) == pytest.approx(0.05, rel=1e-9)


def test_one_seed_has_no_spread_and_absent_seeds_are_named(tmp_path):
    study = Study(tmp_path)
    add(study, "preln", (4.5, "diverged", "missing"))
    add(study, "hc", (4.0, 4.2))
    row = build(study).iloc[0]
    assert (row["n_seeds"], row["loss_mean"], row["absent"]) == (1, 4.5, "seed 1 diverged, seed 2 missing")
    assert row[["sd_cell", "sd", "df", "resolvable"]].isna().all()


def test_all_runs_missing(tmp_path):
    study = Study(tmp_path)
    add(study, "preln", ("missing", "missing"))
    row = build(study).iloc[0]
    assert (row["n_seeds"], row["absent"]) == (0, "seed 0 missing, seed 1 missing")

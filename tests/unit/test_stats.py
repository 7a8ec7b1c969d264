import tracemalloc

import numpy as np
import pytest
from scipy import stats as scipy_stats

from depthbench.stats import bootstrap_ratio, resample_counts, resampled_ratios


def documents(n, seed):
    rng = np.random.default_rng(seed)
    predictions = rng.integers(20, 400, n).astype(float)
    return predictions * rng.gamma(9.0, 0.5, n), predictions


def test_counts_keep_the_size_of_each_stratum():
    counts = resample_counts((7, 1, 30), 50)
    assert (counts[:, :7].sum(axis=1) == 7).all()
    assert (counts[:, 7] == 1).all()  # a stratum of one unit is always drawn once
    assert (counts[:, 8:].sum(axis=1) == 30).all()


def test_every_unit_is_drawn_equally_often():
    counts = resample_counts((20,), 4000, seed=3)
    # binomial(20, 1/20): mean 1, variance 0.95
    np.testing.assert_allclose(counts.mean(axis=0), 1, atol=5 * np.sqrt(0.95 / 4000))
    assert counts.var() == pytest.approx(0.95, rel=0.02)


def test_constant_documents_give_zero_width():
    predictions = np.full(40, 128.0)
    lo, hi = bootstrap_ratio(4.625 * predictions, predictions, ["wiki"] * 30 + ["boolq"] * 10, 200)
    assert lo == hi == 4.625


def test_fewer_than_five_units_give_no_interval():
    assert np.isnan(bootstrap_ratio([1.0] * 4, [1.0] * 4, ["a"] * 4, 100)).all()
    assert bootstrap_ratio([1.0] * 5, [1.0] * 5, ["a"] * 5, 100) == (1.0, 1.0)


@pytest.mark.parametrize("sizes", [(120,), (90, 30, 5)])
def test_agrees_with_scipy(sizes):
    """SciPy resamples the unit numbers of each stratum; its statistic looks the documents up."""
    nll, predictions = documents(sum(sizes), seed=1)
    borders = np.cumsum(sizes)[:-1]
    units = np.split(np.arange(sum(sizes)), borders)
    nll[units[0]] *= 1.5  # the strata differ, so that an interval without them would be wider
    strata = np.repeat([f"origin{i}" for i in range(len(sizes))], sizes)

    def loss(*drawn, axis):
        drawn = np.concatenate(drawn, axis=axis)
        return nll[drawn].sum(axis=axis) / predictions[drawn].sum(axis=axis)

    theirs = scipy_stats.bootstrap(
        tuple(units), loss, n_resamples=20_000, method="percentile", vectorized=True, batch=2000, rng=7
    )
    ours = bootstrap_ratio(nll, predictions, strata, 20_000)
    # A percentile p of B normal draws has the standard error sd sqrt(p(1-p)) / (density sqrt(B)), which is
    # 2.67 sd / sqrt(B) at p = 0.025; the two results differ by sqrt(2) of it, taken here at 4 sigma.
    tolerance = 4 * np.sqrt(2) * 2.67 * theirs.standard_error / np.sqrt(20_000)
    np.testing.assert_allclose(ours, theirs.confidence_interval, atol=tolerance, rtol=0)


def test_order_of_the_strata_does_not_matter():
    nll, predictions = documents(60, seed=2)
    strata = np.array(["b"] * 25 + ["a"] * 35)
    swapped = np.r_[25:60, 0:25]
    assert bootstrap_ratio(nll, predictions, strata, 300) == bootstrap_ratio(
        nll[swapped], predictions[swapped], strata[swapped], 300
    )


def test_models_on_the_same_documents_are_paired():
    """A model that is worse by 0.25 nats on every document has the same interval, shifted by 0.25."""
    nll, predictions = documents(80, seed=4)
    strata = ["a"] * 50 + ["b"] * 30
    lo, hi = bootstrap_ratio(nll, predictions, strata, 400)
    worse = bootstrap_ratio(nll + 0.25 * predictions, predictions, strata, 400)
    np.testing.assert_allclose(worse, (lo + 0.25, hi + 0.25), rtol=1e-12)
    assert bootstrap_ratio(nll, predictions, strata, 400, seed=1) != (lo, hi)


def test_coverage_of_a_known_ratio():
    """NLL per token is gamma with mean 4.5 whatever the length, so the true ratio is 4.5."""
    covered = 0
    for trial in range(400):
        nll, predictions = documents(150, seed=1000 + trial)
        lo, hi = bootstrap_ratio(nll, predictions, ["a"] * 150, 300)
        covered += lo <= 4.5 <= hi
    # 95 %, within 3 standard errors of 400 trials (1.1 % each); percentile intervals cover a little less
    assert 0.91 <= covered / 400 <= 0.98


def test_memory_for_ten_thousand_documents():
    """One matrix of counts, 80 MB for 1000 resamples, and little else."""
    ones = np.ones(10_000)
    tracemalloc.start()
    bootstrap_ratio(ones, ones, ["a"] * 6000 + ["b"] * 4000, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 90e6


def test_models_share_their_resamples():
    """A model that is worse by 0.25 on every unit is so in every resample; equal models are equal in each."""
    nll, predictions = documents(40, seed=2)
    strata = ["b"] * 25 + ["a"] * 15
    ratios = resampled_ratios([nll, nll + 0.25 * predictions, nll], predictions, strata, 60)
    assert ratios.shape == (60, 3)
    np.testing.assert_allclose(ratios[:, 1] - ratios[:, 0], 0.25, rtol=1e-9)
    assert (ratios[:, 2] == ratios[:, 0]).all()
    assert tuple(np.percentile(ratios[:, 0], [2.5, 97.5])) == bootstrap_ratio(nll, predictions, strata, 60)
    assert np.isnan(resampled_ratios([nll[:4]], predictions[:4], strata[:4], 3)).all()

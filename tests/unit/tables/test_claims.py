import itertools
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic import Study, path

from depthbench import config, reference
from depthbench.artifacts import ArtifactSpec, read
from depthbench.errors import UserError
from depthbench.picks import Pick, artifact_spec, select
from depthbench.readers import COLUMNS
from depthbench.tables import claims, latex
from depthbench.tables._claim_runs import Evidence, Measured, Unmeasured

FILES = ("validation.csv", "validation_docs.parquet")
REFERENCE = Path(__file__).parents[3] / "workflow" / "reference"
TWO = ((4, 52), (16, 28))
ANALYSES = ("causal_summary", "permutation_summary", "block_mix_summary", "transport")


def claim(metric, selector, relation, value):
    row = {"id": "a", "section": "3", "claim": "c", "paper": "p"}
    return row | {"metric": metric, "selector": selector, "relation": relation, "value": value}


def judge(study, *row, **analyses):
    """The row of one claim, given rows of analyses by name."""
    spec = study.spec(files=FILES)
    frames = read(study.only(*FILES), spec)
    for name in ANALYSES:
        types = COLUMNS[f"analysis/{name}.csv"]
        frames[name] = pd.DataFrame(analyses.get(name, []), columns=list(types)).astype(types)
    found = claims.build(frames | {"claims": pd.DataFrame([claim(*row)])}, spec).iloc[0]
    return found["verdict"], found


def test_designs_are_compared_at_one_shape_and_one_design_at_two(tmp_path):
    study = Study(tmp_path)
    study.add(path("preln", TWO[0]), loss=4.0)
    study.add(path("hc", TWO[1]), loss=3.0)
    verdict, row = judge(study, "loss_difference", "design=hc | design=preln", "<", "0")
    assert (verdict, row["note"]) == ("not run", "no shape in common")
    study.add(path("hc", TWO[0]), loss=3.5)
    assert judge(study, "loss_difference", "design=hc | design=preln", "<", "0")[1]["ours"] == -0.5
    assert judge(study, "loss_difference", "design=hc n_layers=16 | n_layers=4", "<", "0")[1]["ours"] == -0.5


@pytest.mark.parametrize(
    ("relation", "value", "found", "expected"),
    [
        ("<", "0", (-2, -3, -1), "agrees"),
        ("<", "0", (2, 1, 3), "disagrees"),
        ("<", "0", (-1, -3, 1), "undecided"),
        ("<", "0", (0, 0, 0), "undecided"),
        (">", "2", (2.3, 2.3, 2.3), "agrees"),
        (">", "2", (1.9, 1.8, 1.99), "disagrees"),
        (">", "2", (2.1, 2, 2.2), "undecided"),
        ("between", "1..2", (1.5, 1, 2), "agrees"),
        ("between", "1..2", (1.5, 0.9, 1.7), "undecided"),
        ("between", "1..2", (2.5, 2.1, 2.9), "disagrees"),
        ("=", "5", (5, 5, 5), "agrees"),
        ("=", "5", (4, 4, 4), "disagrees"),
        ("<", "0", (-1, np.nan, np.nan), "undecided"),
        ("between", "1..2", (1.5, np.nan, np.nan), "undecided"),
    ],
)
def test_verdict_follows_from_the_interval_alone(relation, value, found, expected):
    assert claims.verdict(relation, value, Measured(*found)) == expected


@pytest.fixture
def study(tmp_path):
    """Pre-LN loses 0.25 over two doublings, HC gains 0.25; Full AttnRes stays, and its deep run spreads.

    Half of its 100 documents have 0.25 more, half 0.25 less: the mean has sd 0.025.
    """
    study = Study(tmp_path)
    for design, losses, spread in (("preln", (4, 4.25), 0), ("hc", (4, 3.75), 0), ("attnres_full", (4, 4), 0.25)):
        study.add(path(design, TWO[0]), loss=losses[0])
        study.add(path(design, TWO[1]), loss=losses[1], spread=spread)
    return study


def test_claims_on_losses_and_their_intervals(study):
    verdict, row = judge(study, "slope", "suite=main design=preln", ">", "0")
    assert (verdict, row["ours"], row["lo"], row["hi"]) == ("agrees", 0.125, 0.125, 0.125)
    assert judge(study, "slope", "suite=main design=hc", ">", "0")[0] == "disagrees"
    verdict, row = judge(study, "slope", "suite=main design=attnres_full", "<", "0")
    assert verdict == "undecided"
    assert row["hi"] == pytest.approx(1.96 * 0.025 / 2, abs=0.006)
    verdict, row = judge(study, "loss_difference", "design=hc n_layers=16 | design=preln", "<", "0")
    assert (verdict, row["ours"], row["unit"], row["allowed"]) == ("agrees", -0.5, "nats/token", "< 0")
    _, row = judge(study, "loss_difference", "design=hc | design=preln", "<", "0")  # mean over shapes
    assert row["ours"] == -0.25


def test_repeated_seeds_put_the_noise_of_training_into_the_interval(tmp_path):
    """Two seeds 1/16 apart at each of two shapes: sd = 1/16 / sqrt(2), df = 2; the slope's weights are -1/2, 1/2."""
    study = Study(tmp_path)
    for shape, loss in zip(TWO, (4, 4.25), strict=True):
        study.add(path("preln", shape), ["main", "seeds"], loss=loss)
        study.add(path("preln", shape, seed=1), ["seeds"], loss=loss + 1 / 16)
        study.add(path("hc", shape), loss=loss - 0.25)
    half = 4.302653 / 16 / np.sqrt(2)  # t_0.975(2) sd
    for design in ("preln", "hc"):  # also for what has one seed
        verdict, row = judge(study, "slope", f"suite=main design={design}", ">", "0")
        assert (verdict, row["ours"]) == ("undecided", 0.125)
        assert row["hi"] - row["ours"] == pytest.approx(half / np.sqrt(2), rel=1e-6)
        assert row["ours"] - row["lo"] == pytest.approx(half / np.sqrt(2), rel=1e-6)
    verdict, row = judge(study, "loss_difference", "suite=main design=hc | design=preln", "<", "0")
    assert (verdict, row["ours"]) == ("agrees", -0.25)
    assert row["hi"] - row["ours"] == pytest.approx(half, rel=1e-6)  # of the mean of two differences


def test_best_shape(study):
    verdict, row = judge(study, "best_aspect", "design=preln", "between", "12..14")
    assert (verdict, row["ours"]) == ("agrees", 13)
    verdict, row = judge(study, "best_aspect", "design=attnres_full", "between", "12..14")
    assert (verdict, row["lo"], row["hi"]) == ("undecided", 1.75, 13)  # either wins in half of the resamples


def test_the_lowest_loss_of_several_rates_counts(study):
    for lr, loss, status in (("2e-3", 5.0, "diverged"), ("1e-3", 4.5, "ok"), ("5e-4", 4.75, "ok")):
        study.add(path("keel", TWO[0], lr=lr), ["sweep"], loss=loss, status=status)
    _, row = judge(study, "loss_difference", "suite=sweep design=keel | suite=main design=preln", ">", "0")
    assert (row["ours"], row["verdict"]) == (0.5, "agrees")


def test_what_is_not_there_is_not_run_and_what_diverged_is_undecided(study):
    verdict, row = judge(study, "slope", "suite=main scale=400m design=hc", "<", "0")
    assert (verdict, row["note"]) == ("not run", "the study has no such run")
    assert pd.isna(row["ours"])
    study.add(path("hc", (8, 40)), status="missing")
    verdict, row = judge(study, "slope", "suite=main design=hc", "<", "0")
    assert (verdict, row["note"]) == ("not run", "missing: HC L8 d40")
    study.add(path("preln", (8, 40)), status="diverged")
    verdict, row = judge(study, "slope", "suite=main design=preln", ">", "0")
    assert (verdict, row["note"]) == ("undecided", "diverged: Pre-LN L8 d40")
    assert judge(study, "diverged", "design=preln n_layers=8", "=", "1")[0] == "agrees"
    assert judge(study, "diverged", "design=preln n_layers=4", "=", "1")[0] == "disagrees"
    study.add(path("lns", TWO[0]))
    assert judge(study, "slope", "design=lns", "<", "0")[1]["note"] == "one depth only"


def share(design, shape, fraction, lo, hi, **more):
    row = {"run_id": f"tiny/runs/{path(design, shape)}", "status": "ok", "skip_mode": "mask", "is_paper": True}
    return row | {"tau": 0.45, "fraction": fraction, "lo": lo, "hi": hi} | more


def test_shares_are_those_at_the_papers_threshold_and_of_its_skips(study):
    rows = [
        share("hc", TWO[1], 0.5, 0.4, 0.6, skip_mode="released"),
        share("hc", TWO[1], 0.9, 0.9, 0.9),
        share("hc", TWO[1], 0.8, 0.8, 0.8, is_paper=False),
        share("preln", TWO[1], 0.25, 0.2, 0.3),
        share("hc", TWO[0], None, None, None, is_paper=None, status="too_shallow"),
        share("preln", TWO[0], 0.0, 0.0, 0.0),
    ]
    verdict, row = judge(study, "causal_share", "design=hc n_layers=16", "between", "0.35..0.65", causal_summary=rows)
    assert (verdict, row["ours"], row["lo"], row["hi"]) == ("agrees", 0.5, 0.4, 0.6)
    # of L16 alone, where both have one: from 0.4 - 0.3 to 0.6 - 0.2
    verdict, row = judge(study, "causal_share", "design=hc | design=preln", ">", "0", causal_summary=rows)
    assert verdict == "agrees"
    np.testing.assert_allclose(row[["ours", "lo", "hi"]].astype(float), [0.25, 0.1, 0.4], rtol=1e-12)
    assert row["note"].endswith("blocks left out by our rule: 0.65 [0.6, 0.7]")
    row = judge(study, "causal_share", "design=preln | design=preln", ">", "0", causal_summary=rows)[1]
    assert not row["note"]  # of it both rules say the same
    row = judge(study, "causal_share", "design=hc n_layers=4", ">", "0", causal_summary=rows)[1]
    assert (row["verdict"], row["note"]) == ("not run", "analysis: too shallow")


def test_a_mean_over_shapes_tells_which_it_lacks(study):
    rows = [
        share("hc", TWO[1], 0.5, 0.4, 0.6),
        share("hc", TWO[0], None, None, None, is_paper=None, status="too_shallow"),
        share("preln", TWO[1], 0.25, 0.2, 0.3),
        share("preln", TWO[0], 0.0, 0.0, 0.0),
    ]
    _, row = judge(study, "causal_share", "design=hc | design=preln", ">", "0", causal_summary=rows)
    assert (row["ours"], row["note"]) == (0.25, "without L4 d52")


def test_rank_is_that_of_all_sublayers_and_every_shape(study):
    keys = {"status": "ok"}
    rows = [
        keys | {"run_id": f"tiny/runs/{path('hc', shape)}", "n_sublayers": n}
        | {"effective_rank": rank, "effective_rank_lo": rank - 0.125, "effective_rank_hi": rank + 0.125}
        for shape, n, rank in ((TWO[0], 1, 4.0), (TWO[0], 8, 2.5), (TWO[1], 16, 4.0), (TWO[1], 32, 2.75))
    ]  # fmt: skip
    verdict, row = judge(study, "effective_rank", "design=hc", "between", "2.375..2.875", transport=rows)
    assert (verdict, row["ours"], row["lo"], row["hi"]) == ("agrees", 2.625, 2.375, 2.875)
    assert judge(study, "effective_rank", "design=hc", "between", "2.5..3", transport=rows)[0] == "undecided"
    # one shape above a bound on all of them is enough
    verdict, row = judge(study, "most_rank", "design=hc", "<", "2.6", transport=rows)
    assert (verdict, row["ours"], row["lo"], row["hi"]) == ("disagrees", 2.75, 2.625, 2.875)
    verdict, row = judge(study, "least_rank", "design=hc", ">", "2.25", transport=rows)
    assert (verdict, row["ours"], row["lo"], row["hi"]) == ("agrees", 2.5, 2.375, 2.625)
    verdict, row = judge(study, "least_rank", "design=hc", ">", "2.25", transport=rows[2:])
    assert (verdict, row["note"]) == ("not run", "without L4 d52")


@pytest.mark.parametrize(
    ("dead", "claimed", "expected"),
    [(4, "2", "agrees"), (3, "2", "undecided"), (5, "2", "undecided"), (6, "2", "disagrees"), (2, "2", "disagrees")],
)
def test_the_first_sublayer_may_belong_to_the_dead_ones(study, dead, claimed, expected):
    """Three sub-layers behind it are two layers with it, one and a half without."""
    rows = [{"run_id": f"tiny/runs/{path('hc', TWO[1])}", "status": "ok", "dead_sublayers": dead}]
    asked = (study, "dead_layers", "design=hc n_layers=16", "=", claimed)
    assert judge(*asked, block_mix_summary=rows)[0] == expected


def test_a_claim_that_cannot_be_read_is_one_line(study):
    with pytest.raises(UserError, match=r"E-REFERENCE claims.csv: a: no metric 'gain'; known: slope, "):
        judge(study, "gain", "design=hc", "<", "0")
    with pytest.raises(UserError, match=r"E-REFERENCE claims.csv: selector 'design=hc L=4': L is none of "):
        judge(study, "slope", "design=hc L=4", "<", "0")


@pytest.fixture(scope="module")
def written():
    return reference.read(REFERENCE / "claims.csv", "claims.csv")


def test_every_claim_speaks_of_runs_of_the_paper_study(written, raw):
    """Nothing is trained: closed forms are known (architectures.md 6: 2.981, 4.433, 2.303), all others are missing."""
    study = config.load({**raw, "study": "paper"})
    picked = select(study, [Pick(suite) for suite in ("main", "backbone", "ladder", "large", "moda_norms")])
    names = [name for name in claims.FILES if name != "claims.csv"]
    text = artifact_spec(study, "table", "claims", names, picked, [run.path for run in picked], picked)
    spec = ArtifactSpec.from_json(text)
    frames = read([], spec)
    table = claims.build(frames | {"claims": written}, spec).set_index("id")
    exact = table.loc[["prefill-least", "prefill-most", "kv-cache"]]
    np.testing.assert_allclose(exact["ours"].astype(float), [2.981232, 4.432710, 734003200 / 318767104], rtol=1e-6)
    assert set(exact["verdict"]) == {"agrees"}
    others = table.drop(index=exact.index)
    judged = others[others["verdict"] != "contradiction"]
    assert len(judged) == 37
    assert set(judged["verdict"]) == {"not run"}
    assert judged["note"].str.startswith("missing").all(), judged["note"].tolist()
    assert latex(table.reset_index(), claims.PRINTED).count(r"\\") == len(table) + 1


def test_numbers_of_claims_are_the_published_ones(written):
    """Differences of losses as printed; contradictions consist of published losses."""
    reported = {"paper_reported": reference.read(REFERENCE / "paper_reported.csv", "paper_reported.csv")}
    values = {
        suite: reference.published(reported, "val_loss", suite).assign(suites=suite, seed=0, status="ok")
        for suite in ("main", "backbone")
    }
    runs = pd.concat(values.values()).rename(columns={"value": "loss"})
    evidence = Evidence(None, {}, runs, pd.DataFrame(), {})
    checked = 0
    for row in written[written["metric"] == "loss_difference"].itertuples():
        printed = re.search(r"[+-]0\.\d+", row.paper)
        try:
            first, second = evidence.select(row.selector)
        except Unmeasured:
            continue
        assert float(first["loss"].iloc[0] - second["loss"].iloc[0]) == pytest.approx(float(printed[0]), abs=1e-9)
        checked += 1
    assert checked == 10
    known = set(reported["paper_reported"].query("metric == 'val_loss'")["value"])
    contradictions = written[written["metric"] == ""]["paper"].str.split("; ")
    assert len(contradictions) == 6
    assert {float(value) for value in itertools.chain(*contradictions)} <= known

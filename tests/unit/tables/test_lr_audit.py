"""Sweeps whose audit is worked out by hand."""

from pathlib import Path

import pandas as pd
import pytest
from synthetic import TINY, Study, path

from depthbench import tables
from depthbench.artifacts import ArtifactSpec, read
from depthbench.tables import learning_rates, lr_audit

REPORTED = Path(__file__).parents[3] / "workflow" / "reference" / "paper_reported.csv"
GRID = ("5e-4", "1e-3", "2e-3", "15e-3")


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path)


def sweep(study, design, losses, shape=TINY[2], grid=GRID):
    """Add a grid of runs; a loss may be `diverged` or `missing`."""
    for lr, loss in zip(grid, losses, strict=True):
        special = {"status": loss} if isinstance(loss, str) else {"loss": loss}
        study.add(path(design, shape, lr), ["sweep"], **special)


def build(study, module=lr_audit, **changes):
    spec = study.spec(files=("validation.csv",), **changes)
    return module.build(read(study.only("validation.csv"), spec), spec)


@pytest.mark.parametrize(
    ("losses", "best", "loss", "edge", "margin"),
    [
        ((4.5, 4.25, 4.375, 4.75), "1e-3", 4.25, "no", 0.125),
        ((4.25, 4.5, 4.625, 4.75), "5e-4", 4.25, "low", 0.25),
        ((4.75, 4.5, 4.375, 4.25), "15e-3", 4.25, "high", 0.125),
        # A tie goes to the smaller rate.
        ((4.5, 4.25, 4.25, 4.75), "1e-3", 4.25, "no", 0.0),
        # A diverged run is never the best, and closes the bracket.
        ((4.5, 4.375, 4.25, "diverged"), "2e-3", 4.25, "no", 0.125),
        # A missing run is not: nobody knows what it would give.
        ((4.5, 4.375, 4.25, "missing"), "2e-3", 4.25, "high", 0.125),
        (("missing", 4.25, 4.375, "diverged"), "1e-3", 4.25, "low", 0.125),
        (("diverged", 4.25, "diverged", "diverged"), "1e-3", 4.25, "no", None),
        (("missing", 4.25, "missing", "missing"), "1e-3", 4.25, "single", None),
        (("diverged", "diverged", "missing", "diverged"), None, None, None, None),
    ],
)
def test_audit_worked_by_hand(study, losses, best, loss, edge, margin):
    sweep(study, "preln", losses)
    row = build(study).astype("object").where(lambda found: found.notna(), None).iloc[0]
    assert row["grid"] == "5e-4, 1e-3, 2e-3, 15e-3"  # by value, not by text
    assert [row["best_lr"], row["best_loss"], row["at_edge"], row["margin_to_second"]] == [best, loss, edge, margin]
    named = {
        status: [lr for lr, x in zip(GRID, losses, strict=True) if x == status] for status in ("diverged", "missing")
    }
    for status, rates in named.items():
        assert (row[f"n_{status}"], row[status]) == (len(rates), ", ".join(rates))
    assert row["margin_exceeds_noise"] == "unknown"
    assert row["same_best_across_shapes"] is None  # one shape


@pytest.mark.parametrize(("margin", "answer"), [(0.376, "yes"), (0.374, "no")])
def test_margin_is_compared_with_what_one_seed_can_resolve(study, margin, answer):
    """Two seeds that differ by x: sd = x / sqrt(2), df = 1, one seed resolves 12.7062 sd sqrt(2) = 0.375 here."""
    sweep(study, "preln", (5.0, 4.25, 4.25 + margin, 5.5))
    for seed, loss in enumerate((4.5, 4.5 + 0.375 / 12.7062)):
        study.add(path("hc", TINY[1], seed=seed), ["seeds"], loss=loss)
    table = build(study)
    assert table["design"].tolist() == ["preln"]  # seeds are not audited
    assert table["margin_exceeds_noise"].tolist() == [answer]


def test_noise_of_another_scale_says_nothing(study):
    sweep(study, "preln", (5.0, 4.25, 4.5, 5.5))
    for seed in (0, 1):
        study.add(path("hc", TINY[1], seed=seed, scale="s"), ["seeds"], loss=4.5)
    assert build(study)["margin_exceeds_noise"].tolist() == ["unknown"]


def test_shapes_are_compared(study):
    sweep(study, "preln", (4.5, 4.25, 4.375, 4.75), TINY[0])
    sweep(study, "preln", (4.5, 4.25, 4.375, 4.75), TINY[1])
    sweep(study, "preln", ("missing",) * 4, TINY[2])  # has no say
    sweep(study, "hc", (4.5, 4.25, 4.375, 4.75), TINY[0])
    sweep(study, "hc", (4.5, 4.375, 4.25, 4.75), TINY[2])
    table = build(study)
    assert table["same_best_across_shapes"].tolist() == ["yes", "yes", "yes", "no", "no"]


def test_declared_rate_is_that_of_the_configuration(study):
    study.declared = {"preln": "15e-3"}
    sweep(study, "preln", (4.5, 4.25, 4.375, 4.75))
    assert build(study)["declared_lr"].tolist() == ["15e-3"]


def test_table_4(study, tmp_path):
    """Designs with a sweep at two shapes, at one, and without; a scale of its own rate."""
    study.declared = {"lns": "1e-3", "preln": "2e-3"}
    sweep(study, "preln", (4.5, 4.25, 4.375, "diverged"), TINY[0])
    sweep(study, "preln", (4.5, "missing", 4.25, 4.375), TINY[1])
    sweep(study, "lns", (4.75, 4.5, 4.375, 4.25))
    spec = study.spec(files=("validation.csv",))
    other = path("hc", TINY[0], "5e-4", scale="s")
    plans = spec.plans | {"hc/s-d52-l4": study.plan(other) | {"tokens": 9e9, "declared_lr": "5e-4"}}
    labels = spec.labels | {"hc": ("HC", "multi-stream")}
    table = build(study, learning_rates, plans=plans, labels=labels)
    keys = ["design", "scale", "declared_lr", "best_lr", "declared_is_best", "at_edge", "n_shapes"]
    assert table[keys].astype("object").where(table[keys].notna(), None).to_numpy().tolist() == [
        ["preln", "t", "2e-3", "1e-3, 2e-3", "no", "no", 2],
        ["lns", "t", "1e-3", "15e-3", "no", "high", 1],
        ["hc", "s", "5e-4", None, None, None, None],
    ]
    assert table["diverged"].tolist()[0] == "L4 d52: 15e-3"
    assert table["missing"].tolist()[0] == "L8 d40: 1e-3"


def test_table_4_of_a_study_without_a_sweep(study, tmp_path):
    run = path("preln", TINY[0])
    labels = {"preln": ["Pre-LN", "baseline"]}
    spec = ArtifactSpec.from_json(
        study.json(files=["validation.csv"], plans={"preln/t-d52-l4": study.plan(run)}, labels=labels)
    )
    out = tmp_path / "learning_rates.csv"
    tables.write("learning_rates", [], spec, out)
    table = pd.read_csv(out, dtype="str")
    assert table.loc[0, ["label", "declared_lr"]].tolist() == ["Pre-LN", "1e-2"]
    assert table.loc[0, "grid":].isna().all()


def test_table_4_has_the_papers_rates_at_its_scale(study):
    runs = [path("lns", (24, 1024), scale=scale) for scale in ("400m", "t", "1600m")]
    for run in runs:
        study.add(run, loss=3.0)
    spec = study.spec(files=("validation.csv", REPORTED.name))
    table = learning_rates.build(read([*study.only("validation.csv"), REPORTED], spec), spec)
    assert table.set_index("scale")["published"].dropna().to_dict() == {"400m": 0.01, "1600m": 5e-4}

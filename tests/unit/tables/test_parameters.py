"""Table 6 of the paper, as `architectures.md` section 5 prints it; other shapes by its formulas."""

import pytest
from synthetic import LABELS, OWN, TINY, Study, path, preln_params

from depthbench.tables import parameters

LABELS = LABELS | {"moda_postln": ("MoDA (Post-LN)", "cross-layer"), "mhc_legacy": ("mHC (legacy)", "multi-stream")}
# designs, total, overhead, overhead [%] at L = 24, d = 1024
TABLE_6 = """
preln lns deepnorm | 405,406,720 0 0.0000
keel | 405,454,848 48,128 0.0119
sandwich | 405,455,872 49,152 0.0121
attnres_full attnres_block | 405,505,024 98,304 0.0242
hc | 405,702,880 296,160 0.0731
mhc | 410,126,608 4,719,888 1.1642
moda moda_postln | 453,641,216 48,234,496 11.8978
"""
PAPER = {"n_heads": 16, "vocab_size": 50280}
# L, d, and the difference [%] of Pre-LN from L = 24 with its norm gains
MAIN = [(16, 1216, 0.28), (20, 1120, 2.14), (24, 1024, 0), (28, 960, 0.21), (32, 896, -1.49), (42, 800, -0.31)]
BACKBONE = [(16, 1248, -1.11), (24, 1024, 0), (32, 896, 2.26), (42, 768, -1.69), (70, 608, 3.15), (84, 544, -1.09)]


def planned(tmp_path, model, suites):
    """A study of which nothing is trained; `suites` is suite -> (designs, shapes, scale)."""
    study = Study(tmp_path)
    study.model = model
    for suite, (designs, shapes, scale) in suites.items():
        for run in (path(design, shape, scale=scale) for design in designs for shape in shapes):
            study.runs[run] = (*study.runs.get(run, ()), suite)
    return study


def build(study, **changes):
    return parameters.build({}, study.spec(files=(), **changes))


@pytest.fixture
def labels(monkeypatch):
    monkeypatch.setattr("synthetic.LABELS", LABELS)


@pytest.mark.parametrize("line", TABLE_6.strip().splitlines())
def test_table_6(tmp_path, labels, line):
    designs, numbers = (part.split() for part in line.split("|"))
    table = build(planned(tmp_path, PAPER, {"main": (designs, [(24, 1024)], "400m")}))
    assert sorted(table["design"]) == sorted(designs)
    for row in table.to_dict("records"):
        shown = [f"{row['n_params']:,}", f"{row['own_params']:,}", f"{row['overhead_pct']:.4f}"]
        assert shown == numbers
        assert (row["base_params"], row["table_params"]) == (405_406_720, 405_356_544)


def test_overhead_grows_as_models_become_small(tmp_path):
    """mHC and MoDA at the shapes of the mini study: d = 32, L = 24, V = 1024 gives mHC 148,752 of 386,592."""
    shapes = [(6, 60), (12, 44), (24, 32)]
    table = build(planned(tmp_path, {"n_heads": 2, "vocab_size": 1024}, {"main": (("mhc", "moda"), shapes, "m")}))
    expected = [100 * OWN[design](L, d) / preln_params(L, d, 1024) for design in ("mhc", "moda") for L, d in shapes]
    assert table["overhead_pct"].tolist() == pytest.approx(expected, rel=1e-12)
    assert table["n_params"].tolist()[2] == 386_592 + 148_752


def test_difference_from_the_budget_of_each_suite(tmp_path):
    """Pre-LN alone gives the differences of the shapes; what a design adds comes on top, also without embeddings."""
    suites = {name: (("preln", "mhc"), [s[:2] for s in rows], "400m") for name, rows in
              {"main": MAIN, "backbone": BACKBONE}.items()}  # fmt: skip
    table = build(planned(tmp_path, PAPER, suites)).set_index(["suite", "design"])
    for suite, rows in {"main": MAIN, "backbone": BACKBONE}.items():
        differences = table.loc[(suite, "preln"), "budget_diff_pct"].tolist()
        assert differences == pytest.approx([row[2] for row in rows], abs=0.005)
    main, backbone = (table.loc[(suite, "mhc")].set_index("n_layers").loc[24] for suite in suites)
    assert main["budget_diff_pct"] == pytest.approx(1.1642, abs=5e-5)
    assert backbone["budget_diff_pct"] == pytest.approx(100 * 4_719_888 / (405_406_720 - 2 * 50280 * 1024), rel=1e-12)


def test_the_large_suite_is_compared_with_its_shallowest_shape(tmp_path):
    """Table 9; grouped heads and an FFN of 3 d come from the configuration."""
    study = planned(tmp_path, PAPER | {"n_kv_heads": 8}, {"large": (["hc"], [(28, 2048), (40, 1728)], "1600m")})
    plans = study.plans()
    for plan in plans.values():
        plan["model"]["d_ff"] = 3 * plan["model"]["d_model"]
    table = build(study, plans=plans)
    gains = [(2 * L + 1) * d for L, d in ((28, 2048), (40, 1728))]
    base = [1_615_233_024 + gains[0], 1_607_040_000 + gains[1]]
    assert table["base_params"].tolist() == base
    own = [OWN["hc"](28, 2048), OWN["hc"](40, 1728)]
    expected = [100 * own[0] / base[0], 100 * ((base[1] + own[1]) / base[0] - 1)]
    assert table["budget_diff_pct"].tolist() == pytest.approx(expected, rel=1e-9)


def test_what_only_other_suites_have_is_there_once(tmp_path, labels):
    """Rates and seeds change no size; a sweep of the main shapes says nothing new but for its own variant."""
    study = planned(
        tmp_path,
        {"n_heads": 2, "vocab_size": 512},
        {"main": (("preln", "moda"), TINY, "t"), "sweep": (("preln", "mhc_legacy"), TINY[2:], "t")},
    )
    study.runs[path("preln", TINY[1], seed=1)] = ["seeds"]
    for lr in ("5e-3", "1e-2"):
        study.runs[path("moda_postln", TINY[1], lr)] = ["moda_norms"]
    plans = study.plans()
    plans["mhc_legacy/t-d28-l16"]["model"] |= {"design": "mhc", "init": "legacy"}
    table = build(study, plans=plans)
    assert list(zip(table["suite"], table["design"], table["n_layers"], strict=True)) == [
        *(("main", design, depth) for design in ("preln", "moda") for depth in (4, 8, 16)),
        ("moda_norms", "moda_postln", 8),
        ("sweep", "mhc_legacy", 16),
    ]
    assert table["own_params"].tolist()[-2:] == [OWN["moda"](8, 40), OWN["mhc"](16, 28)]


def test_a_design_without_a_closed_form_is_counted_on_its_model(tmp_path):
    """DenseFormer: block l has l + 2 weights, so L (L + 3) / 2 of its own."""
    study = planned(tmp_path, {"n_heads": 2, "vocab_size": 512}, {"main": (["denseformer"], TINY, "t")})
    spec = study.json(files=[], labels={"denseformer": ["DenseFormer", "cross-layer"]})
    table = parameters.build({}, parameters.ArtifactSpec.from_json(spec))
    assert table["own_params"].tolist() == [L * (L + 3) // 2 for L, _ in TINY]

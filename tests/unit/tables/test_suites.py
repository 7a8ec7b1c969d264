from synthetic import TINY, Study, path

from depthbench.tables import suites

KEYS = ["suite", "scale", "designs", "shapes", "lr", "seeds", "n_runs"]


def test_each_suite_says_what_it_trains(tmp_path):
    """Designs with the same shapes stand together; a rate of its own is named; scales go by their tokens."""
    study = Study(tmp_path)
    study.steps = {"500m": 9500, "1600m": 30400}
    for design, lr in {"preln": "2e-3", "lns": "1e-2", "hc": "2e-3"}.items():
        for shape in TINY if design == "hc" else TINY[:2]:
            study.runs[path(design, shape, lr)] = ["main"]
    study.runs[path("preln", TINY[0], "2e-3")] = ["main", "seeds"]
    study.runs[path("preln", TINY[0], "2e-3", seed=1)] = ["seeds"]
    for scale in ("1600m", "500m"):
        study.runs[path("preln", TINY[0], "5e-4", scale=scale)] = ["ladder"]
    for lr in ("1e-2", "5e-3"):
        study.runs[path("lns", TINY[2], lr)] = ["own_idea"]
    table = suites.build({}, study.spec(files=()))
    assert table[KEYS].to_numpy().tolist() == [
        ["main", "t", "Pre-LN, LNS", "(4, 52), (8, 40)", "2e-3 (Pre-LN); 1e-2 (LNS)", "0", 4],
        ["main", "t", "HC", "(4, 52), (8, 40), (16, 28)", "2e-3", "0", 3],
        ["ladder", "500m", "Pre-LN", "(4, 52)", "5e-4", "0", 1],
        ["ladder", "1600m", "Pre-LN", "(4, 52)", "5e-4", "0", 1],
        ["seeds", "t", "Pre-LN", "(4, 52)", "2e-3", "0, 1", 2],
        ["own_idea", "t", "LNS", "(16, 28)", "5e-3, 1e-2", "0", 2],
    ]
    assert table["steps"].tolist() == [100, 100, 9500, 30400, 100, 100]
    assert table["warmup_steps"].tolist() == [10, 10, 950, 3040, 10, 10]
    assert table["fixed"].tolist() == ["parameters"] * 4 + ["", ""]
    assert table["tokens"].tolist() == [1024 * steps for steps in table["steps"]]

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from scipy.stats import binom
from synthetic import TINY, Study, path

from depthbench import figures
from depthbench.artifacts import read
from depthbench.errors import UserError
from depthbench.figures import domain_nll

SCORES = {"mbpp": 3.0, "humaneval": 2.5, "sciq": 3.25, "gpqa": 4.0, "gsm8k": 2.0, "math500": 2.25}
REPORTED = Path(__file__).parents[3] / "workflow" / "reference" / "paper_reported.csv"
GATED = "not_available: E-HUB org/gpqa (diamond, train): gated, and HF_TOKEN holds no access token; mend it"


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path, names=domain_nll.FILES)


def draw(study, **changes):
    """Draw: the frame, and each text with its place on the page."""
    spec, texts, write = study.spec(**changes), {}, Text.draw

    def record(text, renderer):
        write(text, renderer)
        if text.get_text() and text.get_visible():
            texts[text] = text.get_text(), text.get_window_extent(renderer)

    plot, frame = domain_nll.draw(read(study.files, spec), spec)
    figure = plot.draw()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", record)
        figure.savefig(io.BytesIO(), format="png")
    return frame, list(texts.values()), figure


def words(texts):
    return " ".join(" ".join(text for text, _ in texts).split())


def test_a_point_is_the_mean_of_two_tasks(study):
    for i, shape in enumerate(TINY):
        study.add(path("preln", shape), scores={name: nll + i for name, nll in SCORES.items()})
    frame, texts, _ = draw(study)
    assert frame["panel"].value_counts().to_dict() == {"coding": 3, "stem": 3, "math": 3}
    first = frame[frame["n_layers"] == 4].set_index("panel")
    assert first["nll"].to_dict() == {"coding": 2.75, "stem": 3.625, "math": 2.125}
    assert first["complete"].all()
    assert (first["lo"] < first["nll"]).all()
    assert (first["nll"] < first["hi"]).all()
    for heading in ("(a) Coding", "(b) STEM", "(c) Math"):
        assert heading in [text for text, _ in texts]
    assert "Items cut to the context length: MBPP 30%." in words(texts)


def test_the_interval_is_that_of_two_independent_tasks(study):
    """Each task: 10 items of 20 tokens, half 0.1 below, half above: Binomial(20, 1/2) of both are above."""
    study.add(path("preln", TINY[0]), scores=SCORES)
    row = draw(study, bootstrap=4000)[0].iloc[0]
    exact = 2.75 - 0.1 + 0.2 * binom.ppf([0.025, 0.975], 20, 0.5) / 20
    # one more or less of 20 is 0.01, the step of the exact values
    np.testing.assert_allclose([row["lo"], row["hi"]], exact, atol=0.0101)
    same_draws = 2.75 - 0.1 + 0.2 * binom.ppf([0.025, 0.975], 10, 0.5) / 10
    assert row["hi"] - row["lo"] < np.ptp(same_draws) - 0.01


def test_a_missing_task_is_named_in_its_panel(study):
    for shape in TINY:
        study.add(path("preln", shape), scores=SCORES | {"gpqa": GATED})
    frame, texts, _ = draw(study)
    stem = frame[frame["panel"] == "stem"]
    assert stem["nll"].tolist() == [3.25] * 3
    assert stem["tasks_used"].tolist() == ["sciq"] * 3
    assert not stem["complete"].any()
    assert "(b) STEM: SciQ only, GPQA not available" in words(texts)
    assert "GPQA not available (org/gpqa (diamond, train): gated, and HF_TOKEN holds no access token)." in words(texts)


def test_a_category_without_tasks_is_named_not_drawn(study):
    failed = "failed: 9 of 10 items are longer than 32 tokens, max_truncated is 0.5"
    study.add(path("preln", TINY[0]), scores=SCORES | {"mbpp": failed, "humaneval": failed})
    frame, texts, _ = draw(study)
    assert frame.set_index("panel")["status"].to_dict() == {"coding": "failed", "stem": "ok", "math": "ok"}
    assert "(a) STEM" in words(texts)
    assert "HumanEval failed (9 of 10 items are longer than 32 tokens, max_truncated is 0.5)." in words(texts)


def test_diverged_and_missing_runs_are_named(study):
    study.add(path("preln", TINY[0]), scores=SCORES)
    study.add(path("preln", TINY[1]), scores=dict.fromkeys(SCORES, "diverged"))
    study.add(path("hc", TINY[1]), status="missing")
    frame, texts, _ = draw(study)
    assert frame.groupby("run_id")["status"].agg(set).to_dict() == {
        f"tiny/runs/{path('preln', TINY[0])}": {"ok"},
        f"tiny/runs/{path('preln', TINY[1])}": {"diverged"},
        f"tiny/runs/{path('hc', TINY[1])}": {"missing"},
    }
    assert words(texts).count("Pre-LN diverged") == 3
    assert "Missing: HC L=8 d=40." in words(texts)


def test_nothing_overlaps_and_nothing_is_cut(study):
    for design in ("preln", "sandwich", "hc", "attnres_full"):
        for shape in TINY:
            study.add(path(design, shape), scores=SCORES | {"gpqa": GATED})
    _, texts, figure = draw(study)
    width, height = figure.get_size_inches() * figure.dpi
    for text, box in texts:
        assert 0 <= box.x0 <= box.x1 <= width, text
        assert 0 <= box.y0 <= box.y1 <= height, text
    boxes = [box for _, box in texts]
    for i, box in enumerate(boxes):
        assert not any(box.shrunk(0.9, 0.9).overlaps(other.shrunk(0.9, 0.9)) for other in boxes[:i]), texts[i][0]


def test_runs_of_other_items_are_refused(study):
    for shape in TINY[:2]:
        study.add(path("preln", shape), scores=SCORES)
    file = study.file(path("preln", TINY[1]), "nll.csv")
    file.write_text(file.read_text().replace("id of sciq", "another id"))
    with pytest.raises(UserError, match=r"E-RUN .*: scored on other items of sciq than tiny/runs/preln/"):
        draw(study)
    file.write_text(file.read_text().replace("another id", "id of sciq"))
    rows = study.file(path("preln", TINY[1]), "nll_items.parquet")
    pd.read_parquet(rows).query("task != 'gsm8k'").to_parquet(rows)
    with pytest.raises(UserError, match=r"E-RUN .*: nll_items\.parquet has no items of gsm8k"):
        draw(study)


def test_the_same_input_gives_the_same_bytes(study, tmp_path):
    study.add(path("preln", TINY[0]), scores=SCORES)
    spec, out = study.spec(kind="figure", name="domain_nll"), tmp_path / "domain_nll.svg"
    figures.write("domain_nll", study.files, spec, out)
    before = [out.with_suffix(suffix).read_bytes() for suffix in (".svg", ".pdf", ".png", ".csv")]
    figures.write("domain_nll", study.files, spec, out)
    assert [out.with_suffix(suffix).read_bytes() for suffix in (".svg", ".pdf", ".png", ".csv")] == before


def test_published_means_stand_beside_ours_where_both_tasks_do(study):
    """Of HC at L = 24 the project page has 3.538 (coding) and 2.887 (math); ours lacks GPQA, so STEM shows none."""
    study.add(path("hc", (24, 1024), lr="2e-3", scale="400m"), scores=SCORES | {"gpqa": GATED})
    study.add(path("deepnorm", (24, 1024), lr="2e-3", scale="400m"), status="diverged")
    study.files.append(REPORTED)
    frame, texts, _ = draw(study, files=(*domain_nll.FILES, REPORTED.name))
    values = frame[frame["design"] == "hc"].set_index("panel")["published"]
    assert values[["coding", "math"]].tolist() == [3.538, 2.887]
    assert np.isnan(values["stem"])
    assert "Hollow: published values" in words(texts)
    study.files.remove(REPORTED)
    frame, texts, _ = draw(study)
    assert frame["published"].isna().all()
    assert "Hollow" not in words(texts)


def test_designs_that_are_larger_are_named(study):
    """MoDA adds 2 d^2 (L - 1) parameters."""
    for design in ("preln", "moda"):
        study.add(path(design, TINY[1]), scores=SCORES)
    frame, texts, _ = draw(study)
    base = 8 * (4 * 40**2 + 3 * 40 * 112 + 2 * 40) + 2 * 512 * 40 + 40
    share = 100 * 2 * 40**2 * 7 / base
    assert frame.set_index("design")["overhead_pct"]["moda"].tolist() == pytest.approx([share] * 3)
    assert f"More parameters than Pre-LN of the same shape: MoDA {share:.1f} %." in words(texts).replace("\xa0", " ")

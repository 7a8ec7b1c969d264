import io
import itertools
import json
from pathlib import Path

import pytest
from matplotlib.text import Text
from synthetic import Study, path

from depthbench.artifacts import read
from depthbench.figures import scale_ladder

SCALES = {
    "200m": ((12, 896), (18, 768), (24, 672)),
    "300m": ((14, 1056), (21, 896), (28, 800)),
    "400m": ((16, 1216), (24, 1024), (32, 896)),
    "500m": ((17, 1344), (26, 1120), (34, 992)),
    "1600m": ((28, 2048), (40, 1728), (54, 1504)),
}
THREE = ("preln", "hc", "attnres_full")
REPORTED = Path(__file__).parents[3] / "workflow" / "reference" / "paper_reported.csv"


@pytest.fixture
def study(tmp_path):
    """The ladder and the large suite; one run diverged, one is missing, one is of another seed."""
    study = Study(tmp_path)
    study.model = {"n_heads": 16, "vocab_size": 50280}
    for (scale, shapes), design in itertools.product(SCALES.items(), THREE):
        for shape in shapes:
            run, status = path(design, shape, scale=scale), "ok"
            status = "diverged" if run == path("hc", (17, 1344), scale="500m") else status
            status = "missing" if run == path("preln", (54, 1504), scale="1600m") else status
            study.add(run, ["large" if scale == "1600m" else "ladder"], loss=3 + shape[0] / 64, status=status)
    study.add(path("hc", (28, 2048), seed=1, scale="1600m"), ["large"])
    return study


def test_a_panel_for_each_budget_from_small_to_large(study):
    spec, texts, write = study.spec(plans={}), {}, Text.draw  # none where run.json is read
    plot, frame = scale_ladder.draw(read(study.files, spec), spec)

    def record(text, renderer):
        write(text, renderer)
        if text.get_text() and text.get_visible():
            texts[text] = text.get_window_extent(renderer)

    figure = plot.draw()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", record)
        figure.savefig(io.BytesIO(), format="png")
    headings = [text.get_text() for text in texts if "parameters," in text.get_text()]
    assert all(heading.endswith(" 0.1M tokens") for heading in headings)  # of each run, 102,400
    # sizes of Pre-LN at the middle shape: Table 8 of the paper, here with norm gains
    assert [heading.split()[:2] for heading in headings] == [
        ["(a)", "205M"],
        ["(b)", "294M"],
        ["(c)", "406M"],
        ["(d)", "504M"],
        ["(e)", "1.6B"],
    ]
    for (one, a), (two, b) in itertools.combinations(texts.items(), 2):
        assert not a.overlaps(b), (one.get_text(), two.get_text())
    note = " ".join(plot.labels.caption.replace("\N{NO-BREAK SPACE}", " ").split())
    assert "Missing: Pre-LN 1600m L=54 d=1504." in note
    assert "Other seeds, not drawn: HC 1600m L=28 d=2048 seed 1." in note
    assert len(frame) == 45
    rows = frame.set_index(["panel", "design", "n_layers"])["loss"]
    assert rows["200m", "hc", 24] == 3.375
    assert frame[frame["status"] == "diverged"]["panel"].tolist() == ["500m"]


def test_imported_runs_do_not_tell_their_tokens(tmp_path):
    """They do not know how many they were trained on."""
    study = Study(tmp_path)
    study.add(path("preln", (12, 896), scale="200m"), ["ladder"])
    record = next(file for file in study.files if file.name == "run.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"tokens": None, "status": "imported"}))
    spec = study.spec()
    plot, frame = scale_ladder.draw(read(study.files, spec), spec)
    assert frame["tokens"].isna().all()
    heading = next(text.get_text() for text in plot.draw().findobj(Text) if "parameters" in text.get_text())
    assert heading.endswith("parameters")


def test_counts_in_few_digits():
    assert [scale_ladder.size(n) for n in (186_368, 4_100_000, 405_406_720, 1.615e9, 31.9e9)] == [
        *("0.19M", "4.1M", "405M", "1.6B", "32B"),
    ]


def test_the_papers_400m_models_stand_in_their_panel(tmp_path):
    """Read off the project page, at the rate that the paper found best."""
    study = Study(tmp_path, "paper")
    study.model = {"n_heads": 16, "vocab_size": 50280}
    for scale, shape in (("400m", (24, 1024)), ("300m", (21, 896))):
        study.add(path("hc", shape, lr="2e-3", scale=scale), ["ladder"], loss=2.8)
    spec = study.spec(files=(*scale_ladder.FILES, REPORTED.name))
    plot, frame = scale_ladder.draw(read([*study.files, REPORTED], spec), spec)
    published = frame.set_index("panel")["published"]
    assert published["400m"] == 2.702
    assert published.isna()["300m"]
    assert "Hollow: published values" in plot.labels.caption
    drawn = {
        round(float(y), 6) for axes in plot.draw().axes for dots in axes.collections for _, y in dots.get_offsets()
    }
    assert {2.702, 2.8} <= drawn

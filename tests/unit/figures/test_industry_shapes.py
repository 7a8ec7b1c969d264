from pathlib import Path

import numpy as np
import pytest
from synthetic import TINY, Study, path

from depthbench.artifacts import read
from depthbench.figures import industry_shapes

CSV = Path(__file__).parents[3] / "workflow" / "reference" / "industry_shapes.csv"
FILES = (*industry_shapes.FILES[:3], CSV.name)


def draw(study):
    spec = study.spec(files=FILES)
    plot, frame = industry_shapes.draw(read([*study.files, CSV], spec), spec)
    return plot, frame, " ".join(plot.labels.caption.split())


def test_published_models_and_the_shapes_that_runs_prefer(tmp_path):
    """Aspect ratios 13, 5 and 1.75. HC at 1.75 cannot be told from 5: its documents spread."""
    study = Study(tmp_path)
    for shape, preln, hc in zip(TINY, (4.0, 4.25, 4.5), (4.5, 4.25, 4.26), strict=True):
        study.add(path("preln", shape), loss=preln)
        study.add(path("hc", shape), loss=hc, spread=0.25 if shape == TINY[2] else 0)
    study.add(path("keel", TINY[0]))
    study.add(path("lns", TINY[0]), status="missing")
    plot, frame, note = draw(study)
    models = frame[frame["kind"] == "published"].set_index("name")
    assert len(models) == 57
    assert models.loc["GPT-2 small", ["parameters", "aspect_ratio", "family"]].tolist() == [1.24e8, 64, "GPT"]
    assert models.loc["TinyLlama-1.1B", "family"] == "TinyLlama"
    assert models.loc[["LLaMA-7B", "Llama-3-8B"], "family"].tolist() == ["LLaMA", "LLaMA"]
    assert "other" not in set(models["family"])
    own = frame[frame["kind"] == "ours"].set_index("design")
    assert own.index.tolist() == ["preln", "hc"]  # one shape is no preference
    assert own["aspect_ratio"].tolist() == [13, 5]
    np.testing.assert_allclose(own["aspect_low"].astype(float), [np.sqrt(5 * 13), 1.75], rtol=1e-12)
    np.testing.assert_allclose(own["aspect_high"].astype(float), [13, np.sqrt(5 * 13)], rtol=1e-12)
    assert own["open_end"].tolist() == ["shallow-wide", "deep-narrow"]
    assert "not bounded" not in note
    assert "Not bounded by a shape with a loss: Pre-LN at t (shallow-wide); HC at t (deep-narrow)." in note
    assert "1 of 8 runs are missing." in note
    plot.draw()


@pytest.mark.parametrize("status", ["missing", "diverged", None])
def test_without_losses_nothing_is_shaded(tmp_path, status):
    study = Study(tmp_path)
    for shape in TINY if status else ():
        study.add(path("preln", shape), status=status)
    _, frame, note = draw(study)
    assert set(frame["kind"]) == {"published"}
    assert note.startswith("Nothing is shaded: ")


def test_a_shape_that_diverged_bounds_nothing_and_is_named(tmp_path):
    study = Study(tmp_path)
    for shape, loss in zip(TINY, (None, 4.0, 4.5), strict=True):
        study.add(path("hc", shape), **({"loss": loss} if loss else {"status": "diverged"}))
    _, frame, note = draw(study)
    assert frame[frame["kind"] == "ours"]["open_end"].tolist() == ["shallow-wide"]
    assert "Not bounded by a shape with a loss: HC at t (shallow-wide). Diverged: HC at t L=4 d=52." in note


def test_a_middle_shape_is_bounded_on_both_sides(tmp_path):
    study = Study(tmp_path)
    for shape, loss in zip(TINY, (4.5, 4.0, 4.5), strict=True):
        study.add(path("preln", shape), loss=loss)
    _, frame, note = draw(study)
    row = frame[frame["kind"] == "ours"].iloc[0]
    assert [row["aspect_low"], row["aspect_high"]] == pytest.approx([np.sqrt(1.75 * 5), np.sqrt(5 * 13)])
    assert (row["open_end"], "Not bounded" in note) == ("", False)

import io
import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from synthetic import TINY, Study, path

from depthbench import figures
from depthbench.artifacts import read
from depthbench.figures import lr_sweep

GRID = ("25e-4", "5e-3", "1e-2", "2e-2")
PAPER = ("preln", "sandwich", "lns", "deepnorm", "keel", "hc", "mhc", "attnres_full", "moda")
FIVE = ((16, 1216), (20, 1120), (24, 1024), (28, 960), (32, 896))
FILES = ("validation.csv", "validation_docs.parquet")


def sweep(study, design, losses, shape=TINY[2], grid=GRID):
    """Add a grid of runs; a loss may be `diverged` or `missing`."""
    for lr, loss in zip(grid, losses, strict=True):
        special = {"status": loss} if isinstance(loss, str) else {"loss": loss, "spread": 0.02}
        study.add(path(design, shape, lr), ["sweep"], **special)
    return study


def draw(study):
    """Draw: the frame, the axes of each panel, and each text with its size [pt] and its place on the page."""
    spec, texts, write = study.spec(files=FILES), {}, Text.draw

    def record(text, renderer):
        write(text, renderer)
        if text.get_text() and text.get_visible():
            texts[text] = text.get_text(), text.get_fontsize(), text.get_window_extent(renderer)

    plot, frame = lr_sweep.draw(read(study.only(*FILES), spec), spec)
    figure = plot.draw()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", record)
        figure.savefig(io.BytesIO(), format="png")
    return SimpleNamespace(frame=frame, figure=figure, axes=figure.axes, texts=list(texts.values()))


def words(drawn):
    return " ".join(" ".join(text for text, _, _ in drawn.texts).split())


def ticks(axes):
    """Tick labels and their places, from left to right."""
    pairs = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    places, labels = zip(*sorted((x, label.get_text()) for x, label in pairs), strict=True)
    return places, labels


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    """Nine designs, five shapes, four rates: an optimum at an edge, diverged runs close together, missing ones."""
    study = Study(tmp_path_factory.mktemp("paper"))
    study.declared = dict.fromkeys(PAPER, "2e-3") | {"lns": "1e-2", "deepnorm": "1e-3"}
    for design, (i, shape) in itertools.product(PAPER, enumerate(FIVE)):
        losses = [4.5 + i / 100, 4.25, 4.0, 4.25 + i / 100]
        if design == "hc" and i == 0:
            losses = [4.5, 4.25, 4.0, 3.75]
        if design == "deepnorm":
            losses = [4.5, 4.25, "diverged" if i > 2 else 4.375, "diverged"]
        if design == "keel" and i > 1:
            losses = [4.5, 4.25, 4.0, "diverged"]
        if design == "moda" and i == 4:
            losses = [4.5, "missing", "missing", 4.25]
        grid = ("2e-3", "5e-3", "1e-2", "2e-2") if design == "lns" else ("5e-4", "1e-3", "2e-3", "5e-3")
        sweep(study, design, losses, shape, grid)
    return draw(study)


def test_a_panel_per_design_with_its_own_rates(paper):
    headings = ["Pre-LN", "Sandwich-LN", "LNS", "DeepNorm", "KEEL", "HC", "mHC", "Full AttnRes", "MoDA"]
    titles = [text for text, _, _ in paper.texts if text in headings]
    assert titles == headings
    labels = [ticks(axes)[1] for axes in paper.axes]
    assert labels == [
        ("2e-3", "5e-3", "1e-2", "2e-2") if h == "LNS" else ("5e-4", "1e-3", "2e-3", "5e-3") for h in headings
    ]


def test_axis_is_logarithmic(paper):
    """5e-4, 1e-3, 2e-3, 5e-3: shares of one decade are log10 of 1, 2, 4, 10."""
    places, _ = ticks(paper.axes[0])
    np.testing.assert_allclose(np.subtract(places, places[0]), np.log10([1, 2, 4, 10]), atol=1e-12)


def test_declared_rate_is_a_line_in_each_panel(paper):
    declared = {"LNS": 2, "DeepNorm": 1}  # the number of its tick
    for axes, heading in zip(paper.axes, ["Pre-LN", "Sandwich-LN", "LNS", "DeepNorm"], strict=False):
        segments = [c.get_segments() for c in axes.collections if c.get_linestyle()[0][1] is not None]
        ((segment,),) = [s for s in segments if s]
        assert segment[:, 0] == pytest.approx(ticks(axes)[0][declared.get(heading, 2)])


def test_best_rate_of_each_shape_is_marked_and_flagged_at_an_edge(paper):
    best = paper.frame[paper.frame["lr"] == paper.frame["best_lr"]].set_index(["design", "n_layers"])
    assert len(best) == 45
    assert best.loc[("preln", 16), ["lr", "at_edge"]].tolist() == ["2e-3", "no"]
    assert best.loc[("deepnorm", 32), ["lr", "at_edge"]].tolist() == ["1e-3", "no"]
    assert best.loc[("hc", 16), ["lr", "at_edge"]].tolist() == ["5e-3", "high"]
    assert best.loc[("moda", 32), ["lr", "at_edge"]].tolist() == ["5e-3", "high"]
    assert "Best at the edge: HC L16 d1216 at 5e-3; MoDA L32 d896 at 5e-3." in words(paper)


def test_diverged_runs_are_named_marks_at_the_upper_edge(paper):
    axes = paper.axes[3]
    low, high = axes.get_ylim()
    names = {text.get_text(): text.get_position() for text in axes.texts}
    assert set(names) == {"all diverged", "L28, 32 diverged"}
    assert all(y > low + 0.8 * (high - low) for _, y in names.values())
    assert paper.frame["loss"][paper.frame["status"] == "diverged"].isna().all()
    assert [text.get_text() for text in paper.axes[4].texts] == ["L24-32 diverged"]
    assert (paper.frame["status"] == "diverged").sum() == 7 + 3


def test_missing_runs_are_named_below(paper):
    assert "Missing: MoDA L32 d896 at 1e-3, 2e-3." in words(paper)
    assert (paper.frame["status"] == "missing").sum() == 2


def test_values_drawn_are_those_of_the_runs(tmp_path):
    drawn = draw(sweep(Study(tmp_path), "preln", (4.5, 4.25, 4.125, 4.375)))
    assert drawn.frame["loss"].tolist() == [4.5, 4.25, 4.125, 4.375]
    assert (drawn.frame["loss_lo"] < drawn.frame["loss"]).all()
    assert ticks(drawn.axes[0])[1] == ("2.5e-3", "5e-3", "1e-2", "2e-2")


def test_declared_rate_outside_the_grid_and_other_seeds(tmp_path):
    study = sweep(Study(tmp_path), "preln", ("diverged", 4.25, 4.125, 4.375))
    study.declared = {"preln": "1e-3"}
    study.add(path("preln", TINY[2], "1e-2", seed=1), ["sweep"], loss=4.0)
    study.add(path("preln", TINY[0], "1e-2"), ["seeds"], loss=3.0)
    drawn = draw(study)
    assert drawn.axes[0].get_xlim()[0] < -3
    assert drawn.frame["seed"].tolist() == [0] * 4
    assert "Other seeds, not drawn: Pre-LN L16 d28 at 1e-2." in words(drawn)


def test_scales_have_their_own_panels(tmp_path):
    study = sweep(Study(tmp_path), "preln", (4.5, 4.25, 4.125, 4.375))
    for lr in GRID:
        study.add(path("preln", TINY[2], lr, scale="s"), ["sweep"], loss=5.0)
    assert {"Pre-LN, s", "Pre-LN, t"} <= {text for text, _, _ in draw(study).texts}


def test_only_diverged_runs_give_no_axis_of_losses(tmp_path):
    drawn = draw(sweep(Study(tmp_path), "preln", ("diverged",) * 4))
    assert not drawn.axes[0].get_yticklabels()
    assert words(drawn).count("L16 diverged") == 4


def test_figure_of_missing_runs_only(tmp_path):
    drawn = draw(sweep(Study(tmp_path), "preln", ("missing",) * 4))
    assert "Missing: Pre-LN L16 d28 at 2.5e-3, 5e-3, 1e-2, 2e-2." in words(drawn)


def small(tmp_path):
    study = sweep(Study(tmp_path), "preln", (4.5, 4.25, 4.125, "diverged"))
    return sweep(study, "lns", ("missing", "diverged", 4.25, 4.125))


def test_texts_are_large_enough_and_neither_clipped_nor_overlapping(paper, tmp_path):
    for drawn in (paper, draw(small(tmp_path))):
        page = drawn.figure.bbox
        for text, size, box in drawn.texts:
            assert size >= 7, text
            assert page.x0 <= box.x0 < box.x1 <= page.x1, text
            assert page.y0 <= box.y0 < box.y1 <= page.y1, text
        for (one, _, a), (two, _, b) in itertools.combinations(drawn.texts, 2):
            assert not a.overlaps(b), (one, two)


def test_csv_is_the_frame_that_was_drawn_and_files_repeat(tmp_path):
    study, out = small(tmp_path), tmp_path / "figures" / "lr_sweep.svg"
    spec = study.spec(files=FILES)
    figures.write("lr_sweep", study.only(*FILES), spec, out)
    first = {file.name: file.read_bytes() for file in out.parent.iterdir()}
    assert set(first) == {f"lr_sweep.{suffix}" for suffix in ("svg", "pdf", "png", "csv")}
    types = dict.fromkeys(("lr", "declared_lr", "best_lr"), "str")
    read_back = pd.read_csv(out.with_suffix(".csv"), dtype=types)
    pd.testing.assert_frame_equal(read_back, draw(study).frame, check_exact=True)
    figures.write("lr_sweep", study.only(*FILES), spec, out)
    assert {file.name: file.read_bytes() for file in out.parent.iterdir()} == first

import io
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from matplotlib.text import Text
from synthetic import FILES, LABELS, TINY, Study, path, preln_params

from depthbench import figures
from depthbench.artifacts import read
from depthbench.errors import UserError
from depthbench.figures import validation_loss

REFERENCE = Path(__file__).parents[3] / "workflow" / "reference"
THREE = ("preln", "hc", "attnres_full")
BACKBONE = ((4, 56), (8, 40), (16, 28))
FIVE = ((16, 1216), (20, 1120), (24, 1024), (28, 960), (32, 896))
SEVEN = (*FIVE, (42, 800), (70, 640))
SIX = ((16, 1248), (24, 1024), (32, 896), (42, 768), (70, 608), (84, 544))


def fill(study, wanted, **special):
    """Add the runs of `wanted`, suite -> (designs, shapes); `special` is status -> paths."""
    suites = {}
    for suite, parts in wanted.items():
        for designs, shapes in parts:
            for design, shape in itertools.product(designs, shapes):
                suites.setdefault(path(design, shape), []).append(suite)
    status = {run: name for name, names in special.items() for run in names}
    for i, (run, member) in enumerate(suites.items()):
        study.add(run, member, loss=4.0 + i / 64, spread=0.05, status=status.get(run, "ok"))
    return study


def draw(study):
    """Draw: the frame, the axes of each panel, and each text with its size [pt] and its place on the page."""
    spec, texts, write = study.spec(), {}, Text.draw

    def record(text, renderer):
        write(text, renderer)
        if text.get_text() and text.get_visible():
            texts[text] = text.get_text(), text.get_fontsize(), text.get_window_extent(renderer)

    plot, frame = validation_loss.draw(read(study.files, spec), spec)
    figure = plot.draw()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", record)
        figure.savefig(io.BytesIO(), format="png")
    return SimpleNamespace(frame=frame, figure=figure, axes=figure.axes, texts=list(texts.values()))


def words(drawn):
    return " ".join(" ".join(text for text, _, _ in drawn.texts).split())


def ticks(axes):
    """Tick labels from left to right."""
    pairs = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    return [label.get_text() for _, label in sorted(pairs, key=lambda pair: pair[0])]


@pytest.fixture
def tiny(tmp_path):
    """Three designs; (8, 40) and (16, 28) stand in both suites. One run diverged, two are missing."""
    lost = [path("hc", (8, 40)), path("attnres_full", (16, 28))]
    return fill(
        Study(tmp_path),
        {"main": [(THREE, TINY)], "backbone": [(("preln", "hc"), BACKBONE)]},
        diverged=[path("preln", (16, 28))],
        missing=lost,
    )


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    """Ten designs; three of them on two more shapes; four runs diverged at places that are close together."""
    diverged = [
        path("deepnorm", FIVE[0]),
        path("lns", FIVE[0]),
        path("keel", FIVE[1]),
        path("preln", SEVEN[-1]),
    ]
    wanted = {"main": [(LABELS, FIVE), (THREE, SEVEN[5:])], "backbone": [(THREE, SIX)]}
    return draw(fill(Study(tmp_path_factory.mktemp("paper")), wanted, diverged=diverged))


def test_each_run_is_in_each_panel_that_it_belongs_to(paper):
    members = {
        key: set(zip(rows["design"], rows["n_layers"], strict=True)) for key, rows in paper.frame.groupby("panel")
    }
    depths = {
        "five": [16, 20, 24, 28, 32],
        "seven": [16, 20, 24, 28, 32, 42, 70],
        "six": [16, 24, 32, 42, 70, 84],
    }
    assert members == {
        "common": set(itertools.product(LABELS, depths["five"])),
        "all": set(itertools.product(THREE, depths["seven"])),
        "backbone": set(itertools.product(THREE, depths["six"])),
    }


def test_axis_runs_from_shallow_wide_to_deep_narrow_in_every_panel(paper):
    assert [ticks(axes) for axes in paper.axes] == [
        ["L16\n76", "L20\n56", "L24\n43", "L28\n34", "L32\n28"],
        ["L16\n76", "L20\n56", "L24\n43", "L28\n34", "L32\n28", "L42\n19", "L70\n9.14"],
        ["L16\n78", "L24\n43", "L32\n28", "L42\n18", "L70\n8.69", "L84\n6.48"],
    ]


def test_axis_is_logarithmic(paper):
    """Distances of 76, 56, 42.67 and so on are as their logarithms, here in units of that from 76 to 28."""
    at = sorted(paper.axes[0].get_xticks())
    shares = [(x - at[0]) / (at[-1] - at[0]) for x in at]
    assert shares == pytest.approx([0, 0.30584, 0.57816, 0.79724, 1], abs=1e-4)


def test_values_drawn_are_those_of_the_runs(tiny):
    frame = draw(tiny).frame.set_index(["panel", "run_id"])
    row = frame.loc[("common", f"tiny/runs/{path('preln', (4, 52))}")]
    assert row["loss"] == 4.0
    assert row["loss_lo"] == pytest.approx(4.0 - 0.01, abs=0.006)  # sd of the mean: 0.05 / sqrt(100), times 1.96
    assert row["loss_hi"] == pytest.approx(4.0 + 0.01, abs=0.006)


def test_designs_above_the_size_budget_are_named(paper):
    """MoDA by 2 d^2 (L - 1), here of models with V = 512; mHC stays below 3 %."""
    shares = {L: 100 * 2 * d * d * (L - 1) / preln_params(L, d, 512) for L, d in (FIVE[0], FIVE[-1])}
    assert f"same shape: MoDA {shares[16]:.1f} to {shares[32]:.1f} %." in words(paper)
    rows = paper.frame[paper.frame["panel"] == "common"].set_index(["design", "n_layers"])["overhead_pct"]
    assert rows["moda", 16] == pytest.approx(shares[16], rel=1e-12)
    assert (rows["preln"] == 0).all()


def test_one_design_of_one_shape_and_none_above_the_budget(tmp_path):
    """mHC has 8 (96 d + 27) more at (4, 52), HC 8 (6 d + 26); a missing run takes no part."""
    wanted = {"main": [(("preln", "hc", "mhc"), TINY)]}
    study = fill(Study(tmp_path / "a"), wanted, missing=[path("mhc", shape) for shape in TINY[1:]])
    percent = 100 * 8 * (96 * 52 + 27) / preln_params(4, 52, 512)
    note = words(draw(study))
    hc = [100 * 2 * L * (6 * d + 26) / preln_params(L, d, 512) for L, d in (TINY[0], TINY[2])]
    assert f"same shape: HC {hc[0]:.1f} to {hc[1]:.1f} %, mHC {percent:.1f} %." in note
    few = fill(Study(tmp_path / "b"), {"main": [(("preln", "sandwich"), TINY)]})
    assert "More parameters" not in words(draw(few))


def test_diverged_run_is_a_named_mark_at_the_upper_edge(tiny):
    drawn = draw(tiny)
    diverged = drawn.frame[drawn.frame["status"] == "diverged"]
    assert diverged["panel"].tolist() == ["common", "backbone"]
    assert diverged["loss"].isna().all()
    for axes in drawn.axes:
        (name,) = [text for text in axes.texts if text.get_text() == "Pre-LN diverged"]
        low, high = axes.get_ylim()
        assert name.get_position()[1] > low + 0.9 * (high - low)


def test_missing_runs_are_named_below(tiny):
    drawn = draw(tiny)
    assert "Missing: HC L=8 d=40; Full AttnRes L=16 d=28." in words(drawn)
    assert set(drawn.frame["status"][drawn.frame["design"] == "attnres_full"]) == {"ok", "missing"}


def test_other_seeds_are_left_out_by_name_and_every_design_is_drawn(tiny):
    tiny.add(path("preln", (8, 40), seed=1), ["main", "seeds"])
    tiny.add(path("keel", (4, 56)), ["backbone"])
    drawn = draw(tiny)
    assert "In no panel: Pre-LN L=8 d=40 seed 1." in words(drawn)
    assert set(drawn.frame["panel"][drawn.frame["design"] == "keel"]) == {"backbone"}
    assert drawn.frame["seed"].tolist() == [0] * len(drawn.frame)


def test_panel_without_suite_is_left_out(tmp_path):
    drawn = draw(fill(Study(tmp_path), {"main": [(["preln"], [TINY[1]])]}))
    assert len(drawn.axes) == 1
    assert "Left out: equal size without embeddings; the study declares no such runs." in words(drawn)


def test_panel_whose_runs_are_all_missing_is_left_out(tmp_path):
    lost = [path("hc", shape) for shape in BACKBONE]
    study = fill(Study(tmp_path), {"main": [(["preln"], TINY)], "backbone": [(["hc"], BACKBONE)]}, missing=lost)
    drawn = draw(study)
    assert len(drawn.axes) == 1
    assert "Left out: equal size without embeddings; all its runs are missing." in words(drawn)


def test_figure_of_missing_runs_only(tmp_path):
    study = fill(Study(tmp_path), {"main": [(["hc"], [TINY[0]])]}, missing=[path("hc", TINY[0])])
    drawn = draw(study)
    assert "Missing: HC L=4 d=52." in words(drawn)


def test_only_diverged_runs_give_no_axis_of_losses(tmp_path):
    lost = [path("preln", shape) for shape in TINY]
    drawn = draw(fill(Study(tmp_path), {"main": [(["preln"], TINY)]}, diverged=lost))
    assert all(not axes.get_yticklabels() for axes in drawn.axes)


@pytest.fixture
def partial(tmp_path):
    """Ten designs, of which nearly all runs are missing: the note takes lines of wide characters."""
    lost = [path(design, shape) for design in LABELS for shape in FIVE if (design, shape) != ("mhc", FIVE[0])]
    return fill(Study(tmp_path), {"main": [(LABELS, FIVE)]}, missing=lost)


@pytest.mark.parametrize("case", ["paper", "tiny", "partial"])
def test_texts_are_large_enough_and_neither_clipped_nor_overlapping(case, request):
    drawn = request.getfixturevalue("paper") if case == "paper" else draw(request.getfixturevalue(case))
    page = drawn.figure.bbox
    for text, size, box in drawn.texts:
        assert size >= 7, text
        assert page.x0 <= box.x0 < box.x1 <= page.x1, text
        assert page.y0 <= box.y0 < box.y1 <= page.y1, text
    for (one, _, a), (two, _, b) in itertools.combinations(drawn.texts, 2):
        assert not a.overlaps(b), (one, two)
    assert drawn.figure.get_size_inches()[0] == 6.75


def test_four_files_are_the_same_each_time_without_a_display(tiny, tmp_path):
    """In this process and in one without DISPLAY that was told to use a windowing backend."""
    ours, theirs = tmp_path / "a" / "validation_loss.svg", tmp_path / "b" / "validation_loss.svg"
    figures.write("validation_loss", tiny.files, tiny.spec(), ours)
    code = (
        "import sys; from pathlib import Path;"
        "from depthbench import figures; from depthbench.artifacts import ArtifactSpec;"
        "spec = ArtifactSpec.from_json(sys.argv[1]);"
        "figures.write(spec.name, map(Path, sys.argv[3:]), spec, Path(sys.argv[2]))"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    subprocess.run(
        [sys.executable, "-c", code, tiny.json(name="validation_loss"), theirs, *tiny.files],
        env=environment | {"MPLBACKEND": "TkAgg", "PYTHONHASHSEED": "7"},
        check=True,
    )
    for suffix in (".svg", ".pdf", ".png", ".csv"):
        assert ours.with_suffix(suffix).read_bytes() == theirs.with_suffix(suffix).read_bytes()
    assert len(list(ours.parent.iterdir())) == 4


def test_csv_is_the_frame_that_was_drawn(tiny, tmp_path):
    figures.write("validation_loss", tiny.files, tiny.spec(), tmp_path / "v.svg")
    read_back = pd.read_csv(tmp_path / "v.csv", dtype={"lr": "str"})
    pd.testing.assert_frame_equal(read_back, draw(tiny).frame, check_exact=True)


def test_bad_input_leaves_no_figure(tiny, tmp_path):
    out = tmp_path / "figures" / "v.svg"
    out.parent.mkdir()
    out.write_text("old")
    tiny.file(path("preln", (4, 52)), "validation.csv").write_text("run_id\n")
    with pytest.raises(UserError, match="E-RUN"):
        figures.write("validation_loss", tiny.files, tiny.spec(), out)
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize("name", ["loss", "_theme"])
def test_unknown_figure(tiny, tmp_path, name):
    with pytest.raises(UserError, match=r"E-ARTIFACT .*known: .*validation_loss"):
        figures.write(name, tiny.files, tiny.spec(), tmp_path / "v.svg")


def published_study(root):
    """Two designs at shapes of the paper, both in main and backbone."""
    study = Study(root)
    for design in ("preln", "hc"):
        for shape in ((24, 1024), (32, 896)):
            study.add(path(design, shape, lr="2e-3", scale="400m"), ["backbone", "main"], loss=2.8)
    return study


def test_published_values_are_hollow_marks_of_their_panel(tmp_path):
    study = published_study(tmp_path)
    spec = study.spec(files=(*FILES, "paper_reported.csv"))
    plot, frame = validation_loss.draw(read([*study.files, REFERENCE / "paper_reported.csv"], spec), spec)
    values = frame.set_index(["panel", "design", "n_layers"])["published"].to_dict()
    assert values == {
        **{("common", "preln", 24): 2.765, ("common", "preln", 32): 2.782},
        **{("common", "hc", 24): 2.702, ("common", "hc", 32): 2.699},
        **{("backbone", "preln", 24): 2.765, ("backbone", "preln", 32): 2.763},
        **{("backbone", "hc", 24): 2.702, ("backbone", "hc", 32): 2.7},
    }
    note = " ".join(plot.labels.caption.split())
    assert "Hollow: published values (arXiv 2609.32534), its text before the authors' project page" in note
    drawn = {y for axes in plot.draw().axes for dots in axes.collections for _, y in dots.get_offsets()}
    assert set(values.values()) <= {round(float(y), 6) for y in drawn}


def test_no_published_values_where_the_study_shows_none(tmp_path):
    drawn = draw(published_study(tmp_path))
    assert drawn.frame["published"].isna().all()
    assert "Hollow" not in words(drawn)


def test_losses_to_compare_stand_in_a_panel_that_is_drawn(tmp_path):
    """Of the main suite no run is there yet; the panel of the other suite is."""
    study = fill(Study(tmp_path), {"backbone": [(["preln"], BACKBONE)]})
    for shape in TINY[:2]:
        study.add(path("hc", shape), status="missing")
    csv = tmp_path / "mine.csv"
    csv.write_text("label,n_layers,d_model,loss\nMine,4,52,4.5\n")
    spec = study.spec(files=(*FILES, "compare.csv"), compare=str(csv))
    plot, frame = validation_loss.draw(read([*study.files, csv], spec), spec)
    assert frame[frame["run_id"].isna()]["panel"].tolist() == ["backbone"]
    assert "Mine" in {text.get_text() for text in plot.draw().findobj(Text)}


def test_losses_to_compare_stand_in_the_panels_of_their_shape(tmp_path):
    """(16, 28) is of both panels, (4, 56) of the second; (6, 44) of none, so it stands in the first."""
    study = fill(Study(tmp_path), {"main": [(["preln"], TINY)], "backbone": [(["preln"], BACKBONE)]})
    csv = tmp_path / "mine.csv"
    csv.write_text(
        "label,n_layers,d_model,loss,loss_lo,loss_hi\nMine,16,28,4.5,4.4,4.6\nMine,6,44,4.25,,\nTheirs,4,56,4.0,,\n"
    )
    spec = study.spec(files=(*FILES, "compare.csv"), compare=str(csv))
    plot, frame = validation_loss.draw(read([*study.files, csv], spec), spec)
    others = frame[frame["run_id"].isna()]
    assert [*zip(others["panel"], others["label"], others["n_layers"], others["loss"], strict=True)] == [
        *(("common", "Mine", 16, 4.5), ("backbone", "Mine", 16, 4.5)),
        *(("common", "Mine", 6, 4.25), ("backbone", "Theirs", 4, 4.0)),
    ]
    figure = plot.draw()
    assert [ticks(axes) for axes in figure.axes] == [
        ["L4\n13", "L8\n5", "L16\n1.75"],
        ["L4\n14", "L8\n5", "L16\n1.75"],
    ]
    legend = {text.get_text() for text in figure.findobj(Text)}
    assert {"Pre-LN", "Mine", "Theirs"} <= legend
    assert f"From {csv}: Mine, Theirs." in " ".join(plot.labels.caption.split()).replace(" ", " ")

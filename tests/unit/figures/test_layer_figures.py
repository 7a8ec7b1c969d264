"""Figures of layer analyses: the frame that is drawn, its panels and their scale of colour, and the note."""

import importlib
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from layer_tables import causal_score, tables, weight
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgba
from matplotlib.text import Text
from synthetic import LABELS, TINY, Study, path

from depthbench.artifacts import ArtifactSpec, read
from depthbench.errors import UserError
from depthbench.figures import _maps

SPACE = "\N{NO-BREAK SPACE}"
ALL = (
    *("angular_distance", "causal_maps", "permutation_maps", "pathways", "lr_effect", "layer_pruning"),
    *("logit_lens", "block_mixing", "stream_transport", "layer_perturbation"),
)
REPORTED = Path(__file__).parents[3] / "workflow" / "reference" / "paper_reported.csv"
OWN_RATE = {"deepnorm": "5e-3", "sandwich": "2e-2"}


def module(name):
    return importlib.import_module(f"depthbench.figures.{name}")


def made(root, name, designs=("preln", "hc", "attnres_full"), shapes=TINY, **changes):
    """A study whose runs have the files of a figure; `changes` by design and shape are arguments of `Study.add`."""
    study = Study(root, names=module(name).FILES)
    for design in designs:
        for shape in shapes:
            run = path(design, shape, lr=OWN_RATE.get(design, "1e-2"))
            study.add(run, **changes.get(f"{design}_{shape[0]}", {}))
    return study


def draw(study, name, **changes):
    """The plot and its frame, and the note in one line."""
    spec = study.spec(**changes)
    plot, frame = module(name).draw(read(study.files, spec), spec)
    return plot, frame, note(plot)


def note(plot):
    while not hasattr(plot, "labels"):  # a composition: the note is that of the first plot of its last row
        plot = plot[-1] if type(plot).__name__ == "Stack" else plot[0]
    return " ".join((plot.labels.get("caption", "") or "").split()).replace(SPACE, " ")


def words(figure):
    """All texts of a figure that are not blank, headings of panels in their order."""
    return [text.get_text() for text in figure.findobj(Text) if text.get_text().strip()]


def named(figure, names):
    """Those of the names that stand in the figure, in its order."""
    return [word for word in words(figure) if word in names]


# --- heat maps ---


def test_angular_maps_compare_at_one_rate_and_show_each_design_at_its_own(tmp_path):
    study = made(tmp_path, "angular_distance", ("preln", "sandwich", "deepnorm", "attnres_full"))
    study.add(path("preln", TINY[2], lr="2e-2"), suites=["sweep"])  # at another rate
    study.add(path("sandwich", TINY[2], lr="1e-2"), suites=["sweep"], status="missing")
    plot, frame, told = draw(study, "angular_distance")
    same, own = frame[frame["block"] == "a"], frame[frame["block"] == "b"]
    assert same["panel"].unique().tolist() == ["(a) Pre-LN 1e-2", "Sandwich-LN 1e-2", "Full AttnRes 1e-2"]
    assert same["status"].unique().tolist() == ["ok", "missing"]
    labels = ["Pre-LN", "Sandwich-LN", "DeepNorm", "Full AttnRes"]
    headings = [f"{label} L{depth}" for label in labels for depth in (4, 8, 16)]
    assert own["panel"].unique().tolist() == ["(b) " + headings[0], *headings[1:]]
    assert own.groupby("panel").size()["DeepNorm L16"] == 16 * 17 / 2
    measured = frame[frame["status"] == "ok"]
    np.testing.assert_allclose(measured["distance"], measured["n"] / (2 * measured["n_layers"]))
    at = "(a): L=16, learning rate 1e-2. (b): each design at its own rate. Without DeepNorm, as in the paper."
    assert told == at + " Missing: Sandwich-LN L=16 d=28 at 1e-2."
    figure = plot.draw()
    panels = frame["panel"].unique().tolist()
    assert named(figure, panels) == panels
    # three panels of block (a), three empty places, then two rows of block (b)
    assert [len(ax.images) for ax in figure.axes] == [1, 0, 1, 0, 0, 0, *[1] * 12]


def test_a_design_without_a_run_at_the_common_rate_is_named(tmp_path):
    study = made(tmp_path, "angular_distance", ("preln", "sandwich", "mhc"))
    study.add(path("mhc_legacy", TINY[2]), suites=["sweep"])
    study.runs = {run: suites for run, suites in study.runs.items() if run != path("mhc", TINY[2])}
    study.add(path("mhc", TINY[2], lr="5e-3"))
    study.files = [file for file in study.files if f"{path('mhc', TINY[2])}/" not in str(file)]
    labels = {design: list(label) for design, label in LABELS.items()} | {"mhc_legacy": ["mHC old", "multi-stream"]}
    used = {key: labels[key] for key in ("preln", "sandwich", "mhc", "mhc_legacy")}
    spec = ArtifactSpec.from_json(study.json(labels=used))
    plot, frame = module("angular_distance").draw(read(study.files, spec), spec)
    assert frame.loc[frame["block"] == "a", "design"].unique().tolist() == ["preln"]
    assert "mhc_legacy" not in set(frame["design"])
    assert "Not trained at 1e-2: Sandwich-LN, mHC." in note(plot)


CELLS = {
    "angular_distance": ("layer", "n", "distance"),
    "causal_maps": ("skipped", "layer", "score"),
    "permutation_maps": ("layer_a", "layer_b", "score"),
    "pathways": ("source", "target", "weight"),
}


@pytest.mark.parametrize("name", CELLS)
def test_all_panels_have_one_scale_of_colour(tmp_path, name):
    """A value has the same colour in every panel, a larger one is lighter: so the scale can be read in grey, too."""
    plot, frame, _ = draw(made(tmp_path, name, ("preln", "hc")), name)
    x, y, value = CELLS[name]
    images = [image.get_array() for ax in plot.draw().axes for image in ax.images]
    maps = [rows for _, rows in frame.groupby("panel", sort=False)]
    assert len(images) == len(maps) >= 2
    found = {}
    for pixels, rows in zip(images, maps, strict=True):
        across, up = (rows[column].astype(int) for column in (x, y))
        colours = pixels[up.max() - up, across - across.min()]
        for number, colour in zip(rows[value], map(tuple, colours), strict=True):
            assert found.setdefault(number, colour) == colour
    kind = _maps.MEASURES[{"angular_distance": "angular", "pathways": "pathway"}.get(name, name.removesuffix("_maps"))]
    shown = sorted(number for number in found if number <= kind.most)
    grey = [np.dot(found[number][:3], (0.299, 0.587, 0.114)) for number in shown]
    assert (np.diff(grey) >= -1e-3).all()
    assert found[shown[-1]][:3] == pytest.approx(to_rgba(matplotlib.colormaps[kind.colours](1.0))[:3], abs=0.01)


def test_causal_maps_show_both_ways_to_skip(tmp_path):
    plot, frame, told = draw(made(tmp_path, "causal_maps", ("preln", "moda")), "causal_maps")
    stars = [f"MoDA* L{depth}" for depth in (4, 8, 16)]
    order = [*(f"{label} L{depth}" for label in ("Pre-LN", "MoDA") for depth in (4, 8, 16)), *stars]
    assert named(plot.draw(), order) == order
    released = frame[frame["skip_mode"] == "released"]
    expected = [2 * causal_score(s, l) for s, l in zip(released["skipped"], released["layer"], strict=True)]
    np.testing.assert_allclose(released["score"], expected)
    assert told == "*: released skip; the others are masked."


def test_cells_without_a_value_are_crossed_out_and_infinite_ones_counted(tmp_path):
    rows = tables("preln", 4)
    rows["permutation"][0] |= {"score": float("inf")}
    rows["permutation"][3] |= {"score": float("nan")}
    study = made(tmp_path, "permutation_maps", ("preln",), preln_4={"layers": {"permutation": rows["permutation"]}})
    plot, frame, told = draw(study, "permutation_maps")
    assert np.isinf(frame["score"]).sum() == 1
    assert told == "No finite loss after the exchange, last colour: 1 pairs. Crossed out: no defined value, 1 pairs."
    [image] = plot.draw().axes[0].images
    pixels = image.get_array()  # (row of b from the top, column of a)
    assert tuple(pixels[2, 0][:3]) == pytest.approx(to_rgba("#fee838")[:3], abs=0.01)  # (0, 1): the last of cividis
    assert tuple(pixels[1, 1][:3]) == pytest.approx(to_rgba(_maps.GREY)[:3], abs=0.01)  # (1, 2)
    assert pixels[2, 2][3] == 0  # no pair


def test_pathways_have_signs_and_one_row_for_the_readout(tmp_path):
    _, frame, told = draw(made(tmp_path, "pathways", keel_16={}), "pathways")
    assert frame["n_layers"].unique().tolist() == [16]
    hc = frame[frame["design"] == "hc"]
    assert (hc["source"].min(), hc["target"].max()) == (-1, 32)
    np.testing.assert_allclose(
        hc["weight"], [weight("hc", i, k) for i, k in zip(hc["source"], hc["target"], strict=True)]
    )
    assert "logarithmic" in told


def test_rates_of_a_design_stand_in_a_row(tmp_path):
    study = Study(tmp_path, names=module("lr_effect").FILES)
    for design, rates in {"preln": ("5e-3", "1e-2", "25e-4"), "lns": ("1e-2", "2e-2")}.items():
        for lr in rates:
            study.add(path(design, TINY[2], lr=lr), suites=["sweep"])
    study.add(path("lns", TINY[2], lr="25e-4"), suites=["sweep"], status="diverged")
    plot, frame, told = draw(study, "lr_effect")
    assert "Diverged: LNS L=16 d=28 at 2.5e-3." in told
    headings = [*(f"Pre-LN L16 at {rate}" for rate in ("2.5e-3", "5e-3", "1e-2")), "LNS L16 at 1e-2", "LNS L16 at 2e-2"]
    headings.insert(3, "LNS L16 at 2.5e-3")
    figure = plot.draw()
    assert named(figure, headings) == headings
    assert [len(ax.images) for ax in figure.axes] == [1, 1, 1, 0, 1, 1]
    assert frame["lr"].unique().tolist() == ["25e-4", "5e-3", "1e-2", "2e-2"]


# --- curves ---


def test_late_pairs_over_shapes_and_thresholds(tmp_path):
    """L = 4: late pairs are (1, 2), (1, 3), (2, 3), scores 2/3, 2/4, 3/4; (b - a) / 8 is 1/8, 2/8, 1/8."""
    plot, frame, told = draw(made(tmp_path, "layer_perturbation", ("preln", "attnres_full")), "layer_perturbation")
    shown = frame[(frame["part"] == "shapes") & (frame["n_layers"] == 4)].set_index(["design", "measure", "skip_mode"])
    assert shown.loc[("preln", "causal", "mask"), "fraction"] == 1
    assert shown.loc[("preln", "permutation", ""), "fraction"] == 1 / 3
    assert shown.loc[("attnres_full", "causal", "released"), "fraction"] == 1
    curves = frame[frame["part"] == "thresholds"]
    assert curves["n_layers"].unique().tolist() == [16]
    assert curves.groupby(["design", "measure", "skip_mode"]).size().tolist() == [101] * 5
    maps = frame[frame["part"] == "maps"]
    assert maps.groupby(["measure", "design"]).size().tolist() == [120] * 4
    assert "released" not in set(maps["skip_mode"])
    assert "Hollow, thin: released skip; all others are masked." in told
    assert plot.draw().axes[2].lines  # panel (c) has its curves


def test_drops_of_both_ways_to_skip_and_the_accuracy_of_the_intact_model(tmp_path):
    _, frame, told = draw(made(tmp_path, "layer_pruning"), "layer_pruning")
    drops = frame.set_index(["design", "skip_mode", "skipped"])["drop"]
    assert (drops["preln", "mask", 3], drops["attnres_full", "released", 3]) == (3, 6)
    assert told == (
        "Thin, hollow: released skip. Intact: Pre-LN L16 50.0 %, HC L16 50.0 %, Full AttnRes L16 50.0 %; "
        "guessing: 25.0 % (16 items)."
    )


def test_lens_is_logarithmic_where_its_range_asks_for_it(tmp_path):
    plot, frame, told = draw(made(tmp_path / "linear", "logit_lens"), "logit_lens")
    assert frame.loc[frame["layer"] == 12, "kl"].tolist() == [1.0] * 3
    assert told == ""
    rows = [{"layer": l, "kl": 10.0**-l if l < 16 else 0.0, "top1": 1.0} for l in range(17)]
    study = made(tmp_path / "steep", "logit_lens", ("preln",), preln_16={"layers": {"logitlens": rows}})
    plot, frame, told = draw(study, "logit_lens")
    assert told == "Logarithmic axis; at l = L the divergence is 0."
    assert len(frame) == 17
    [ax] = plot.draw().axes
    assert max(line.get_xdata().max() for line in ax.lines) == 15
    assert [line.get_ydata().min() for line in ax.lines] == [-15.0]  # log10


def test_shares_of_a_block_add_up_and_its_dead_segment_is_told(tmp_path):
    _, frame, told = draw(made(tmp_path, "block_mixing", ("attnres_block",)), "block_mixing")
    np.testing.assert_allclose(frame["alpha"].fillna(0) + frame["beta"], 1)
    assert frame["panel"].unique().tolist() == [f"Block AttnRes L{depth}" for depth in (4, 8, 16)]
    assert told == (
        "Dashed: borders of blocks. Sub-layers from 1 on with a running sum below 0.05: Block AttnRes L4: 2 "
        "(layers: 1); Block AttnRes L8: 4 (layers: 2); Block AttnRes L16: 8 (layers: 4)."
    )


def test_transport_of_the_whole_product_and_over_the_depth(tmp_path):
    study = made(tmp_path, "stream_transport", ("hc", "mhc"))
    _, frame, told = draw(study, "stream_transport")
    whole, depth = frame[frame["part"] == "shapes"], frame[frame["part"] == "depth"]
    np.testing.assert_allclose(whole["effective_rank"], 1 + 3 / (2 * whole["n_layers"]))
    assert (depth["n_layers"] == 16).all()
    np.testing.assert_allclose(depth["sigma_3"], depth["n_sublayers"].astype(float) ** -2)
    assert told == "(b), (c): L=16; (c): i = 2, 3, 4 from above."


# --- published values ---


def published(root, name, designs, shapes=((16, 1216), (24, 1024), (32, 896))):
    """The plot, its frame and its note, at shapes of the paper with its values beside them."""
    study = Study(root, "paper", names=module(name).FILES)
    study.depths = {"one": 32, "three": [16, 24, 32]}
    for design in designs:
        for shape in shapes:
            study.add(path(design, shape, lr="2e-3", scale="400m"))
    spec = study.spec(files=(*module(name).FILES, REPORTED.name))
    plot, frame = module(name).draw(read([*study.files, REPORTED], spec), spec)
    return plot, frame, note(plot)


def test_published_shares_of_late_pairs_are_rings(tmp_path):
    plot, frame, told = published(tmp_path, "layer_perturbation", ("preln", "hc", "attnres_full"), ((32, 896),))
    shown = frame[frame["part"] == "shapes"].drop_duplicates(["design", "measure"])
    assert shown.set_index(["measure", "design"])["published"].to_dict() == {
        **{("causal", "preln"): 0.01, ("causal", "hc"): 0.07, ("causal", "attnres_full"): 0.16},
        **{("permutation", "preln"): 0.08, ("permutation", "hc"): 0.35, ("permutation", "attnres_full"): 0.46},
    }
    assert "Rings: published (arXiv 2609.32534)." in told
    causal, permutation = plot.draw().axes[:2]
    assert {0.01, 0.07, 0.16} <= heights(causal)
    assert {0.08, 0.35, 0.46} <= heights(permutation)


def heights(axes):
    return {round(float(y), 6) for dots in axes.collections for _, y in dots.get_offsets()}


def test_the_published_dead_segment_ends_behind_two_sublayers_a_layer(tmp_path):
    plot, frame, told = published(tmp_path, "block_mixing", ("attnres_block",))
    assert frame.groupby("n_layers")["published"].unique().str[0].to_dict() == {16: 2, 24: 5, 32: 8}
    assert "Ring: about the end of the sub" in told
    assert "published (arXiv 2609.32534)." in told
    dots = [dots for axes in plot.draw().axes for dots in axes.collections if isinstance(dots, PathCollection)]
    rings = [float(x) for ring in dots for x, _ in ring.get_offsets()]
    assert rings == [4, 10, 16]


def test_published_ranges_of_the_rank_are_dotted(tmp_path):
    plot, frame, told = published(tmp_path, "stream_transport", ("hc", "mhc"))
    whole = frame[frame["part"] == "shapes"].drop_duplicates("design").set_index("design")
    assert whole[["published_lo", "published_hi"]].to_numpy().tolist() == [[2.53, 2.81], [1.44, 1.65]]
    assert "(a), dotted: ends of the range over all shapes, published (arXiv 2609.32534)." in told
    axes = plot.draw().axes[0]
    drawn = {round(float(y), 6) for lines in axes.collections for (_, y), *_ in getattr(lines, "get_segments", list)()}
    assert {2.53, 2.81, 1.44, 1.65} <= drawn
    assert axes.get_ylim()[1] > 2.81


# --- what is not there ---

STATES = {
    "preln_16": {"status": "diverged"},
    "hc_16": {"status": "missing"},
    "hc_8": {"layers": {"causal": "not_requested"}},
}


def test_runs_without_values_are_named_and_keep_their_places(tmp_path):
    plot, frame, told = draw(made(tmp_path, "causal_maps", ("preln", "hc"), **STATES), "causal_maps")
    states = frame.drop_duplicates("panel").set_index("panel")["status"].to_dict()
    assert states == {
        **{"Pre-LN L4": "ok", "Pre-LN L8": "ok", "Pre-LN L16": "diverged"},
        **{"HC L4": "ok", "HC L8": "not_requested", "HC L16": "missing"},
    }
    assert told == (
        "Missing: HC L=16 d=28. Diverged: Pre-LN L=16 d=28. "
        "Not analysed, since the study asks for no analysis of it: HC L=8 d=40."
    )
    assert {"diverged", "missing", "not analysed"} <= set(words(plot.draw()))


def test_two_widths_at_one_depth_have_a_map_each(tmp_path):
    study = made(tmp_path, "permutation_maps", ("preln",), shapes=((16, 28), (16, 32)))
    _, frame, _ = draw(study, "permutation_maps")
    assert frame["panel"].unique().tolist() == ["Pre-LN L16 d32", "Pre-LN L16 d28"]


def test_models_of_one_and_two_layers_say_so(tmp_path):
    study = made(tmp_path, "layer_perturbation", ("preln",), shapes=((1, 64), (2, 60)))
    study.depths = {"one": 2, "three": [1, 2]}
    _, frame, told = draw(study, "layer_perturbation")
    assert set(frame.loc[frame["part"] == "shapes", "status"]) == {"too_shallow"}
    assert told.endswith("Too shallow, without a pair of layers to compare: Pre-LN L=1 d=64, L=2 d=60.")


def test_runs_analysed_on_other_texts_are_refused(tmp_path):
    study = made(tmp_path, "logit_lens", ("preln", "hc"), hc_16={"layers": {"calib_id": "decaf"}})
    with pytest.raises(UserError, match=r"E-RUN .* on other texts than those of .*hc/t-d28-l16.*; remove"):
        draw(study, "logit_lens")


@pytest.mark.parametrize("name", ALL)
def test_a_study_without_any_model_is_a_note(tmp_path, name):
    study = made(tmp_path, name, ("hc",), shapes=TINY[2:], hc_16={"status": "missing", "suites": ["main", "sweep"]})
    plot, frame, told = draw(study, name)
    assert set(frame["status"]) == {"missing"}
    assert "Missing: HC L=16 d=28." in told
    plot.draw()


@pytest.mark.parametrize("name", ALL)
def test_figures_are_drawn_with_designs_of_ones_own(tmp_path, name):
    """Five of them, one missing, one diverged; text is never below 7 pt."""
    own = [f"own{i}" for i in range(5)]
    designs = ["preln", "hc", "attnres_block", *own]
    told = {"preln_16": {"suites": ["main", "sweep"]}, "own1_16": {"status": "diverged"}}
    study = made(tmp_path, name, designs, shapes=TINY[2:], own0_16={"status": "missing"}, **told)
    labels = {d: list(LABELS.get(d, (f"My own {d}", "cross-layer"))) for d in designs}
    spec = ArtifactSpec.from_json(study.json(labels=labels))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot, _ = module(name).draw(read(study.files, spec), spec)
        figure = plot.draw()
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text().strip()) >= 7
    assert figure.get_size_inches()[0] == 6.75

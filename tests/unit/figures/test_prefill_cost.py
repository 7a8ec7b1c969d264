import io
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.text import Text
from synthetic import TINY, Study, path

from depthbench import cost
from depthbench.artifacts import read
from depthbench.errors import UserError
from depthbench.figures import prefill_cost
from depthbench.model import ModelConfig

DESIGNS = ("preln", "hc", "attnres_full")
REPORTED = Path(__file__).parents[3] / "workflow" / "reference" / "paper_reported.csv"
GIB, MIB = 2**30, 2**20


@pytest.fixture
def study(tmp_path):
    study = Study(tmp_path, names=prefill_cost.FILES)
    for design in DESIGNS:
        for i, shape in enumerate(TINY):
            study.add(path(design, shape), loss=4.0 + i / 8)
    study.files = [file for file in study.files if file.name != "prefill.csv"] + [costs(study)]
    return study


def costs(study, edit=None, shapes=TINY):
    """A prefill.csv: in chunks a quarter of a GiB less, but a longer time."""
    rows = []
    for design in DESIGNS:
        for i, (n_layers, d_model) in enumerate(shapes):
            for mode in ("unchunked", "chunked"):
                whole = mode == "unchunked"
                cfg = ModelConfig(design, d_model=d_model, n_layers=n_layers, n_heads=2, vocab_size=512)
                row = {
                    "design": design,
                    "n_layers": n_layers,
                    "d_model": d_model,
                    "mode": mode,
                    "tokens": 256,
                    "batch": 2,
                }
                row |= {"chunk": 256 if whole else 64, "compute": "float32", "memory": "resident size of the process"}
                row |= {
                    "flops": cost.forward_flops(cfg, 256, last_only=True),
                    "kv_bytes": cost.kv_cache_bytes(cfg, 256, 4),
                }
                row |= {"seconds": 0.036 * (i + 1), "device_hours": 1e-5 * (i + 1 if whole else 7), "noisy": i == 0}
                row |= {"peak_bytes": GIB if whole else 3 * GIB // 4, "device": "cpu: x86_64", "kernels": "eager"}
                rows.append(row | {"commit": "a" * 12, "load": 0.1})
    table = pd.DataFrame(rows)
    file = study.root / "results" / study.name / "prefill.csv"
    (edit(table) if edit else table).to_csv(file, index=False)
    return file


def draw(study, *more):
    """Draw: the frame, and the texts on the page with their places; `more` are files besides those of the study."""
    names = (*prefill_cost.FILES, *(file.name for file in more))
    spec, texts, write = study.spec(files=names), {}, Text.draw

    def record(text, renderer):
        write(text, renderer)
        if text.get_text() and text.get_visible():
            texts[text] = text.get_text(), text.get_window_extent(renderer)

    plot, frame = prefill_cost.draw(read([*study.files, *more], spec), spec)
    figure = plot.draw()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", record)
        figure.savefig(io.BytesIO(), format="png")
    return frame, list(texts.values()), figure


def words(texts):
    return " ".join(" ".join(text for text, _ in texts).split())


def check_places(texts, figure):
    """Nothing overlaps and nothing is cut."""
    width, height = figure.get_size_inches() * figure.dpi
    for text, box in texts:
        assert 0 <= box.x0 <= box.x1 <= width, text
        assert 0 <= box.y0 <= box.y1 <= height, text
    boxes = [box for _, box in texts]
    for i, box in enumerate(boxes):
        assert not any(box.shrunk(0.9, 0.9).overlaps(other.shrunk(0.9, 0.9)) for other in boxes[:i]), texts[i][0]


def test_published_flops_are_hollow_marks_of_no_design(tmp_path):
    """Of the paper's widths the sum of one sequence of 256 tokens is below a tenth of the paper's, of 4,096."""
    study, shapes = Study(tmp_path, "paper", names=prefill_cost.FILES), ((16, 1216), (70, 640))
    for design in DESIGNS:
        for shape in shapes:
            study.add(path(design, shape, lr="2e-3", scale="400m"))
    study.files = [file for file in study.files if file.name != "prefill.csv"] + [costs(study, shapes=shapes)]
    frame, texts, figure = draw(study, REPORTED)
    theirs = frame[frame["run_id"].isna()]
    assert theirs[["panel", "n_layers", "value", "unit"]].to_numpy().tolist() == [
        ["flops", 16, 3000, "GFLOP"],
        ["flops", 70, 4400, "GFLOP"],
    ]
    assert "Hollow: about the least and the largest FLOPs of all designs, published" in words(texts)
    drawn = {round(float(y)) for dots in figure.axes[0].collections for _, y in dots.get_offsets()}
    assert {3000, 4400} <= drawn
    check_places(texts, figure)


def test_the_frame_has_every_measure_in_its_unit(study):
    """Pre-LN, T = 256, d_ff 80: L (8 T d^2 + 6 T d f + 2 T^2 d) + 2 d V, and 2 L T d numbers of cache."""
    frame, texts, figure = draw(study)
    assert frame.groupby("panel").size().to_dict() == dict.fromkeys(
        ("flops", "loss", "kv_cache", "memory_unchunked", "memory_chunked", "device_hours"), 9
    )
    row = frame[(frame["design"] == "preln") & (frame["n_layers"] == 16)].set_index("panel")
    flops = 16 * (8 * 256 * 28**2 + 6 * 256 * 28 * 80 + 2 * 256**2 * 28) + 2 * 28 * 512
    expected = {"flops": flops / 1e9, "loss": 4.25, "kv_cache": 2 * 16 * 256 * 28 * 4 / MIB}
    expected |= {"memory_unchunked": 1.0, "memory_chunked": 0.75, "device_hours": 30.0}
    assert row["value"].to_dict() == pytest.approx(expected)
    assert row["unit"].to_dict() == {
        **{"flops": "GFLOP", "loss": "nats/token", "kv_cache": "MiB"},
        **{"memory_unchunked": "GiB", "memory_chunked": "GiB", "device_hours": "1e-6 h"},
    }
    assert row["chunk"].to_dict()["memory_chunked"] == 64
    assert set(frame["status"]) == {"ok"}
    assert "2 prompts of 256 tokens, float32, on one device (cpu: x86_64); chunks of 64 tokens" in words(texts)
    assert "Times: 6 of 18 are noisy" in words(texts)
    scales = [axes.get_ylim() for axes in figure.axes]
    assert scales[4] == scales[5]
    check_places(texts, figure)


def test_runs_that_are_missing_keep_their_costs_and_shapes_not_measured_are_named(study):
    costs(study, lambda table: table[(table["design"] != "hc") | (table["n_layers"] != 16)])
    study.add(path("hc", TINY[1], lr="5e-3"), status="missing")  # another rate of a shape that is there
    lacking = path("preln", TINY[0])
    study.missing.append(lacking)
    study.files = [file for file in study.files if lacking not in str(file)]
    frame, texts, _ = draw(study)
    row = frame[(frame["design"] == "preln") & (frame["n_layers"] == 4)].set_index("panel")
    assert row["status"].to_dict() == dict.fromkeys(row.index, "ok") | {"loss": "missing"}
    assert (frame["panel"] == "flops").sum() == 9
    assert "Missing: Pre-LN L=4 d=52; HC L=8 d=40. Not measured: HC L=16 d=28." in words(texts)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda table: table.drop(columns="seconds"), "seconds"),
        (lambda table: table.iloc[:0], "must have rows"),
        (lambda table: pd.concat([table, table.iloc[:1]]), "one for each design, shape and mode"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(study, edit, words):
    costs(study, edit)
    with pytest.raises(UserError, match=rf"E-RUN .*prefill\.csv: .*{words}.*run snakemake again"):
        draw(study)

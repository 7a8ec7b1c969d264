from pathlib import Path

import pandas as pd
import pytest

from depthbench import config, reference, runs
from depthbench.errors import UserError
from depthbench.model.config import ModelConfig

FOLDER = Path(__file__).parents[2] / "workflow" / "reference"


@pytest.fixture(scope="module")
def reported():
    return reference.read(FOLDER / "paper_reported.csv", "paper_reported.csv")


def test_all_numbers_of_the_paper_are_read(reported):
    assert len(reported) == 495
    found = reported.groupby(["design", "scale", "n_layers", "metric"])["value"].first()
    assert found["preln", "400m", 20, "val_loss"] == 2.759
    assert found["attnres_full", "400m", 32, "r_causal"] == 0.16
    assert found["attnres_block", "400m", 24, "dead_segment_layers"] == 5
    assert found["preln", "1600m", 54, "d_ff"] == 4512


def test_shapes_of_the_paper_follow_from_their_widths(reported):
    """d_ff = 8 d / 3 rounded up to 16, 3 d at 1.6B; head width d / 16."""
    found = reported.pivot_table("value", ["scale", "n_layers", "d_model"], "metric")
    assert len(found.dropna(subset=["d_ff"])) == 7 + 4 + 9 + 3
    for (scale, n_layers, d_model), row in found.dropna(subset=["d_ff"]).iterrows():
        model = ModelConfig("preln", d_model=d_model, n_layers=n_layers, n_heads=16, vocab_size=50280)
        assert row["d_ff"] == (3 * d_model if scale == "1600m" else model.d_ff)
        assert row["head_dim"] == model.head_dim
        assert row["aspect_ratio"] == pytest.approx(d_model / n_layers, abs=0.005)


def test_every_published_loss_is_that_of_a_run_of_the_study(reported, raw):
    views = runs.suites(config.load({**raw, "study": "paper"}))
    published = 0
    for suite in ("main", "backbone"):
        ours = {(run.design, run.scale, run.n_layers, run.d_model) for run in views[suite]}
        rows = reference.published({"paper_reported": reported}, "val_loss", suite)
        theirs = set(rows[["design", "scale", "n_layers", "d_model"]].itertuples(index=False, name=None))
        assert theirs <= ours
        published += len(rows)
    assert published == 10 * 5 + 2 * 2 + 4 + 5 + 6


def test_the_text_comes_before_the_project_page_and_suites_are_kept_apart(reported):
    frames = {"paper_reported": reported}
    rows = pd.DataFrame(
        {"design": ["hc", "preln", "hc"], "scale": ["400m", "400m", "200m"], "n_layers": 32, "d_model": 896}
    ).assign(lr="2e-3")
    assert reference.beside(rows, frames, "val_loss", "main")[:2] == [2.699, 2.782]
    assert reference.beside(rows, frames, "val_loss", "backbone")[:2] == [2.7, 2.763]
    assert pd.isna(reference.beside(rows, frames, "val_loss", "main")[2])
    assert pd.isna(reference.beside(rows, {}, "val_loss", "main")).all()
    # LNS was best at 1e-2, the others at 2e-3: at another rate the paper has no value
    rates = pd.DataFrame({"design": ["lns", "lns", "preln"], "lr": ["1e-2", "2e-3", "1e-2"]})
    rates = rates.assign(scale="400m", n_layers=24, d_model=1024)
    assert pd.isna(reference.beside(rates, frames, "val_loss", "main")).tolist() == [False, True, True]


def test_hollow_marks_repeat_the_rows_that_have_a_published_value():
    rows = pd.DataFrame({"loss": [4.0, None], "loss_lo": 3.9, "loss_hi": 4.1, "status": ["ok", "missing"]})
    found = reference.marks(rows.assign(published=[None, 4.5]))
    assert found["hollow"].tolist() == [False, False, True]
    assert found.loc[2, ["loss", "status"]].tolist() == [4.5, "ok"]
    assert found.loc[2, ["loss_lo", "loss_hi"]].isna().all()


def test_shapes_of_published_models():
    models = reference.read(FOLDER / "industry_shapes.csv", "industry_shapes.csv").set_index("model")
    assert len(models) == 57
    assert models.loc["Llama-3-8B", ["parameters_b", "d_model", "n_layers"]].tolist() == [8.0, 4096, 32]


HEAD = "artifact,architecture,suite,n_layer,d_model,metric,value,unit,source\n"
LINE = "Figure 2a,HC,400M,16,1216,val_loss,2.7,nats,text\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD.replace(",unit", "") + LINE, "no column unit"),
        (HEAD.replace("unit,", "unit,note,") + LINE, "unknown column 'note'"),
        (HEAD + LINE.replace("HC", "HyperC"), "line 2: architecture: must be one of Pre-LN, .*got 'HyperC'"),
        (HEAD + LINE.replace("400M", "4M"), "line 2: suite: must be one of 200M, "),
        (HEAD + LINE.replace("val_loss", "loss"), "line 2: metric: must be one of val_loss, "),
        (HEAD + LINE + LINE.replace("2.7", "low"), "line 3: value: .*got 'low'"),
        (HEAD + LINE.replace("2.7", "nan"), "line 2: value: "),
        (HEAD + LINE.replace("16", "16.5"), "line 2: n_layer: "),
        (HEAD + "Figure 2a,HC\n", "line 2 is too short"),
        (HEAD + LINE.replace("2.7", "2,7"), "line 2 is too long"),
        (HEAD, "no rows"),
        ("", "no column artifact"),
    ],
)
def test_a_wrong_reference_is_one_line(tmp_path, text, words):
    path = tmp_path / "paper_reported.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=f"^E-REFERENCE {path}: {words}.*; bring back .*$") as caught:
        reference.read(path, "paper_reported.csv")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("relation", "value", "words"),
    [("<", "low", "could not convert"), ("between", "2..1", "no range"), ("between", "2", "could not convert")],
)
def test_a_claim_that_allows_nothing_is_refused(tmp_path, relation, value, words):
    path = tmp_path / "claims.csv"
    path.write_text(
        f"id,section,claim,paper,metric,selector,relation,value\na,3,c,p,slope,suite=main,{relation},{value}\n"
    )
    with pytest.raises(UserError, match=f"E-REFERENCE {path}: line 2: .*{words}"):
        reference.read(path, "claims.csv")


def compared(path, text):
    path.write_text(text, encoding="utf-8")
    return reference.read(path, "compare.csv")


def test_a_table_to_compare_with_and_without_intervals(tmp_path):
    """As a spreadsheet writes it: a mark at its beginning, columns of its own."""
    found = compared(tmp_path / "a.csv", "\ufefflabel,n_layers,d_model,loss,note\nMine,16,28,4.5,x\n")
    assert found.loc[0, ["label", "n_layers", "d_model", "loss"]].tolist() == ["Mine", 16, 28, 4.5]
    assert found[["loss_lo", "loss_hi"]].isna().all(axis=None)
    found = compared(tmp_path / "b.csv", "label,n_layers,d_model,loss,loss_lo,loss_hi\nMine,16,28,4.5,4.4,\n")
    assert (found.loc[0, "loss_lo"], pd.isna(found.loc[0, "loss_hi"])) == (4.4, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("label,n_layers,loss\nMine,16,4.5\n", "no column d_model"),
        ("label;n_layers;d_model;loss\nMine;16;28;4.5\n", "no column label"),
        ("label,n_layers,d_model,loss\n", "no rows"),
        ("label,n_layers,d_model,loss\nMine,16,28,\n", "line 2: loss: .*got ''"),
        ("label,n_layers,d_model,loss\nMine,16,28,inf\n", "line 2: loss: "),
        ("label,n_layers,d_model,loss\nMine,16,28,-1\n", "line 2: loss: "),
        ("label,n_layers,d_model,loss\nMine,deep,28,4.5\n", "line 2: n_layers: .*got 'deep'"),
        ("label,n_layers,d_model,loss\n,16,28,4.5\n", "line 2: label: "),
        ("label,n_layers,d_model,loss\nMine,16,28,4.5\nMine,16,28,4.4\n", "line 3: Mine 16 28 stands there twice"),
        ("label,n_layers,d_model,loss,loss_lo\nMine,16,28,4.5,4.6\n", "line 2: .*loss_lo"),
    ],
)
def test_a_table_that_cannot_be_compared_is_one_line(tmp_path, text, words):
    with pytest.raises(UserError, match=f"^E-COMPARE {tmp_path}/a.csv: {words}.*; mend it, .*$") as caught:
        compared(tmp_path / "a.csv", text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"label,n_layers,d_model,loss\nM\xe9,16,28,4.5\n"])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, content):
    path = tmp_path / "a.csv"
    if content:
        path.write_bytes(content)
    with pytest.raises(UserError, match=f"^E-COMPARE {path}: [^\n]*; mend it"):
        reference.read(path, "compare.csv")

import json

import numpy as np
import pandas as pd
import pytest
from synthetic import FILES, TINY, Study, path

from depthbench import artifacts
from depthbench.artifacts import ArtifactSpec, published, read, runs_frame
from depthbench.errors import UserError

RUN, OTHER = path("preln", TINY[0]), path("hc", TINY[1])


@pytest.fixture
def study(tmp_path):
    study = Study(tmp_path)
    study.add(RUN, ["backbone", "main"], loss=4.625)
    study.add(OTHER, loss=4.5)
    return study


def refused(study, *words, files=None):
    with pytest.raises(UserError) as caught:
        read(study.files if files is None else files, study.spec())
    assert caught.value.code == "E-RUN"
    for line in str(caught.value).splitlines():
        assert line.startswith("E-RUN ")
        assert "; " in line  # what is wrong; what to do
    for word in words:
        assert word in str(caught.value)


def test_spec_is_read_from_json(study):
    study.add(path("keel", TINY[2]), status="missing")
    spec = ArtifactSpec.from_json(study.json(colour="red"))
    assert spec.runs[RUN] == ("backbone", "main")
    assert sorted(spec.present) == sorted([RUN, OTHER])
    assert spec.labels["preln"] == ("Pre-LN", "baseline")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"runs": {"preln/4x52": ["main"]}}, "preln/4x52"),
        ({"missing": [path("keel", TINY[0])]}, path("keel", TINY[0])),
        ({"labels": {"preln": ["Pre-LN", "baseline"]}}, "'hc'"),
        ({"labels": {"preln": ["Pre-LN", "base"], "hc": ["HC", "norm"]}}, "labels.preln.1"),
        ({"files": ["weights.bin"]}, "weights.bin"),
        ({"bootstrap": 0}, "bootstrap"),
        ({"plans": {"preln/t-d52-l4": {"steps": 1}}}, "the plan of 'preln/t-d52-l4' has no model"),
        ({"plans": {"keel/t-d52-l4": {}}}, "'keel'"),
        ({"files": ["analysis/angular.csv"], "depths": {}}, "need depths and common_lr"),
    ],
)
def test_bad_spec_is_one_line(study, changes, word):
    with pytest.raises(UserError) as caught:
        ArtifactSpec.from_json(study.json(**changes))
    assert caught.value.code == "E-SPEC"
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_spec_that_is_no_json():
    with pytest.raises(UserError, match="E-SPEC"):
        ArtifactSpec.from_json("{")


def test_runs_are_shown_in_the_order_of_the_paper(tmp_path):
    """Own designs come last of their family; wide before deep; rates go by value, not by text."""
    study = Study(tmp_path)
    wanted = [
        path("preln", (4, 52)),
        path("preln", (8, 40), lr="15e-4"),
        path("preln", (8, 40), lr="2e-3"),
        path("preln", (8, 40), lr="1e-2", seed=0),
        path("preln", (8, 40), lr="1e-2", seed=1),
        path("preln", (16, 28)),
        path("keel", (4, 52)),
        path("a_norm", (4, 52)),
        path("hc", (4, 52)),
        path("attnres_full", (4, 52)),
    ]
    labels = {"a_norm": ["A", "norm"], "attnres_full": ["F", "cross-layer"], "hc": ["HC", "multi-stream"]}
    labels |= {"keel": ["KEEL", "norm"], "preln": ["Pre-LN", "baseline"]}
    for run in sorted(wanted):
        study.runs[run] = ["main"]
    table = runs_frame(ArtifactSpec.from_json(study.json(labels=labels)))
    assert table["run_id"].tolist() == [f"tiny/runs/{run}" for run in wanted]
    assert table["aspect_ratio"].iloc[[0, 1, 5]].tolist() == [13.0, 5.0, 1.75]


def test_frames_have_declared_types(study):
    diverged = path("preln", TINY[2])
    study.add(diverged, status="diverged")
    frames = read(study.files, study.spec())
    assert {name: frame.dtypes.astype(str).to_dict() for name, frame in frames.items()} == {
        "run": artifacts.COLUMNS["run.json"],
        "validation": artifacts.COLUMNS["validation.csv"],
        "validation_docs": artifacts.COLUMNS["validation_docs.parquet"],
    }
    validation = frames["validation"].set_index("run_id")
    assert validation.loc[f"tiny/runs/{RUN}", "loss"] == 4.625
    assert validation.loc[f"tiny/runs/{OTHER}", "loss"] == 4.5
    assert validation["data_id"].tolist() == ["12e5"] * 3  # not the number 1200000
    assert validation.loc[f"tiny/runs/{diverged}", "status"] == "diverged"
    assert np.isnan(validation.loc[f"tiny/runs/{diverged}", "loss"])
    assert frames["validation_docs"].groupby("run_id").size().tolist() == [
        100,
        100,
    ]  # none of the diverged run
    assert runs_frame(study.spec())["lr"].tolist() == ["1e-2"] * 3


def test_frames_of_missing_runs_are_empty_but_typed(tmp_path):
    study = Study(tmp_path)
    study.add(RUN, status="missing")
    frames = read([], study.spec())
    assert all(frame.empty for frame in frames.values())
    assert frames["validation"].dtypes.astype(str).to_dict() == artifacts.COLUMNS["validation.csv"]


@pytest.mark.parametrize("name", FILES)
def test_file_that_is_not_there(study, name):
    study.file(RUN, name).unlink()
    refused(study, str(study.file(RUN, name)), "No such file", "run snakemake again")


@pytest.mark.parametrize("name", FILES)
def test_file_cut_short_anywhere(study, name):
    file = study.file(RUN, name)
    whole = file.read_bytes()
    for end in [*range(0, len(whole), len(whole) // 20), *range(len(whole) - 10, len(whole))]:
        file.write_bytes(whole[:end])
        refused(study, str(file))


@pytest.mark.parametrize("name", FILES)
def test_file_of_another_run(study, name):
    study.file(RUN, name).write_bytes(study.file(OTHER, name).read_bytes())
    refused(study, str(study.file(RUN, name)), f"belongs to 'tiny/runs/{OTHER}'")


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        (",loss,", ",loss_nats,", "loss"),
        ("4.625", "about 4", "about 4"),
        ("4.625", "", "loss is nan though status is ok"),
        ("4.625", "inf", "loss is inf though status is ok"),
        (",ok,", ",done,", "status is 'done'"),
        ("\n", "\n\n\nx", ""),
    ],
)
def test_wrong_validation_csv(study, old, new, word):
    file = study.file(RUN, "validation.csv")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    refused(study, str(file), word)


def test_second_row_in_validation_csv(study):
    file = study.file(RUN, "validation.csv")
    file.write_text(file.read_text() + file.read_text().splitlines()[1] + "\n")
    refused(study, str(file), "2 rows")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda docs: docs.drop(columns="origin"), "no column origin"),
        (lambda docs: docs.assign(n_tokens=docs["n_tokens"] + 0.5), ""),
        (lambda docs: docs.assign(nll_sum=docs["nll_sum"].where(docs.index > 3)), "empty values"),
        (lambda docs: docs.assign(nll_sum="much"), "much"),
    ],
)
def test_wrong_documents(study, change, word):
    file = study.file(RUN, "validation_docs.parquet")
    change(pd.read_parquet(file)).to_parquet(file)
    refused(study, str(file), word)


def test_wrong_record(study):
    file = study.file(RUN, "run.json")
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"status": "running"}))
    refused(study, str(file), "status")


def test_runs_measured_on_different_data(study):
    file = study.file(OTHER, "validation.csv")
    file.write_text(file.read_text().replace("12e5", "12e6"))
    refused(study, OTHER, RUN, "on other texts than")


def test_file_that_no_run_of_the_artifact_has(study):
    stranger = study.file(path("keel", TINY[0]), "run.json")
    refused(study, str(stranger), files=[*study.files, stranger])


def test_file_that_was_not_given(study):
    refused(study, f"{RUN}/run.json", files=[f for f in study.files if f != study.file(RUN, "run.json")])


@pytest.mark.parametrize(
    ("legs", "commit", "mixed"),
    [
        ([("a" * 40, False), ("a" * 40, False)], "aaaaaaa", False),
        ([("a" * 40, False), ("b" * 40, False), ("a" * 40, False)], "aaaaaaa, bbbbbbb", True),
        ([("a" * 40, True)], "aaaaaaa-dirty", True),
        ([(None, None)], "unknown", True),
    ],
)
def test_commit_of_all_legs(tmp_path, legs, commit, mixed):
    study = Study(tmp_path)
    study.add(RUN, legs=legs)
    row = read(study.files, study.spec())["run"].iloc[0]
    assert (row["commit"], row["mixed_commit"]) == (commit, mixed)


def test_files_are_published_together_the_declared_one_last(tmp_path, monkeypatch):
    order = []
    replace = artifacts.Path.replace
    monkeypatch.setattr(artifacts.Path, "replace", lambda part, to: order.append(to.name) or replace(part, to))
    with published(tmp_path / "a.csv", (".csv", ".tex", ".md")) as parts:
        for suffix, part in parts.items():
            part.write_text(suffix)
        assert not list(tmp_path.glob("a.*"))
    assert sorted(order) == ["a.csv", "a.md", "a.tex"]
    assert order[-1] == "a.csv"
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {f"a{s}": s for s in (".csv", ".tex", ".md")}


def test_failure_leaves_no_file_not_even_an_old_one(tmp_path):
    (tmp_path / "a.csv").write_text("old")
    with pytest.raises(IsADirectoryError), published(tmp_path / "a.csv", (".csv", ".tex")) as parts:
        parts[".tex"].write_text(parts[".csv"].parent.read_text())
    assert list(tmp_path.iterdir()) == []


def test_output_with_another_ending_is_refused(tmp_path):
    with (
        pytest.raises(UserError, match=r"E-ARTIFACT .*a\.txt"),
        published(tmp_path / "a.txt", (".csv", ".tex")),
    ):
        pass


def test_a_table_to_compare_is_known_by_its_path(study, tmp_path):
    """Its name may be that of a file of the runs."""
    table = tmp_path / "mine" / "validation.csv"
    table.parent.mkdir()
    table.write_text("label,n_layers,d_model,loss\nMine,16,28,4.5\n")
    spec = study.spec(files=(*FILES, "compare.csv"), compare=str(table))
    frames = read([*study.files, table], spec)
    assert frames["compare"]["label"].tolist() == ["Mine"]
    assert len(frames["validation"]) == 2
    table.write_text("label,n_layers,d_model,loss\nMine,16,28,low\n")
    with pytest.raises(UserError, match=f"^E-COMPARE {table}: line 2: loss: [^\n]*$"):
        read([*study.files, table], spec)
    with pytest.raises(UserError, match=r"^E-RUN compare\.csv: not among the files given"):
        read(study.files, spec)


def test_runs_without_analyses_need_no_files_of_them(study):
    name = "analysis/transport.csv"
    compared = {"depths": {"one": 4, "three": [4, 8]}, "common_lr": "1e-2"}
    spec = ArtifactSpec.from_json(study.json(files=[name], unanalyzed=[OTHER], **compared))
    assert spec.owners(name) == [RUN]
    with pytest.raises(UserError, match=f"^E-RUN {RUN}/{name}: not among the files given[^\n]*$"):
        read([], spec)

from pathlib import Path

import pytest
import yaml

from depthbench import config
from depthbench.bench import prefill
from depthbench.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def prefilled():
    raw = yaml.safe_load((ROOT / "config.yaml").read_text())
    wanted = prefill.spec(config.load({**raw, "study": "micro"}))
    return wanted, list(prefill.rows(wanted.model_copy(update={"cases": wanted.cases[-2:]}), "eager"))


def test_a_study_is_prefilled_at_the_shapes_of_three_designs(raw):
    found = prefill.spec(config.load({**raw, "study": "paper"}))
    shapes = [(16, 1216), (20, 1120), (24, 1024), (28, 960), (32, 896), (42, 800), (70, 640)]
    assert [(case.model["n_layers"], case.model["d_model"], case.design) for case in found.cases] == [
        (*shape, design) for shape in shapes for design in ("preln", "hc", "attnres_full")
    ]
    assert (found.size.tokens, found.size.batch, found.compute) == (4096, 8, "bfloat16")
    raw["studies"]["paper"]["suites"] = {"ladder": raw["studies"]["paper"]["suites"]["ladder"]}
    assert prefill.spec(config.load({**raw, "study": "paper"})) is None


def test_a_prefill_has_its_closed_forms_and_its_measures(prefilled):
    """Micro: 64 tokens, so chunks of 16; L = 4, d = 16, d_ff = 48, one head, V = 512."""
    _, rows = prefilled
    assert [(row["design"], row["mode"], row["chunk"]) for row in rows] == [
        *(("preln", "unchunked", 64), ("preln", "chunked", 16)),
        *(("attnres_full", "unchunked", 64), ("attnres_full", "chunked", 16)),
    ]
    L, d, f, T, V = 4, 16, 48, 64, 512
    flops = L * (8 * T * d * d + 6 * T * d * f + 2 * T * T * d) + 2 * d * V
    assert [row["flops"] for row in rows] == [flops] * 2 + [flops + 4 * T * d * L * (2 * L + 3)] * 2
    for row in rows:
        assert row["kv_bytes"] == 2 * L * T * d * 4
        assert row["device_hours"] == row["seconds"] / 3600
        assert 0 < row["seconds_min"] <= row["seconds"]
        assert 50 * 2**20 < row["peak_bytes"] < 2 * 2**30  # of a process with its libraries
        assert row["memory"] == "resident size of the process"
    assert rows[0]["ratio"] == 1


def test_the_rows_are_a_table_that_the_figure_reads(prefilled, monkeypatch, tmp_path, capsys):
    from depthbench.readers import READERS

    wanted, rows = prefilled
    monkeypatch.setattr(prefill, "rows", lambda *_: iter(rows))
    prefill.write(wanted, "eager", tmp_path / "prefill.csv")
    frame = READERS["prefill.csv"](tmp_path / "prefill.csv")
    assert frame["peak_bytes"].tolist() == [row["peak_bytes"] for row in rows]
    assert capsys.readouterr().out.count("\n") == 4


def test_a_case_that_fails_is_told_in_one_line(raw):
    wanted = prefill.spec(config.load({**raw, "study": "micro"}))
    bad = wanted.cases[0].model_copy(update={"model": wanted.cases[0].model | {"design": "moda"}})
    with pytest.raises(UserError, match=r"E-PREFILL preln L2 d16: .*moda: its attention is its own.*smaller$") as told:
        list(prefill.rows(wanted.model_copy(update={"cases": [bad]}), "eager"))
    assert "\n" not in str(told.value)

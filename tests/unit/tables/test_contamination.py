import json

import pandas as pd
import pytest
from synthetic import Study

from depthbench import tables
from depthbench.errors import UserError

COUNTS = ("n_items", "n_items_short", "n_items_hit", "n_docs_hit")
LOOKED = {"task": "mbpp", "action": "drop"} | dict(zip(COUNTS, (500, 2, 3, 40), strict=True))
OFF = {"task": "sciq", "action": "off"} | dict.fromkeys(COUNTS)


@pytest.fixture
def write(tmp_path):
    manifest, out = tmp_path / "manifest.json", tmp_path / "tables" / "contamination.csv"

    def call(content):
        manifest.write_text(content)
        tables.write("contamination", [manifest], Study(tmp_path).spec(files=["manifest.json"]), out)
        return out

    return call


def test_rows_are_those_of_the_manifest(write):
    """The manifest holds more than the table; counts are empty where nobody looked."""
    out = write(json.dumps({"data_id": "12e5", "contamination": [LOOKED, OFF]}))
    table = pd.read_csv(out, dtype="str", keep_default_na=False)
    assert table.columns.tolist() == ["task", *COUNTS, "action"]
    assert table.to_numpy().tolist() == [["mbpp", "500", "2", "3", "40", "drop"], ["sciq", "", "", "", "", "off"]]
    assert r"sciq & --- & --- & --- & --- & off" in out.with_suffix(".tex").read_text()


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("{", "manifest.json"),
        ("{}", "contamination"),
        (json.dumps({"contamination": [LOOKED | {"n_items": "many"}]}), "contamination.0.n_items"),
        (json.dumps({"contamination": [{"task": "mbpp"}]}), "contamination.0.n_items"),
    ],
)
def test_wrong_manifest_is_one_line_and_no_table(write, tmp_path, content, word):
    with pytest.raises(UserError, match=f"E-RUN .*{word}.*; remove it and run snakemake again") as caught:
        write(content)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "tables").iterdir())


def test_manifest_that_was_not_given(tmp_path):
    spec = Study(tmp_path).spec(files=["manifest.json"])
    with pytest.raises(UserError, match=r"E-RUN manifest.json: not among the files given"):
        tables.write("contamination", [], spec, tmp_path / "contamination.csv")

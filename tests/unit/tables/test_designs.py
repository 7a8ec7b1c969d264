import pytest
from synthetic import LABELS, TINY, Study, path

from depthbench import artifacts, designs, tables
from depthbench.errors import UserError
from depthbench.tables import designs as table_1

MINE = '''"""Mine (Author 2026, arXiv 2601.00001): a norm of the sum.

    h <- norm(h + F(h)) in a figure;    readout: h_L
"""

import no_such_package


class Other:
    """Not this one."""


class Residual(no_such_package.Preln):
    """h <- norm(h + F(h)),
    in every block.

    More about it.
    """
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The file of a user's own design, among no others."""
    monkeypatch.setattr(designs, "FOLDER", tmp_path)
    return tmp_path / "mine.py"


def spec(study, **changes):
    return artifacts.ArtifactSpec.from_json(study.json(files=[], **changes))


def test_every_design_of_the_paper_is_described(tmp_path):
    study = Study(tmp_path)
    study.runs = {path(design, TINY[0]): ["main"] for design in LABELS}
    table = table_1.build({}, spec(study)).set_index("design")
    assert table.index.tolist() == [
        *("preln", "sandwich", "lns", "deepnorm", "keel", "hc", "mhc", "attnres_full", "attnres_block", "moda"),
    ]
    assert table["residual"].tolist() == table.index.tolist()
    assert table["source"].str.contains(r"arXiv \d{4}\.\d{5}").all()
    assert (table[["rule", "readout"]] != "").all(axis=None)
    # Section 3 of the specification.
    rules = {"lns": "sqrt(l + 1)", "deepnorm": "(2 L)^(1/4)", "keel": "2 L h +", "sandwich": "norm_post(F(norm(h)))"}
    assert all(part in table.loc[design, "rule"] for design, part in rules.items())
    readouts = {"hc": "sum", "mhc": "mean", "attnres_full": "2L + 1 sources", "deepnorm": "RMSNorm"}
    assert all(part in table.loc[design, "readout"] for design, part in readouts.items())


def test_a_variant_has_the_words_of_its_residual_and_rates_name_their_scales(tmp_path):
    study = Study(tmp_path)
    study.steps = {"500m": 9500, "1600m": 30400}
    variant = path("mhc_legacy", TINY[0])
    study.runs = {path("hc", TINY[0], scale=scale): ["main"] for scale in ("1600m", "500m", "400m")}
    study.runs[variant] = ["sweep"]
    plans = study.plans()
    plans["mhc_legacy/t-d52-l4"]["model"]["design"] = "mhc"
    plans["hc/1600m-d52-l4"]["declared_lr"] = "5e-4"
    labels = {"hc": ("HC", "multi-stream"), "mhc_legacy": ("mHC (legacy)", "multi-stream")}
    table = table_1.build({}, spec(study, plans=plans, labels=labels)).set_index("design")
    assert table.index.tolist() == ["hc", "mhc_legacy"]
    assert table["declared_lr"].tolist() == ["1e-2 (400m, 500m); 5e-4 (1600m)", "1e-2"]
    assert table.loc["mhc_legacy", "residual"] == "mhc"
    assert "Sinkhorn" in table.loc["mhc_legacy", "rule"]
    assert table["family"].tolist() == ["multi-stream"] * 2


def test_a_design_of_ones_own_is_read_without_running_it(mine):
    mine.write_text(MINE)
    assert designs.words("mine") == ("h <- norm(h + F(h)), in every block", "h_L", "Author 2026, arXiv 2601.00001")


@pytest.mark.parametrize(
    "text",
    ["", "class Residual:\n    pass\n", '"""Mine: a norm."""\n\n\nclass Residual(preln.Residual):\n    x = 1\n'],
)
def test_a_file_that_says_nothing_has_empty_cells(mine, text):
    """What Pre-LN says of itself is not the rule of a design that is built on it."""
    mine.write_text(text)
    assert designs.words("mine") == ("", "", "")


@pytest.mark.parametrize("content", [None, b"def (:\n", b"\xff\xfe", b"x\0"])
def test_a_file_that_cannot_be_read_is_one_line_and_no_table(mine, tmp_path, content):
    if content is not None:
        mine.write_bytes(content)
    study = Study(tmp_path / "study")
    study.runs = {path("mine", TINY[0]): ["main"]}
    with pytest.raises(UserError, match=r"E-CONFIG residuals/mine\.py: cannot be read .*; mend it") as caught:
        tables.write("designs", [], spec(study, labels={"mine": ("Mine", "norm")}), tmp_path / "tables" / "designs.csv")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "tables").iterdir())


def test_latex_prints_the_arrow_of_a_rule(tmp_path):
    """In LaTeX's default encoding `<` would come out as another sign."""
    study = Study(tmp_path)
    study.runs = {path("keel", TINY[0]): ["main"]}
    tables.write("designs", [], spec(study), tmp_path / "designs.csv")
    text = (tmp_path / "designs.tex").read_text()
    assert r"h \textless{}- norm\_post(2 L h + F(norm(h))) & h & arXiv 2609.32534 & 1e-2" in text
    assert "<" not in text

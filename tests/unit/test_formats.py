"""docs/results-format.md has every column, and says what it means."""

import pytest

from depthbench import columns, figures, format_page, formats, readers, tables
from depthbench.errors import UserError
from depthbench.tables import losses

KINDS = {"str": columns.TEXT, "float64": columns.NUMBER} | {
    **dict.fromkeys(("int64", "Int64"), columns.WHOLE),
    **dict.fromkeys(("bool", "boolean"), columns.FLAG),
}
FILES = formats.RUN_FILES | formats.OTHER_FILES


def test_a_column_without_a_meaning_is_refused(monkeypatch):
    monkeypatch.setattr(losses, "COLUMNS", [*losses.COLUMNS, "perplexity"])
    with pytest.raises(UserError, match=r"E-DOCS tables/losses.csv: column 'perplexity' has no meaning"):
        format_page.page()


def test_each_meaning_is_that_of_some_column():
    named = {(file, name) for file in FILES for name in format_page.columns(file)}
    for kind, package in (("tables", tables), ("figures", figures)):
        named |= {
            (f"{kind}/{name}.csv", column) for name, module in format_page.modules(package) for column in module.COLUMNS
        }
    own = {(file, name) for file, meanings in formats.OWN.items() for name in meanings}
    assert own <= named
    assert set(columns.MEANINGS) <= {name for _, name in named - own} | set(format_page.COMMON)


@pytest.mark.parametrize("file", [file for file in FILES if file in readers.COLUMNS and file not in formats.RECORDS])
def test_types_are_those_that_tables_and_figures_read(file):
    read = {name: KINDS[kind] for name, kind in readers.COLUMNS[file].items()}
    assert {name: format_page.meaning(file, name).kind for name in read} == read

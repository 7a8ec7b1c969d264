import re
from pathlib import Path

import pandas as pd
import pytest
import yaml
from synthetic import TINY, Study, path

from depthbench import docs, tables
from depthbench.tables import losses

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_the_menu_of_the_site_names_each_page_once():
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    named = [page for part in menu for pages in part.values() for entry in pages for page in entry.values()]
    assert sorted(named) == PAGES


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}" for name in PAGES)])
def test_links_lead_to_files_of_the_repository(page):
    """On a Git host as in the site, whose build checks them too."""
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).is_file()] == []


def test_results_are_those_of_the_table_losses_old_and_new(tmp_path):
    """The README's table is the same without the columns that came later."""
    study = Study(tmp_path, names=losses.FILES)
    for i, shape in enumerate(TINY):
        study.add(path("preln", shape), loss=4.5 + i / 8)
    out = tmp_path / "losses.csv"
    tables.write("losses", study.files, study.spec(), out)
    text = docs.results(out)
    assert "| design | L = 4, d = 52 | L = 8, d = 40 | L = 16, d = 28 |" in text
    assert "| Pre-LN | 4.500 [4.500, 4.500] | 4.625 [4.625, 4.625] | 4.750 [4.750, 4.750] |" in text
    assert re.search(r"after 102,400 tokens \(commit aaaaaaa\)", text)
    old = tmp_path / "old.csv"
    pd.read_csv(out, dtype="str").drop(columns="overhead_pct").to_csv(old, index=False)
    assert docs.results(old) == text

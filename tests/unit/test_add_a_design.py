"""docs/add-a-design.md shows code that is in the tree."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add-a-design.md").read_text()
FILES = ("src/depthbench/residuals/denseformer.py", "tests/residuals/formulas.py")


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_code_of_the_page_is_that_of_the_tree(block):
    assert any(block in (ROOT / name).read_text() for name in FILES)


def test_links_of_the_page_lead_somewhere():
    links = re.findall(r"\]\((\.\./[^)]+)\)", PAGE)
    assert links
    assert all((ROOT / "docs" / link).is_file() for link in links)

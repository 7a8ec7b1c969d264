"""The build of the site in `make check` stops at what a reader would stumble over."""

import re
import sys

import pytest
from checkout import ROOT, Checkout

pytest.importorskip("mkdocs")
BUILD = re.search(r"^\t(mkdocs build .*) --site-dir", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()


@pytest.fixture
def build(tmp_path):
    """Build the site of a checkout as the Makefile does; return the exit status, what was told, the site."""
    made = Checkout(tmp_path / "checkout")

    def run():
        command = (sys.executable, "-m", *BUILD, "--site-dir", str(tmp_path / "site"))
        done = made.call(*command, env={"NO_MKDOCS_2_WARNING": "1"})
        return done.returncode, done.stdout + done.stderr, tmp_path / "site"

    return made.folder / "docs", run


def test_the_site_asks_nothing_of_the_network_and_shows_files_of_the_repository(build):
    status, told, site = build[1]()
    assert status == 0, told
    pages = {path.relative_to(site).as_posix(): path.read_text() for path in site.rglob("*.html")}
    assert not [
        page for page, text in pages.items() if re.search(r"""(?:src|href)=["']https?://[^"']+\.(?:js|css)""", text)
    ]
    assert not [page for page, text in pages.items() if re.search(r"""<script src=["']https?:|fonts\.g""", text)]
    assert 'href="source/config.yaml.html"' in pages["corpora.html"]
    assert "fineweb_edu" in pages["source/config.yaml.html"]


def test_broken_links_and_pages_without_a_place_are_refused(build):
    docs, run = build
    with (docs / "index.md").open("a") as file:
        file.write("\n[a](nope.md) [b](cluster.md#nope) [c](../nope.yaml)\n")
    (docs / "unlisted.md").write_text("# Unlisted\n")
    status, told, _ = run()
    assert status != 0
    for words in ("unlisted.md", "'nope.md'", "'#nope'", "'../nope.yaml'"):
        assert words in told

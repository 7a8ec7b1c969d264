"""For mkdocs: a page of its own for each file of the repository that a page links to.

Pages link to `../config.yaml` and the like, which leads to the file on a Git host. The site has no such file, and works
without network: there the link leads to a page that shows it.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

LINK = re.compile(r"\]\(\.\./([^)#]+)\)")
LANGUAGES = {".py": "python", ".yaml": "yaml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the files that are linked to; a link to none stays as it is, and mkdocs warns of it."""
    root = Path(config.docs_dir).parent
    pages = [file.content_string for file in files.documentation_pages()]
    for name in sorted({name for text in pages for name in LINK.findall(text)}):
        if not (root / name).is_file():
            continue
        # three more backticks than any file has in a row
        text = f"---\nsearch: {{exclude: true}}\n---\n\n# {name}\n\n``````{LANGUAGES.get(Path(name).suffix, 'text')}\n"
        text += (root / name).read_text(encoding="utf-8") + "``````\n"
        files.append(File.generated(config, _place(name), content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, files: Files, **_: Any) -> str:
    """Lead links to files of the repository to their pages."""

    def place(link: re.Match) -> str:
        target = _place(link[1])
        return f"]({target})" if files.get_file_from_path(target) else link[0]

    return LINK.sub(place, markdown)


def _place(name: str) -> str:
    return f"source/{name}.md"

"""Code that stands in the documentation, run as if it were in the tree."""

import importlib.util
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def files(page):
    """Return the Python files that a page shows: a line that is a path, and the block behind it."""
    return dict(
        re.findall(r"^`(\S+\.py)`\n\n```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    )


def added(monkeypatch, folder, page, package):
    """Put the module that a page adds into a package, as long as the test runs; return it and the code of its test."""
    (where, code), (_, test) = files(page).items()
    path = folder / Path(where).name
    path.write_text(code)
    name = f"{package.__name__}.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(package, path.stem, module, raising=False)
    spec.loader.exec_module(module)
    space = {}
    exec(test, space)
    return module, [value for key, value in space.items() if key.startswith("test_")]

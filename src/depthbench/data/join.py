"""A hub corpus out of its parts: the manifest names their training shards, held-out documents are put in order.

The training text is the parts in the order of the configuration. A text that stands in several files stays in the
training text as often, and is counted. The held-out documents are written in the order of their content key, each
text once, up to the one that holds the `val_tokens`-th token.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from depthbench import files
from depthbench.data import corpus, shards, tokenizer
from depthbench.data.decontaminate import index_of_all_items, rows_not_looked_for
from depthbench.data.loader import open_split
from depthbench.data.workplace import replace_folder, workplace
from depthbench.errors import UserError
from depthbench.runs import parquet_files, part_spec
from depthbench.specs import DataSpec

AGAIN = "run `depthbench prepare-file` again"
Shard = tuple[np.ndarray, np.ndarray]  # tokens, document starts and the end


@dataclass(frozen=True)
class Part:
    """What `parts.prepare_file` has made of one file."""

    file: str
    folder: Path
    about: dict[str, Any]

    def split(self, side: str) -> dict[str, Any] | None:
        """Return what the manifest says of a side; None if the file has no such side."""
        return self.about["splits"].get(side)

    def shards(self, side: str) -> list[Shard]:
        """Map the token files of a side."""
        return open_split(self.folder, side, self.about)

    def documents(self, side: str, *columns: str) -> pd.DataFrame:
        """Return columns of the list of documents of a side."""
        path = self.folder / side / "documents.parquet"
        try:
            return pq.read_table(path, columns=list(columns), partitioning=None).to_pandas()
        except (OSError, pa.ArrowException) as error:
            raise UserError("E-SHARD", f"{path}: cannot be read; delete it and {AGAIN}") from error


def join(spec: DataSpec, folder: Path) -> None:
    """Write manifest, tokenizer and held-out documents of a hub corpus whose parts stand in `folder`.

    Raises:
        UserError: E-SHARD if a part is missing or made with other settings, E-SPLIT if a side is empty, E-DISK.
    """
    folder = folder.resolve()
    parts = [_read(folder, spec, file) for file in parquet_files(spec)]
    train, heldout = ([part for part in parts if part.split(side)] for side in ("train", "heldout"))
    n_train, n_heldout = _sum(train, "train", "n_documents"), _sum(heldout, "heldout", "n_documents")
    if not (n_train and n_heldout):
        counts = f"{n_train} training and {n_heldout} held-out documents"
        raise UserError("E-SPLIT", f"{spec.path} ({spec.name}): {counts}; name other files or change the fraction")
    with workplace(folder / "heldout") as work:
        new = work / "new"
        new.mkdir()
        files.write_text(new / "tokenizer.json", tokenizer.definition(spec.tokenizer.vocab_size))
        encoder = tokenizer.load(new / "tokenizer.json")
        found = _list_heldout(heldout)
        scored = found[found.n_tokens.cumsum() - found.n_tokens < (spec.val_tokens or np.inf)]
        splits = {"train": _name_train(train), "heldout": _write_heldout(new / "heldout", heldout, scored)}
        rows = sum((Counter(part.about["rows"]) for part in parts), Counter(duplicate=n_heldout - len(found)))
        manifest = {
            "spec": spec.as_dict(),
            **shards.token_type(encoder),
            "splits": splits,
            "rows": {kind: rows[kind] for kind in shards.ROW_COUNTS},
            "duplicates": _count_duplicates(train, found, scored),
            "contamination": _contamination(spec.decontaminate, train),
            "licences": {part.file: part.about["fetched"]["licence"] for part in parts},
            "fetched": {part.file: part.about["fetched"] for part in parts},
            "warnings": _warnings(spec, splits["heldout"]["n_tokens"]),
            "heldout_unigram_entropy": shards.unigram_entropy(new / "heldout", encoder),
        }
        pins = corpus.pins(spec.as_dict()) | {part.file: part.about["sha256"] for part in parts}
        shards.write_manifest(new / "manifest.json", manifest, pins)
        (folder / "manifest.json").unlink(missing_ok=True)
        replace_folder(new / "heldout", folder / "heldout", work)
        for name in ("tokenizer.json", "manifest.json"):
            (new / name).replace(folder / name)
        files.sync(folder)


def _read(folder: Path, spec: DataSpec, file: str) -> Part:
    """Return a part, after checking that it is the wanted one and that its files are there."""
    path = folder / "parts" / f"{file}.json"
    about = files.read_record(path, {"spec", "splits", "fetched"}, "E-SHARD", "depthbench prepare-file")
    part = Part(file, folder / "parts" / file, about)
    if not part_spec(spec, file).matches(about["spec"]):
        raise UserError("E-SHARD", f"{path}: made with other settings; {AGAIN}")
    for side in about["splits"]:
        part.shards(side)
    return part


def _sum(parts: list[Part], side: str, what: str) -> int:
    return sum((part.split(side) or {})[what] for part in parts)


def _name_train(parts: list[Part]) -> dict[str, Any]:
    """Return the manifest's entry of the training text: the shards of the parts, seen from the split's folder."""
    splits = {part.file: part.split("train") or {} for part in parts}
    return {
        **{what: _sum(parts, "train", what) for what in ("n_documents", "n_tokens")},
        "shards": [
            {**shard, **{kind: f"../parts/{file}/train/{shard[kind]}" for kind in ("tokens", "docs")}}
            for file, split in splits.items()
            for shard in split["shards"]
        ],
        "origins": {origin: n for split in splits.values() for origin, n in split["origins"].items()},
    }


def _list_heldout(parts: list[Part]) -> pd.DataFrame:
    """Return all held-out documents in content-key order, each text once: what they are, where their tokens are."""
    tables = []
    for part in parts:
        starts = [starts for _, starts in part.shards("heldout")]
        if starts:
            table = part.documents("heldout", "doc_key", "doc_id", "n_characters")
            table["file"] = part.file
            table["shard"] = np.repeat(np.arange(len(starts)), [len(s) - 1 for s in starts])
            table["start"] = np.concatenate([s[:-1] for s in starts])
            table["n_tokens"] = np.concatenate([np.diff(s) for s in starts])
            tables.append(table)
    # the first of several files that hold a text keeps it
    return pd.concat(tables).drop_duplicates("doc_key").sort_values("doc_key")


def _write_heldout(folder: Path, parts: list[Part], scored: pd.DataFrame) -> dict[str, Any]:
    """Write the token files of the scored documents; return the manifest's entry of them."""
    mapped = {part.file: part.shards("heldout") for part in parts}
    places = zip(scored.file, scored.shard, scored.start, scored.n_tokens, strict=True)
    written = shards.write_shards(
        folder, (mapped[file][shard][0][start : start + n] for file, shard, start, n in places)
    )
    shards.list_documents(folder, scored.doc_key, scored.doc_id, scored.file)
    sums = scored.assign(documents=1).groupby("file")[["documents", "n_characters", "n_tokens"]].sum()
    sums = sums.rename(columns={"n_characters": "characters", "n_tokens": "tokens"})
    return {**written, "origins": sums.astype(int).to_dict("index")}


def _count_duplicates(train: list[Part], found: pd.DataFrame, scored: pd.DataFrame) -> dict[str, int]:
    """Return how many documents stand in more than one place; within a file each text is there once."""
    keys = np.concatenate([part.documents("train", "doc_key").doc_key for part in train])
    keys.sort()

    def trained(documents: pd.DataFrame) -> int:
        places = np.searchsorted(keys, documents.doc_key).clip(max=len(keys) - 1)
        return int((keys[places] == documents.doc_key).sum())

    return {
        "between_training_files": int((keys[1:] == keys[:-1]).sum()),
        "heldout_in_training": trained(found),
        "scored_in_training": trained(scored),
    }


def _contamination(action: str, train: list[Part]) -> list[dict[str, Any]]:
    if action == "off":
        return rows_not_looked_for()
    index = index_of_all_items()
    for part in train:
        index.add(part.about["contamination"])
    return index.rows(action)


def _warnings(spec: DataSpec, n_tokens: int) -> list[str]:
    if n_tokens < (spec.val_tokens or 0):
        return [f"{n_tokens} held-out tokens, val_tokens asks for {spec.val_tokens}"]
    return []

"""From a corpus to token files: split, decontamination, tokens, manifest.

    <folder>/tokenizer.json
    <folder>/train/tokens-00000.bin     little-endian unsigned ids: 16 bit up to 65,536 ids, else 32 bit
    <folder>/train/docs-00000.bin       little-endian uint64: start of each document in the shard, and the end
    <folder>/heldout/...                the same, and documents.parquet: doc_key, doc_id, origin, n_tokens
    <folder>/manifest.json              what all this is made of

A document is its tokens and one end of text. It is held out if its content key / 2^64 is below
`val_fraction`, so no other document has a say in it. Shards are cut between documents only. All is written
in a private folder that takes the place of `folder` at the end; equal input gives equal bytes.
"""

import hashlib
import json
import platform
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from depthbench.data import corpus, tokenizer
from depthbench.data.corpus import Document
from depthbench.data.decontaminate import index_of_all_items, rows_not_looked_for
from depthbench.data.workplace import replace_folder, workplace
from depthbench.errors import UserError
from depthbench.files import sha256, sync
from depthbench.progress import track

SHARD_TOKENS = 100_000_000
BATCH_CHARACTERS = 2_000_000
OWN_NAMES = {"manifest.json", "tokenizer.json", "train", "heldout", "parts"}
ROW_COUNTS = ("missing", "blank", "surrogates_replaced", "duplicate")
PACKAGES = ("depthbench", "numpy", "pyarrow", "tokenizers")


def prepare(spec: dict[str, Any], folder: Path) -> None:
    """Write the token files of `spec` into `folder`; what stood there is replaced once all is done.

    `spec` holds the keys of the corpus (see `corpus.documents`), `val_fraction`, `decontaminate` (drop,
    count, off) and `tokenizer: {vocab_size}`.

    Raises:
        UserError: E-TOK, E-SPLIT, E-TEXT, E-WHEEL, E-MEMBER, E-ITEM, E-DISK.
    """
    folder = folder.resolve()
    with workplace(folder) as work:
        _refuse_foreign(folder)
        new = work / "new"
        new.mkdir()
        definition = tokenizer.definition(spec["tokenizer"]["vocab_size"])
        (new / "tokenizer.json").write_text(definition, encoding="utf-8", newline="")
        encoder = tokenizer.load(new / "tokenizer.json")
        counts: Counter[str] = Counter()
        documents = list(corpus.documents(spec, counts))
        train, heldout = split(documents, spec["val_fraction"])
        train, contamination = _decontaminate(train, spec["decontaminate"])
        splits = {"train": train, "heldout": heldout}
        written = {name: write_split(new / name, side, encoder, len(side)) for name, side in splits.items()}
        manifest = {
            "spec": spec,
            **token_type(encoder),
            "splits": written,
            "rows": {kind: counts[kind] for kind in ROW_COUNTS},
            "contamination": contamination,
            "licences": {document.origin: document.licence for document in documents},
            "warnings": list(_unexpected_counts(spec, documents)),
            "heldout_unigram_entropy": unigram_entropy(new / "heldout", encoder),
        }
        list_documents(
            new / "heldout", [d.key for d in heldout], [d.doc_id for d in heldout], [d.origin for d in heldout]
        )
        write_manifest(new / "manifest.json", manifest, corpus.pins(spec))
        replace_folder(new, folder, work)


def split(documents: list[Document], val_fraction: float) -> tuple[list[Document], list[Document]]:
    """Return (training, held-out) documents, each in the given order.

    Raises:
        UserError: E-SPLIT if the fraction is outside (0, 0.5] or a side is empty.
    """
    if not 0 < val_fraction <= 0.5:
        raise UserError("E-SPLIT", f"val_fraction {val_fraction} is outside (0, 0.5]; choose one inside")
    train: list[Document] = []
    heldout: list[Document] = []
    for document in documents:
        (heldout if is_heldout(document, val_fraction) else train).append(document)
    if not (train and heldout):
        raise UserError(
            "E-SPLIT",
            f"val_fraction {val_fraction} gives {len(train)} training and {len(heldout)} held-out documents; "
            "change the fraction or add texts",
        )
    return train, heldout


def is_heldout(document: Document, val_fraction: float) -> bool:
    """Return the side of a document, which depends on its text alone."""
    return document.key < val_fraction * 2**64


def encode(documents: Iterable[Document], encoder: Tokenizer) -> Iterator[tuple[Document, list[int]]]:
    """Yield each document with its ids, without end of text; the library's own threads use all cores."""
    for batch in _batches(documents):
        encodings = encoder.encode_batch_fast([document.text for document in batch], add_special_tokens=False)
        yield from ((document, encoding.ids) for document, encoding in zip(batch, encodings, strict=True))


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the type of token files: the smaller of two that holds all ids."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def token_type(encoder: Tokenizer) -> dict[str, Any]:
    """Return what a manifest says of the tokens themselves."""
    eos = tokenizer.eos_id(encoder)
    return {"dtype": token_dtype(eos + 1).name, "eos_id": eos}


def as_tokens(ids: list[int], eos_id: int) -> np.ndarray:
    """Return the ids of a document and its end of text, in the type of token files."""
    assert ids, "a cleaned document has tokens"
    assert min(ids) >= 0, "ids are not negative"
    assert max(ids) < eos_id, "text never makes an end of text"
    return np.array([*ids, eos_id], dtype=token_dtype(eos_id + 1))


def _refuse_foreign(folder: Path) -> None:
    """Replacing a folder deletes what is in it: only prepared data may be replaced."""
    found = {path.name for path in folder.iterdir()} if folder.exists() else set()
    # Snakemake removes the manifest before it prepares again; a folder `train` alone may hold anybody's texts.
    ours = "manifest.json" in found or {"tokenizer.json", "train", "heldout"} <= found
    foreign = found - (OWN_NAMES if ours else {"parts"})
    if foreign:
        raise UserError("E-DISK", f"{folder}: holds other files ({', '.join(sorted(foreign))}); name a new folder")


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    n_characters = 0
    for document in documents:
        batch.append(document)
        n_characters += len(document.text)
        if n_characters >= BATCH_CHARACTERS:
            yield batch
            batch, n_characters = [], 0
    yield batch


def _decontaminate(train: list[Document], action: str) -> tuple[list[Document], list[dict[str, Any]]]:
    """Return the documents to train on and the contamination table."""
    if action == "off":
        return train, rows_not_looked_for()
    index = index_of_all_items()
    hit = [index.tally(document.text) for document in train]
    kept = train if action == "count" else [d for d, is_hit in zip(train, hit, strict=True) if not is_hit]
    if not kept:
        raise UserError("E-SPLIT", f"0 of {len(train)} training documents are free of evaluation items; add texts")
    return kept, index.rows(action)


def write_split(folder: Path, documents: Iterable[Document], encoder: Tokenizer, n_documents: int) -> dict[str, Any]:
    """Write the token files of one split; return its part of the manifest. `n_documents` is for the progress."""
    eos = tokenizer.eos_id(encoder)
    by_origin: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def tokens() -> Iterator[np.ndarray]:
        encoded = encode(documents, encoder)
        for document, ids in track(encoded, f"tokenizing {folder.name}", n_documents):
            array = as_tokens(ids, eos)
            by_origin[document.origin].update(documents=1, characters=len(document.text), tokens=len(array))
            yield array

    return {**write_shards(folder, tokens()), "origins": by_origin}


def write_shards(folder: Path, documents: Iterable[np.ndarray]) -> dict[str, Any]:
    """Write documents that are tokens already; return the manifest's list of the files, and their sums."""
    folder.mkdir()
    shards = [_write_shard(folder, number, shard) for number, shard in enumerate(_shards(documents))]
    return {
        "n_documents": sum(shard["n_documents"] for shard in shards),
        "n_tokens": sum(shard["n_tokens"] for shard in shards),
        "shards": shards,
    }


def _shards(documents: Iterable[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Collect documents up to SHARD_TOKENS; one that is longer is a shard of its own."""
    shard: list[np.ndarray] = []
    n_tokens = 0
    for tokens in documents:
        if shard and n_tokens + len(tokens) > SHARD_TOKENS:
            yield shard
            shard, n_tokens = [], 0
        shard.append(tokens)
        n_tokens += len(tokens)
    if shard:
        yield shard


def _write_shard(folder: Path, number: int, documents: list[np.ndarray]) -> dict[str, Any]:
    tokens_file, docs_file = folder / f"tokens-{number:05d}.bin", folder / f"docs-{number:05d}.bin"
    starts = np.cumsum([0, *map(len, documents)], dtype="<u8")
    for path, arrays in ((tokens_file, documents), (docs_file, [starts])):
        with path.open("wb") as file:
            for array in arrays:
                file.write(array.tobytes())
        sync(path)
    return {
        "tokens": tokens_file.name,
        "docs": docs_file.name,
        "n_tokens": int(starts[-1]),
        "n_documents": len(documents),
        "tokens_sha256": sha256(tokens_file),
        "docs_sha256": sha256(docs_file),
    }


def list_documents(folder: Path, keys: Iterable[int], doc_ids: Iterable[str], origins: Iterable[str]) -> None:
    """Write a table of the documents of a split, in the order of its shards."""
    starts = (np.fromfile(path, "<u8").astype(np.int64) for path in sorted(folder.glob("docs-*.bin")))
    columns = {
        "doc_key": pa.array([f"{key:016x}" for key in keys]),
        "doc_id": pa.array(doc_ids),
        "origin": pa.array(origins),
        "n_tokens": np.concatenate([np.diff(shard) for shard in starts]),
    }
    pq.write_table(pa.table(columns), folder / "documents.parquet")
    sync(folder / "documents.parquet")


def _unexpected_counts(spec: dict[str, Any], documents: list[Document]) -> Iterator[str]:
    found = Counter(document.origin for document in documents)
    for name in sorted(spec["origins"]) if spec["source"] == "wheels" else []:
        expected = corpus.ORIGINS[name].n_documents
        if found[name] != expected:
            yield f"{name}: {found[name]} unique documents, expected {expected}"


def unigram_entropy(folder: Path, encoder: Tokenizer) -> float:
    """Return the entropy of single tokens [nats]: the loss of a model that knows their frequencies only."""
    size = tokenizer.eos_id(encoder) + 1
    counts = np.zeros(size, dtype=np.int64)
    for path in folder.glob("tokens-*.bin"):
        counts += np.bincount(np.fromfile(path, token_dtype(size)), minlength=size)
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())


def write_manifest(path: Path, manifest: dict[str, Any], pins: dict[str, str]) -> None:
    """Add what tells these data from all others, and the versions; write it as the last file."""
    identity = [manifest["spec"], pins, corpus.SALT.hex(), [s["shards"] for s in manifest["splits"].values()]]
    data_id = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    versions = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
    whole = {"data_id": data_id, **manifest, "pins": pins, "versions": versions}
    path.write_text(json.dumps(whole, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    sync(path)

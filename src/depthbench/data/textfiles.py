"""Texts out of a user's own files: `.parquet`, `.jsonl`, `.jsonl.gz`, and `.txt` as one document.

Bytes that are not UTF-8 come out as lone surrogates, which the corpus replaces and counts.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from depthbench.errors import UserError

Row = tuple[Any, Any]  # document id (None: there is none), text (None: there is none)


def read(path: Path, text_column: str, id_column: str | None) -> Iterator[Row]:
    """Yield the rows of one file, as they are.

    Raises:
        UserError: E-TEXT if the file cannot be read, a column is absent, or no row holds a text.
    """
    kinds = {".parquet": _parquet, ".jsonl": _json_lines, ".jsonl.gz": _json_lines, ".txt": _whole}
    reader = next((r for ending, r in kinds.items() if path.name.endswith(ending)), None)
    if reader is None:
        raise UserError("E-TEXT", f"{path}: unknown kind of file; use one of {', '.join(kinds)}")
    n_rows = n_texts = 0
    try:
        for row in reader(path, text_column, id_column):
            n_rows += 1
            n_texts += isinstance(row[1], str)
            yield row
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise UserError("E-TEXT", f"{path}: cannot be read ({reason}); mend the file or name another") from error
    if not n_texts:
        raise UserError("E-TEXT", f"{path}: {text_column} holds no text in {n_rows} rows; name the right `text_column`")


def _parquet(path: Path, text_column: str, id_column: str | None) -> Iterator[Row]:
    columns = [text_column, *([id_column] if id_column else [])]
    # else row groups are held whole
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
        for column in columns:
            if column not in file.schema_arrow.names:
                known = ", ".join(file.schema_arrow.names)
                raise UserError("E-TEXT", f"{path}: no column {column}; it has {known}")
        kind = file.schema_arrow.field(text_column).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            problem = f"{text_column} is {kind}, not text, in {file.metadata.num_rows} rows"
            raise UserError("E-TEXT", f"{path}: {problem}; name the right `text_column`")
        for batch in file.iter_batches(columns=columns, batch_size=1024):
            raw = batch.column(text_column).cast(pa.large_binary()).to_pylist()
            texts = (None if t is None else t.decode("utf-8", "surrogateescape") for t in raw)
            ids = batch.column(id_column).to_pylist() if id_column else [None] * len(raw)
            yield from zip(ids, texts, strict=True)


def _json_lines(path: Path, text_column: str, id_column: str | None) -> Iterator[Row]:
    opener = gzip.open if path.name.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, start=1):
            if line.isspace():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise UserError("E-TEXT", f"{path}: line {number} is no JSON object; mend it or take it out")
            if id_column and id_column not in row:
                raise UserError("E-TEXT", f"{path}: line {number} has no {id_column}; name the right `id_column`")
            yield (row[id_column] if id_column else None), row.get(text_column)


def _whole(path: Path, text_column: str, id_column: str | None) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        yield path.name, file.read()

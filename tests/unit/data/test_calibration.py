import hashlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from depthbench.analyses import _baseline
from depthbench.data import shards
from depthbench.data.calibration import calibration
from depthbench.data.loader import Heldout
from depthbench.errors import UserError

LENGTHS = {"a": 9, "b": 3, "c": 5, "d": 1, "e": 4, "f": 5}  # tokens of each document, by content key


@pytest.fixture
def heldout(tmp_path):
    """Write held-out documents in content-key order; token i of all is first + i."""

    def write(lengths, first=0):
        split = tmp_path / "heldout"
        split.mkdir(exist_ok=True)
        n = sum(lengths.values())
        (np.arange(n) + first).astype("<u2").tofile(split / "tokens-00000.bin")
        np.cumsum([0, *lengths.values()]).astype("<u8").tofile(split / "docs-00000.bin")
        keys = list(lengths)
        columns = {
            "doc_key": keys,
            "doc_id": keys,
            "origin": ["o-" + key for key in keys],
            "n_tokens": lengths.values(),
        }
        pq.write_table(pa.table({name: list(column) for name, column in columns.items()}), split / "documents.parquet")
        shard = {"tokens": "tokens-00000.bin", "docs": "docs-00000.bin", "n_tokens": n, "n_documents": len(keys)}
        for kind in ("tokens", "docs"):
            shard[f"{kind}_sha256"] = hashlib.sha256((split / shard[kind]).read_bytes()).hexdigest()
        about = {"data_id": "x", "dtype": "uint16", "splits": {"heldout": {"shards": [shard]}}}
        (tmp_path / "manifest.json").write_text(json.dumps(about))
        return tmp_path

    return write


def test_documents_of_the_smallest_keys_that_are_long_enough(heldout):
    found = calibration(heldout(LENGTHS), 3, 4, 8)
    assert found.doc_keys == ("a", "c", "e")
    assert found.origins == ("o-a", "o-c", "o-e")
    assert found.tokens.tolist() == [[0, 1, 2, 3], [12, 13, 14, 15], [18, 19, 20, 21]]


def test_a_document_may_be_as_long_as_asked_and_as_a_window(heldout):
    assert calibration(heldout(LENGTHS), 3, 5, 5).doc_keys == ("a", "c", "f")


def test_documents_of_prepared_text(tmp_path):
    spec = {"source": "stdlib", "val_fraction": 0.2, "decontaminate": "off", "tokenizer": {"vocab_size": 512}}
    shards.prepare(spec, tmp_path / "data")
    long_enough = {d.doc_key: d.tokens[:40] for d in Heldout(tmp_path / "data", 10**6) if len(d.tokens) >= 40}
    found = calibration(tmp_path / "data", 5, 40, 64)
    assert list(found.doc_keys) == sorted(long_enough)[:5]
    np.testing.assert_array_equal(found.tokens, [long_enough[key] for key in found.doc_keys])


@pytest.mark.parametrize(
    ("documents", "tokens", "window", "told"),
    [
        (
            4,
            5,
            8,
            r"N = 4 documents x C = 5 tokens: .* holds out 3 of them, and C must be at most T = 8, .*; take fewer",
        ),
        (1, 10, 64, r"N = 1 documents x C = 10 tokens: .* holds out 0 of them"),
        (2, 9, 8, r"N = 2 documents x C = 9 tokens: .* C must be at most T = 8"),
    ],
)
def test_too_much_to_ask(heldout, documents, tokens, window, told):
    with pytest.raises(UserError, match=f"^E-CALIB calibration of {told}"):
        calibration(heldout(LENGTHS), documents, tokens, window)


def test_identity_tells_tokens_and_shape(heldout):
    folder = heldout(LENGTHS)
    first = calibration(folder, 3, 4, 8).calib_id
    assert calibration(folder, 3, 4, 64).calib_id == first  # of models with another window
    others = [calibration(folder, *asked, 8).calib_id for asked in ((2, 4), (3, 3), (1, 4))]
    others.append(calibration(heldout(LENGTHS, first=1), 3, 4, 8).calib_id)
    assert len({first, *others}) == 5


def test_identity_tells_the_same_tokens_in_other_rows_apart(heldout):
    two_by_four = calibration(heldout({"a": 4, "b": 4}), 2, 4, 8)
    four_by_two = calibration(heldout({"a": 2, "b": 2, "c": 2, "d": 2}), 4, 2, 8)
    assert two_by_four.tokens.ravel().tolist() == four_by_two.tokens.ravel().tolist()
    assert two_by_four.calib_id != four_by_two.calib_id


@pytest.mark.parametrize(("limit", "sizes"), [(1, [1] * 7), (13, [3, 3, 1]), (28, [7]), (8192, [7])])
def test_batches_are_the_calibration_set_in_order(heldout, monkeypatch, limit, sizes):
    monkeypatch.setattr(_baseline, "TOKENS_PER_BATCH", limit)
    whole = calibration(heldout(dict.fromkeys("abcdefg", 5)), 7, 4, 8)
    found = list(_baseline.batches(whole, torch.device("cpu")))
    assert [len(batch.tokens) for batch in found] == sizes
    assert torch.cat([batch.tokens for batch in found]).tolist() == whole.tokens.tolist()
    assert sum((batch.doc_keys for batch in found), ()) == whole.doc_keys
    assert sum((batch.origins for batch in found), ()) == whole.origins

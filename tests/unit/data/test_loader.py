import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from depthbench.data import loader, shards
from depthbench.errors import UserError

T = 64


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Text of the standard library in many small shards."""
    folder = tmp_path_factory.mktemp("loader") / "data"
    spec = {"source": "stdlib", "val_fraction": 0.2, "decontaminate": "off", "tokenizer": {"vocab_size": 512}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_TOKENS", 20_000)
        shards.prepare(spec, folder)
    return folder


@pytest.fixture(scope="module")
def stream(data):
    """All training tokens, one after the other."""
    paths = sorted((data / "train").glob("tokens-*.bin"))
    assert len(paths) > 5
    return np.concatenate([np.frombuffer(p.read_bytes(), "<u2") for p in paths]).astype(np.int64)


@pytest.fixture
def windows(data):
    return loader.Windows(data, T)


def test_windows_and_remainder_are_the_whole_stream(windows, stream):
    n = windows.n_windows
    assert n * T + len(stream) % T == len(stream) == windows.n_tokens
    batch = windows.batch(0, n, seed=3)
    assert batch.dtype == np.int64
    order = windows.ids(0, n, seed=3)
    assert sorted(order) == list(range(n))
    assert (batch[np.argsort(order)] == stream[: n * T].reshape(n, T)).all()


@pytest.mark.parametrize("long", [25_000, 60_000])
def test_windows_longer_than_shards(data, stream, long):
    windows = loader.Windows(data, long)
    order = windows.ids(0, windows.n_windows, seed=0)
    batch = windows.batch(0, windows.n_windows, seed=0)
    assert (batch[np.argsort(order)].ravel() == stream[: windows.n_windows * long]).all()


def test_each_epoch_has_every_window_once_in_a_new_order(windows):
    n = windows.n_windows
    batch = next(size for size in (7, 5) if n % size)  # batches straddle the borders; the text is Python's own
    steps = -(-3 * n // batch)
    endless = np.concatenate([windows.ids(step, batch, seed=5) for step in range(steps)])
    epochs = [endless[e * n : (e + 1) * n] for e in range(3)]
    assert all(sorted(epoch) == list(range(n)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert not (epochs[0] == np.arange(n)).all()


def test_batch_size_does_not_change_the_order(windows):
    big = windows.ids(0, 24, seed=1)
    assert (np.concatenate([windows.ids(step, 3, seed=1) for step in range(8)]) == big).all()
    assert (windows.ids(0, 24, seed=2) != big).any()


def test_order_is_pinned():
    # PCG64 gives for [0, 0] the words 11.7, 4.98, 0.756, 0.305, 15.0, 16.8 (in 10^18), for [0, 1] the words
    # 16.4, 10.3, 14.8, 17.6, 1.08, 4.36; sorted by hand. No release of NumPy may change the order.
    assert loader._permutation(6, seed=0, epoch=0).tolist() == [3, 2, 1, 0, 4, 5]
    assert loader._permutation(6, seed=0, epoch=1).tolist() == [4, 5, 1, 2, 0, 3]


@pytest.mark.parametrize("n_ranks", [1, 2, 4])
def test_ranks_together_read_the_global_batch(data, windows, n_ranks):
    step, batch, seed = windows.n_windows // 8, 8, 11  # straddles the border of an epoch
    whole = windows.batch(step, batch, seed)
    parts = []
    for rank in range(n_ranks):
        loader._permutation.cache_clear()
        share = batch // n_ranks
        parts.append(loader.Windows(data, T).batch(step, batch, seed)[rank * share : (rank + 1) * share])
    assert (np.concatenate(parts) == whole).all()


def test_epochs_and_budget(windows, data):
    n = windows.n_windows
    assert windows.epochs(n, 2) == 2
    windows.check_budget(n, 4)
    needed, available = (n + 1) * 4 * T, windows.n_tokens
    with pytest.raises(UserError, match=rf"^E-BUDGET .*need {needed} tokens, available are {available} "):
        windows.check_budget(n + 1, 4)
    with pytest.raises(UserError, match=r"^E-BUDGET "):
        windows.check_budget(1, n + 1)
    with pytest.raises(UserError, match=r"^E-BUDGET "):
        loader.Windows(data, 10**6).check_budget(1, 1)


def test_heldout_documents_are_cut_and_labelled(data):
    about = loader.manifest(data)
    whole = list(loader.Heldout(data, 10**6))
    assert sum(len(d.tokens) for d in whole) == about["splits"]["heldout"]["n_tokens"]
    assert all(d.tokens[-1] == 511 and (d.tokens[:-1] != 511).all() for d in whole)
    assert [d.doc_key for d in whole] == sorted({d.doc_key for d in whole})
    cut = loader.Heldout(data, T)
    found = list(cut)
    assert (len(found), cut.n_skipped) == (cut.n_documents, 0) == (len(whole), 0)
    for short, full in zip(found, whole, strict=True):
        assert (short.doc_key, short.origin) == (full.doc_key, "pydoc_topics")
        assert (short.tokens == full.tokens[:T]).all()
        assert short.tokens.dtype == np.int64


def test_documents_of_one_token_are_skipped_and_counted(tmp_path):
    split = tmp_path / "heldout"
    split.mkdir()
    lengths = [3, 1, 2]
    np.array([5, 6, 511, 511, 7, 511], "<u2").tofile(split / "tokens-00000.bin")
    np.array([0, 3, 4, 6], "<u8").tofile(split / "docs-00000.bin")
    columns = {"doc_key": list("abc"), "doc_id": list("abc"), "origin": ["o"] * 3, "n_tokens": lengths}
    pq.write_table(pa.table(columns), split / "documents.parquet")
    shard = {"tokens": "tokens-00000.bin", "docs": "docs-00000.bin", "n_tokens": 6, "n_documents": 3}
    for kind in ("tokens", "docs"):
        shard[f"{kind}_sha256"] = hashlib.sha256((split / shard[kind]).read_bytes()).hexdigest()
    about = {"data_id": "x", "dtype": "uint16", "splits": {"heldout": {"shards": [shard]}}}
    (tmp_path / "manifest.json").write_text(json.dumps(about))
    heldout = loader.Heldout(tmp_path, 2)
    assert [(d.doc_key, d.tokens.tolist()) for d in heldout] == [("a", [5, 6]), ("c", [7, 511])]
    assert (heldout.n_documents, heldout.n_skipped) == (2, 1)


@pytest.fixture
def broken(data, tmp_path):
    return Path(shutil.copytree(data, tmp_path / "copy"))


@pytest.mark.parametrize("name", ["tokens-00001.bin", "docs-00001.bin"])
def test_truncated_and_missing_files_are_named(broken, name):
    path = broken / "train" / name
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(UserError, match=rf"^E-SHARD .*{name}: {size - 2} bytes, expected {size}"):
        loader.Windows(broken, T)
    path.unlink()
    with pytest.raises(UserError, match=rf"^E-SHARD .*{name}: No such file"):
        loader.Windows(broken, T)


def test_list_of_documents_that_fits_not_the_shards_is_refused(broken):
    path = broken / "heldout/documents.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(UserError, match=r"^E-SHARD .*documents\.parquet: lists other documents"):
        loader.Heldout(broken, T)
    path.write_bytes(b"junk")
    with pytest.raises(UserError, match=r"^E-SHARD .*documents\.parquet: cannot be read"):
        loader.Heldout(broken, T)


@pytest.mark.parametrize("kind", ["tokens", "docs"])
def test_heldout_shards_of_another_content_are_refused(broken, kind):
    """Of equal size, under the name of the data that they replaced."""
    path = sorted((broken / "heldout").glob(f"{kind}-*.bin"))[0]
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"^E-SHARD .*{path.name}: not what was prepared"):
        loader.Heldout(broken, T)


@pytest.mark.parametrize(
    ("content", "told"), [(None, "No such file"), ('{"data_id"', "not a whole"), ("[]", "not a whole")]
)
def test_folder_without_a_manifest_is_refused(tmp_path, content, told):
    if content:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(UserError, match=rf"^E-SHARD .*{told}.*prepare"):
        loader.Windows(tmp_path, T)

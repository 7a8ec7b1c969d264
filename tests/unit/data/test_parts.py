import hashlib
import json
import os
import subprocess
import sys
import unicodedata
from collections import Counter

import hub_folder
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from depthbench.data import hub, items, loader, parts, shards, tokenizer
from depthbench.data.join import join
from depthbench.errors import UserError
from depthbench.runs import parquet_files, part_spec
from depthbench.specs import DataSpec

A, B, HELD = "a.parquet", "b.parquet", "h.parquet"
FIXED = {"corpus": "test", "tokenizer": {"vocab_size": 512}, "version": 1, "decontaminate": "off", "id_column": "id"}


def texts(name, n=25):
    return [f"{name}: text number {i}, café <|endoftext|>\n" + "word " * (i % 7) for i in range(n)]


SHARED, TRAINED = "stands in both training files", "stands in training and held-out text"
FILES = {
    A: [*texts("a"), "twice", SHARED, "", None, "twice", TRAINED],
    B: [SHARED, *texts("b"), TRAINED],
    HELD: [*texts("h", 60), TRAINED, "h: text number 0, café <|endoftext|>\n"],
}


def key_of(text):
    digest = hashlib.blake2b(b"depthbench" + unicodedata.normalize("NFC", text).encode()).digest()
    return int.from_bytes(digest[:8], "big")


@pytest.fixture(scope="module")
def encode():
    """The tokens of a text with its end, by the library's own interface."""
    encoder = Tokenizer.from_str(tokenizer.definition(512))
    encoder.encode_special_tokens = True
    return lambda text: [*encoder.encode(text).ids, 511]


def data_spec(root, **keys):
    keys = {"files": [A, B], "val_file": HELD, **keys}
    return DataSpec.model_validate({**FIXED, **hub_folder.corpus(root, **keys)})


def prepare_parts(spec, folder, order=None):
    surveyed = hub.survey(spec)
    for file in order or parquet_files(spec):
        part = part_spec(spec, file)
        parts.prepare_file(part, hub.fetch(surveyed, part), folder / "parts" / f"{file}.json")


@pytest.fixture
def root(tmp_path):
    return hub_folder.write(tmp_path / "set", FILES)


@pytest.fixture
def folder(tmp_path, root):
    prepare_parts(data_spec(root, val_tokens=600), tmp_path / "data")
    join(data_spec(root, val_tokens=600), tmp_path / "data")
    return tmp_path / "data"


def all_tokens(folder):
    """The training text, out of the windows of one epoch; what does not fill a window is missing."""
    windows = loader.Windows(folder, 8)
    found = np.empty((windows.n_windows, 8), dtype=np.int64)
    found[windows.ids(0, windows.n_windows, seed=0)] = windows.batch(0, windows.n_windows, seed=0)
    return windows.n_tokens, found.ravel().tolist()


def test_training_tokens_are_those_of_the_texts(folder, encode):
    unique = [text for name in (A, B) for text in dict.fromkeys(FILES[name]) if text]
    expected = [token for text in unique for token in encode(text)]
    n_tokens, found = all_tokens(folder)
    assert n_tokens == len(expected)
    assert found == expected[: len(found)]
    assert len(expected) - len(found) < 8


def test_heldout_documents_are_the_first_of_the_file_in_content_key_order(folder, encode):
    unique = sorted({text for text in FILES[HELD] if text}, key=key_of)
    expected, n_tokens = [], 0
    for text in unique:
        if n_tokens < 600:
            expected.append((f"{key_of(text):016x}", HELD, encode(text)))
            n_tokens += len(expected[-1][2])
    found = loader.Heldout(folder, 10_000)
    assert [(d.doc_key, d.origin, d.tokens.tolist()) for d in found] == expected
    assert 5 < len(expected) < len(unique) - 5
    listed = pq.read_table(folder / "heldout/documents.parquet").to_pydict()
    assert listed["doc_id"] == [f"h-{FILES[HELD].index(text)}" for text in unique[: len(expected)]]


def test_manifest_counts_and_names_what_it_is_made_of(root, folder, encode):
    about = loader.manifest(folder)
    assert about["spec"] == data_spec(root, val_tokens=600).as_dict()
    assert about["rows"] == {"missing": 1, "blank": 1, "surrogates_replaced": 0, "duplicate": 2}
    scored = [document.doc_key for document in loader.Heldout(folder, 10_000)]
    assert about["duplicates"] == {
        "between_training_files": 2,
        "heldout_in_training": 1,
        "scored_in_training": int(f"{key_of(TRAINED):016x}" in scored),
    }
    unique = {name: [text for text in dict.fromkeys(FILES[name]) if text] for name in FILES}
    assert about["splits"]["train"]["origins"] == {
        name: {
            "documents": len(unique[name]),
            "characters": sum(map(len, unique[name])),
            "tokens": sum(len(encode(text)) for text in unique[name]),
        }
        for name in (A, B)
    }
    here = [text for text in unique[HELD] if f"{key_of(text):016x}" in scored]
    assert about["splits"]["heldout"]["origins"][HELD] == {
        "documents": len(scored),
        "characters": sum(map(len, here)),
        "tokens": about["splits"]["heldout"]["n_tokens"],
    }
    assert about["licences"] == dict.fromkeys(FILES, "odc-by")
    for name in FILES:
        checksum = hashlib.sha256((root / "sample/small" / name).read_bytes()).hexdigest()
        assert about["pins"][name] == about["fetched"][name]["sha256"] == checksum
    assert about["warnings"] == []


def test_all_heldout_documents_are_taken_without_a_limit(tmp_path, root):
    for val_tokens, warnings in ((None, []), (10**6, 1)):
        spec = data_spec(root, val_tokens=val_tokens)
        prepare_parts(spec, tmp_path / "data")
        join(spec, tmp_path / "data")
        about = loader.manifest(tmp_path / "data")
        assert about["splits"]["heldout"]["n_documents"] == 61
        assert len(about["warnings"]) == bool(warnings)
        assert about["duplicates"]["scored_in_training"] == 1


def test_the_order_of_jobs_leaves_no_trace(tmp_path, root, folder):
    spec = data_spec(root, val_tokens=600)
    prepare_parts(spec, tmp_path / "other", order=[HELD, B, A])
    join(spec, tmp_path / "other")
    for name in ("manifest.json", "tokenizer.json", "heldout/tokens-00000.bin", "heldout/documents.parquet"):
        assert (tmp_path / "other" / name).read_bytes() == (folder / name).read_bytes()


def test_shards_of_a_part_are_cut_and_read_in_order(tmp_path, root, folder, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_TOKENS", 100)
    spec = data_spec(root, val_tokens=600)
    prepare_parts(spec, tmp_path / "cut")
    join(spec, tmp_path / "cut")
    assert len(loader.manifest(tmp_path / "cut")["splits"]["train"]["shards"]) > 10
    assert len(list((tmp_path / "cut/heldout").glob("tokens-*"))) > 3
    assert all_tokens(tmp_path / "cut") == all_tokens(folder)
    both = [
        [(d.doc_key, d.tokens.tolist()) for d in loader.Heldout(where, 10_000)] for where in (folder, tmp_path / "cut")
    ]
    assert both[0] == both[1]


def test_without_a_heldout_file_the_text_decides(tmp_path, root, encode):
    spec = data_spec(root, val_file=None, val_fraction=0.3)
    prepare_parts(spec, tmp_path / "data")
    join(spec, tmp_path / "data")
    unique = {name: [text for text in dict.fromkeys(FILES[name]) if text] for name in (A, B)}
    heldout = {text for name in (A, B) for text in unique[name] if key_of(text) < 0.3 * 2**64}
    found = [(d.doc_key, d.tokens.tolist()) for d in loader.Heldout(tmp_path / "data", 10_000)]
    assert found == [(f"{key_of(text):016x}", encode(text)) for text in sorted(heldout, key=key_of)]
    expected = [t for name in (A, B) for text in unique[name] if text not in heldout for t in encode(text)]
    n_tokens, tokens = all_tokens(tmp_path / "data")
    assert (n_tokens, tokens) == (len(expected), expected[: len(tokens)])
    shared = Counter(text for name in (A, B) for text in unique[name])
    about = loader.manifest(tmp_path / "data")
    assert about["duplicates"]["between_training_files"] == sum(shared[t] == 2 for t in shared if t not in heldout)
    assert about["rows"]["duplicate"] == 1 + sum(shared[t] == 2 for t in heldout)
    assert about["duplicates"]["heldout_in_training"] == 0


@pytest.mark.parametrize(("action", "n_kept"), [pytest.param("count", 4, marks=pytest.mark.slow), ("drop", 2)])
def test_items_are_counted_over_all_files(tmp_path, action, n_kept):
    question = items.raw_items("gsm8k")[0]["question"]
    root = hub_folder.write(
        tmp_path / "set", {A: ["clean", f"1: {question}"], B: [f"2: {question}", "other"], HELD: [f"3: {question}"]}
    )
    spec = data_spec(root, decontaminate=action)
    prepare_parts(spec, tmp_path / "data")
    join(spec, tmp_path / "data")
    about = loader.manifest(tmp_path / "data")
    row = next(row for row in about["contamination"] if row["task"] == "gsm8k")
    assert (row["n_items"], row["n_items_hit"], row["n_docs_hit"], row["action"]) == (1319, 1, 2, action)
    assert about["splits"]["train"]["n_documents"] == n_kept
    assert about["splits"]["heldout"]["n_documents"] == 1


def shard_of(folder, file=A):
    return folder / "parts" / file / "train/tokens-00000.bin"


def test_a_part_is_made_again_only_if_it_has_changed_or_is_damaged(tmp_path, root, folder):
    def made_again(spec):
        before = shard_of(folder).stat().st_ino
        prepare_parts(spec, folder, order=[A])
        return shard_of(folder).stat().st_ino != before

    spec = data_spec(root, val_tokens=600)
    assert not made_again(spec)
    assert not made_again(data_spec(root, files=[A], val_tokens=10))
    with shard_of(folder).open("ab") as file:
        file.write(b"more")
    assert made_again(spec)
    shard_of(folder).with_name("documents.parquet").unlink()
    assert made_again(spec)
    hub_folder.write(root, {A: ["other text"]})
    assert made_again(spec)
    assert made_again(data_spec(root, text_column="id"))
    (folder / "parts" / A / "part.json").write_text("{")
    assert made_again(data_spec(root, text_column="id"))


def test_a_killed_job_leaves_no_part_and_is_done_again_alone(tmp_path, root, folder):
    spec = data_spec(root, val_tokens=600)
    part = part_spec(spec, A)
    record = hub.fetch(hub.survey(spec), part)
    code = """
import json, os, signal, sys
from pathlib import Path
from depthbench.data import parts
from depthbench.specs import PartSpec
parts._Listing.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
parts.prepare_file(PartSpec.read(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3]))
"""
    out = tmp_path / "new/parts" / f"{A}.json"
    args = [json.dumps(part.as_dict()), json.dumps(record), str(out)]
    assert subprocess.run([sys.executable, "-c", code, *args]).returncode == -9
    assert len(list(out.parent.rglob("tokens-*.bin"))) == 1
    assert not out.exists()
    prepare_parts(spec, tmp_path / "new")
    assert sorted(p.name for p in out.parent.iterdir()) == sorted([*FILES, *(f"{name}.json" for name in FILES)])
    join(spec, tmp_path / "new")
    assert (tmp_path / "new/manifest.json").read_bytes() == (folder / "manifest.json").read_bytes()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / f"parts/{B}.json").unlink(), r"E-SHARD .*b.parquet.json: No such file"),
        (lambda folder: (folder / f"parts/{B}.json").write_text("[]"), r"E-SHARD .*b.parquet.json: not a whole record"),
        (lambda folder: os.truncate(shard_of(folder), 10), r"E-SHARD .*a.parquet/train/tokens-00000.bin: 10 bytes"),
        (
            lambda folder: (folder / f"parts/{A}/train/documents.parquet").write_text(""),
            "E-SHARD .*a.parquet/train/documents.parquet: cannot be read",
        ),
    ],
)
def test_a_damaged_part_is_one_line_and_the_manifest_stands(root, folder, damage, words):
    before = (folder / "manifest.json").read_bytes()
    damage(folder)
    with pytest.raises(UserError, match=words):
        join(data_spec(root, val_tokens=600), folder)
    assert (folder / "manifest.json").read_bytes() == before


def test_parts_of_other_settings_are_refused(root, folder):
    with pytest.raises(UserError, match=r"^E-SHARD .*a\.parquet\.json: made with other settings"):
        join(data_spec(root, text_column="id"), folder)


@pytest.mark.parametrize(
    ("held", "decontaminate", "counts"),
    [("held", "drop", "0 training and 1 held-out"), (None, "off", "1 training and 0 held-out")],
)
def test_an_empty_side_is_refused(tmp_path, held, decontaminate, counts):
    question = items.raw_items("gsm8k")[0]["question"]
    root = hub_folder.write(tmp_path / "set", {A: [question], HELD: [held]})
    spec = data_spec(root, files=[A], val_file=held and HELD, decontaminate=decontaminate)
    prepare_parts(spec, tmp_path / "data")
    with pytest.raises(UserError, match=rf"^E-SPLIT {root} \(small\): {counts} documents"):
        join(spec, tmp_path / "data")
    assert not (tmp_path / "data/manifest.json").exists()


def test_a_file_without_text_is_refused(tmp_path):
    root = hub_folder.write(tmp_path / "set", {A: ["", " \n"], B: ["text"], HELD: ["held"]})
    with pytest.raises(UserError, match=r"^E-TEXT a\.parquet: no text left \(2 blank\)"):
        prepare_parts(data_spec(root), tmp_path / "data")


MEASURE = """
import json, re, sys
from pathlib import Path
from depthbench.data import parts, shards
from depthbench.specs import PartSpec
# tokenizing works in batches of fixed size, at 2 MB a second
shards.encode = lambda documents, encoder: ((document, [1, 2]) for document in documents)
for out, spec, record in zip(*[iter(sys.argv[1:])] * 3):
    parts.prepare_file(PartSpec.read(spec), json.loads(record), Path(out))
    # getrusage would count what the parent process had at the time of the fork
    peak = re.search("VmHWM: *(.*) kB", Path("/proc/self/status").read_text().replace("\\t", " "))
    print("peak", int(peak[1]) / 1024)
"""


def test_memory_does_not_grow_with_the_file(tmp_path):
    """80 MB of text in a single row group: held whole, it would take 60 MB more than the 20 MB of another file."""
    args = []
    for name, n_texts in ((A, 5_000), (B, 20_000)):
        root = hub_folder.write(tmp_path / "set", {name: []})
        table = pa.table({"text": [f"{i}" + " word" * 800 for i in range(n_texts)]})
        path = root / "sample/small" / name
        pq.write_table(table, path, row_group_size=n_texts, compression="none", use_dictionary=False)
        assert path.stat().st_size > 4_000 * n_texts
        spec = data_spec(root, files=[name], val_file=None, id_column=None)
        part = part_spec(spec, name)
        record = hub.fetch(hub.survey(spec), part)
        args += [str(tmp_path / f"data/parts/{name}.json"), json.dumps(part.as_dict()), json.dumps(record)]
    done = subprocess.run([sys.executable, "-c", MEASURE, *args], capture_output=True, text=True, check=True)
    small, large = (float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("peak"))
    assert large - small < 30, (small, large)

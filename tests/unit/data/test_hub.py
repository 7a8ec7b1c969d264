import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from urllib.parse import unquote, urlsplit

import hub_folder
import pytest
from hub_server import HubServer, serving

from depthbench.data import hub
from depthbench.errors import UserError
from depthbench.runs import part_spec
from depthbench.specs import DataSpec

FILES = ["a.parquet", "b.parquet"]


def data_spec(root, files=FILES, **keys):
    fixed = {"corpus": "test", "tokenizer": {"vocab_size": 512}, "version": 1, "decontaminate": "off"}
    return DataSpec.model_validate({**fixed, **hub_folder.corpus(root, files, **keys)})


@pytest.fixture
def folder(tmp_path):
    return hub_folder.write(tmp_path / "set", {name: ["one text", "another"] for name in [*FILES, "c.parquet"]})


def test_survey_finds_the_files_of_the_configuration(folder):
    found = hub.survey(data_spec(folder, val_file="c.parquet"))
    assert {name: about["path"] for name, about in found["files"].items()} == {
        name: f"sample/small/{name}" for name in [*FILES, "c.parquet"]
    }
    assert (found["commit"], found["licence"]) == (None, "odc-by")


@pytest.mark.parametrize(
    "data_files",
    [
        "sample/small/*",
        ["sample/small/a.*", "sample/small/b.parquet"],
        [
            {"split": "test", "path": "data/*"},
            {"split": "train", "path": ["sample/*/a*", "sample/small/[b-c].parquet"]},
        ],
    ],
)
def test_every_way_of_writing_data_files_is_read(tmp_path, data_files):
    configs = json.dumps([{"config_name": "small", "data_files": data_files}])
    card = f"---\nlicense: [mit, odc-by]\nconfigs: {configs}\n---\n"
    root = hub_folder.write(tmp_path, {name: ["text"] for name in FILES}, card)
    hub_folder.write(tmp_path, {"a.parquet": ["not this one"]}, card, folder="data")
    found = hub.survey(data_spec(root))
    assert [about["path"] for about in found["files"].values()] == ["sample/small/a.parquet", "sample/small/b.parquet"]
    assert found["licence"] == "mit, odc-by"


def refused(what, *words):
    with pytest.raises(UserError) as caught:
        what()
    assert caught.value.code == "E-HUB"
    told = str(caught.value)
    assert "\n" not in told
    for word in (*words, "`embedded`", "local folder"):
        assert word in told, told


def test_wanted_files_that_are_not_there_are_named(folder):
    spec = data_spec(folder, [*FILES, "d.parquet"], val_file="e.parquet")
    refused(
        lambda: hub.survey(spec), "(small)", "no file d.parquet, e.parquet among the 3 files", "a.parquet to c.parquet"
    )


def test_a_name_that_stands_for_two_files_is_refused(folder):
    for dump in ("2013", "2014"):
        hub_folder.write(folder, {"a.parquet": ["x"]}, folder=f"data/{dump}")
    spec = data_spec(folder, ["a.parquet"], name="default")
    refused(lambda: hub.survey(spec), "a.parquet stands for several files", "data/2013/a.parquet, data/2014/a.parquet")


@pytest.mark.parametrize(
    ("card", "words"),
    [
        ("# no block", "no such configuration; it has none"),
        ("---\nconfigs: [{config_name: other}]\n---\n", "no such configuration; it has other"),
        ("---\nconfigs: [{config_name: small}]\n---\n", "names no data_files of the split train"),
        ("---\nconfigs: [{config_name: small, data_files: [{split: test, path: x}]}]\n---\n", "split train"),
        ("---\nconfigs: [\n---\n", "while parsing"),
        ("---\nconfigs: 3\n---\n", "no such configuration"),
        (None, "README.md"),
    ],
)
def test_a_card_that_does_not_tell_is_refused(folder, card, words):
    (folder / "README.md").unlink()
    if card is not None:
        (folder / "README.md").write_text(card)
    refused(lambda: hub.survey(data_spec(folder)), str(folder), words)


def fetched(spec, file="a.parquet"):
    return hub.fetch(hub.survey(spec), part_spec(spec, file))


def test_the_record_of_a_file_finds_it_again_until_it_changes(folder):
    record = fetched(data_spec(folder))
    path = folder / "sample/small/a.parquet"
    assert record["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert record["rows"] == 2
    assert hub.locate(record) == path
    hub_folder.write(folder, {"a.parquet": ["changed"]})
    refused(lambda: hub.locate(record), "has changed")
    path.unlink()
    refused(lambda: hub.locate(record), f"no file {path}")


def test_a_missing_column_and_a_broken_file_are_refused(folder):
    refused(
        lambda: fetched(data_spec(folder, text_column="txt")), "a.parquet has no column txt; it has id, text, score"
    )
    refused(lambda: fetched(data_spec(folder, id_column="url")), "a.parquet has no column url")
    (folder / "sample/small/a.parquet").write_bytes(b"PAR1 and no more")
    refused(lambda: fetched(data_spec(folder)), "sample/small/a.parquet cannot be read")


class Server(HubServer):
    """As much of the hub as is asked for: data-set info, file tree, files; `folder` is set by the test."""

    def do_GET(self):
        self.asked.append(path := unquote(urlsplit(self.path).path))
        if path in ("/api/datasets/org/set", f"/api/datasets/org/set/revision/{self.commit}"):
            self.answer(json.dumps({"id": "org/set", "sha": self.commit}).encode())
        elif path.startswith(f"/api/datasets/org/set/tree/{self.commit}/sample/small"):
            found = [self.entry(file) for file in sorted((self.folder / "sample/small").iterdir())]
            self.answer(json.dumps(found).encode())
        elif path.startswith(f"/datasets/org/set/resolve/{self.commit}/"):
            data = (self.folder / path.split("/", 6)[6]).read_bytes()
            self.answer(data, ETag=f'"{hashlib.sha256(data).hexdigest()}"')
        elif path.startswith("/api/datasets/org/gated"):
            self.answer_gated()
        else:
            self.answer(b"{}", 404, X_Error_Code="RepoNotFound")

    def entry(self, file):
        checksum = "0" * 64 if file.name in self.forged else hashlib.sha256(file.read_bytes()).hexdigest()
        size = file.stat().st_size
        lfs = {"oid": checksum, "size": size, "pointerSize": 134}
        return {"type": "file", "path": f"sample/small/{file.name}", "size": size, "oid": "0" * 40, "lfs": lfs}


@pytest.fixture
def server(folder):
    with serving(Server, folder=folder, forged=()) as running:
        yield running


@pytest.fixture
def command(tmp_path):
    """Call a command with a cache of its own; return what it left on stderr, and the seconds it took."""

    def call(name, spec, *args, **env):
        known = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        env = {**known, "HF_HOME": str(tmp_path / "hf"), **env}
        start = time.monotonic()
        args = [sys.executable, "-m", "depthbench", name, "--spec", json.dumps(spec.as_dict()), *map(str, args)]
        done = subprocess.run(args, env=env, capture_output=True, text=True)
        return done.returncode, done.stderr, time.monotonic() - start

    return call


def test_a_file_comes_from_the_hub_once_and_is_found_without_network(tmp_path, folder, server, command):
    spec = data_spec("org/set")
    survey, record, again = tmp_path / "survey.json", tmp_path / "a.json", tmp_path / "again.json"
    code, told, _ = command("fetch", spec, "--out", survey, HF_ENDPOINT=server.url)
    assert (code, told) == (0, ""), server.asked
    found = json.loads(survey.read_text())["hub"]
    assert (found["commit"], found["licence"], list(found["files"])) == ("c" * 40, "odc-by", FILES)
    part = part_spec(spec, "a.parquet")
    args = ("--sources", survey, "--out")
    code, told, _ = command("fetch-file", part, *args, record, HF_ENDPOINT=server.url)
    assert code == 0, told
    assert json.loads(record.read_text())["sha256"] == found["files"]["a.parquet"]["sha256"]
    # all files of a record come from the surveyed commit
    assert sum("/resolve/" in path and path.endswith("a.parquet") for path in server.asked) == 2  # HEAD, GET
    assert not any(path.endswith("b.parquet") for path in server.asked)

    del server.asked[:]
    assert command("fetch-file", part, *args, again, HF_ENDPOINT=server.url)[0] == 0
    assert server.asked == []
    data = tmp_path / "data/parts/a.parquet.json"
    assert command("prepare-file", part, "--fetched", record, "--out", data, HF_HUB_OFFLINE="1")[0] == 0
    code, told, _ = command("prepare-file", part, "--fetched", record, "--out", data, HF_HOME=str(tmp_path / "other"))
    assert code == 0  # the part stands already
    other = tmp_path / "other/parts/a.parquet.json"
    code, told, _ = command("prepare-file", part, "--fetched", record, "--out", other, HF_HOME=str(tmp_path / "other"))
    assert (code, "is not in the cache; fetch it, with HF_HOME on a disk that all nodes see" in told) == (2, True)


def test_a_file_that_is_not_the_listed_one_is_refused(tmp_path, server, command):
    server.forged = ("a.parquet",)
    spec = data_spec("org/set")
    survey = tmp_path / "survey.json"
    assert command("fetch", spec, "--out", survey, HF_ENDPOINT=server.url)[0] == 0
    part, out = part_spec(spec, "a.parquet"), tmp_path / "a.json"
    code, told, _ = command("fetch-file", part, "--sources", survey, "--out", out, HF_ENDPOINT=server.url)
    assert code == 2
    assert f"expected {'0' * 64}" in told
    assert not out.exists()


def test_a_hub_that_goes_away_in_between_is_told_at_once(tmp_path, server, command):
    spec = data_spec("org/set")
    survey = tmp_path / "survey.json"
    assert command("fetch", spec, "--out", survey, HF_ENDPOINT=server.url)[0] == 0
    part, out = part_spec(spec, "a.parquet"), tmp_path / "a.json"
    code, told, seconds = command("fetch-file", part, "--sources", survey, "--out", out, HF_ENDPOINT=closed_port())
    assert (code, told.startswith("E-HUB org/set (small): "), seconds < 10) == (2, True, True), told


def closed_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{found.getsockname()[1]}"


@pytest.mark.parametrize("case", ["closed port", "offline", "gated", "unknown", "no such folder"])
def test_what_cannot_be_reached_is_one_line_within_10_seconds(tmp_path, server, command, case):
    path = {"gated": "org/gated", "no such folder": str(tmp_path / "none")}.get(case, "org/nothing")
    env = {"closed port": {"HF_ENDPOINT": closed_port()}, "offline": {"HF_HUB_OFFLINE": "1"}}
    reason = {
        "closed port": "refused",
        "offline": "offline mode is enabled",
        "gated": "restricted",
        "unknown": "404",
        "no such folder": "Repo id must be",
    }
    out = tmp_path / "sources.json"
    code, told, seconds = command("fetch", data_spec(path), "--out", out, **env.get(case, {"HF_ENDPOINT": server.url}))
    assert (code, out.exists()) == (2, False)
    assert seconds < 10
    assert told.startswith(f"E-HUB {path} (small): ")
    assert told.count("\n") == 1
    for words in (reason[case], "`embedded`", "local folder"):
        assert words in told


def test_a_hub_that_never_answers_is_one_line_within_10_seconds(tmp_path, command):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        # else the client asks for more than we do, and waits 3 s longer
        env = {"HF_ENDPOINT": url, "HF_HUB_DISABLE_TELEMETRY": "1"}
        code, told, seconds = command("fetch", data_spec("org/set"), "--out", tmp_path / "out", **env)
    assert (code, told.startswith("E-HUB org/set (small): "), seconds < 10) == (2, True, True), told


def test_a_column_that_is_no_text_is_refused(tmp_path, folder, command):
    spec = data_spec(folder, text_column="score")
    part, record = part_spec(spec, "a.parquet"), tmp_path / "a.json"
    record.write_text(json.dumps(fetched(spec)))
    out = tmp_path / "data/parts/a.parquet.json"
    code, told, _ = command("prepare-file", part, "--fetched", record, "--out", out)
    assert (code, told.startswith("E-TEXT ")) == (2, True)
    assert "score is double, not text, in 2 rows" in told
    assert not out.exists()

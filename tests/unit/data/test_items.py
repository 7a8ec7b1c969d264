import pytest

from depthbench.data import items
from depthbench.errors import UserError

# items of each task, and what a template needs
EXPECTED = {
    "mbpp": (500, {"text", "tests", "code"}),
    "humaneval": (164, {"prompt", "canonical_solution"}),
    "sciq": (1000, {"question", "correct_answer", "support"}),
    "gsm8k": (1319, {"question", "answer"}),
    "math500": (500, {"problem", "solution"}),
    "arc_easy": (2376, {"question", "choices", "gold"}),
}


@pytest.mark.parametrize("task", EXPECTED)
def test_every_item_once_with_all_fields(task):
    found = items.raw_items(task)
    n, fields = EXPECTED[task]
    assert len({item["item_id"] for item in found}) == len(found) == n
    assert all(set(item) == {"item_id", *fields} for item in found)


def test_first_items_are_those_of_the_public_data_sets():
    humaneval = items.raw_items("humaneval")[0]
    assert humaneval["item_id"] == "HumanEval/0"
    assert "def has_close_elements(" in humaneval["prompt"]
    gsm8k = items.raw_items("gsm8k")[0]
    assert gsm8k["answer"].endswith("#### 18")  # the raw answer, not the rewritten one
    mbpp = items.raw_items("mbpp")[0]
    assert (mbpp["item_id"], mbpp["tests"].count("\n"), "\r" in mbpp["code"]) == ("11", 2, False)
    arc = items.raw_items("arc_easy")[0]
    assert arc["item_id"] == "Mercury_417466"
    assert arc["question"] == "Which statement best explains why photosynthesis is the foundation of most food webs?"


def test_arc_chance_is_that_of_the_test_split():
    found = items.raw_items("arc_easy")
    assert sum(1 / len(item["choices"]) for item in found) / len(found) == pytest.approx(0.2502, abs=5e-5)


def test_contamination_text_is_question_and_gold():
    arc = {"item_id": "x", "question": "Which one?", "choices": ["this", "that"], "gold": 1}
    assert items.contamination_text("arc_easy", arc) == "Which one?\nthat"
    gsm8k = {"item_id": "0", "question": "How many?", "answer": "#### 7"}
    assert items.contamination_text("gsm8k", gsm8k) == "How many?\n#### 7"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([(0, "a", ["x"], 0), (1, "a", ["x"], 0)], "arc_easy: two items are called a"),
        ([(0, "a", ["x"], 0), (0, "a", ["y"], 0)], "arc_easy: two items are called a"),
        ([(0, "a", ["x"], None)], "arc_easy: a has no gold"),
        ([(0, "a", ["x", " "], 1)], "arc_easy: a has no gold"),
        ([(0, "a", ["x", "y"], 2)], "arc_easy: a: gold 2 is none of the 2 choices"),
    ],
)
def test_bad_items_are_refused(monkeypatch, rows, told):
    docs = [
        {"doc_id": n, "doc": {"id": i, "query": "Question: q\nAnswer:", "choices": c, "gold": g}} for n, i, c, g in rows
    ]
    monkeypatch.setattr(items, "read_json_lines", lambda *_: iter(docs))
    with pytest.raises(UserError, match=rf"^E-ITEM {told}"):
        items.raw_items("arc_easy")


def test_rows_without_context_are_ignored(monkeypatch):
    doc = {"id": "a", "query": "Question: q\nAnswer:", "choices": ["x"], "gold": 0}
    rows = [
        {"doc_id": 0, "doc": doc},
        {"doc_id": 0, "doc": doc},
        {"doc_id": 1_000_000, "doc": {**doc, "id": "b"}},
    ]
    monkeypatch.setattr(items, "read_json_lines", lambda *_: iter(rows))
    assert [item["item_id"] for item in items.raw_items("arc_easy")] == ["a"]

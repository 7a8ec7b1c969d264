"""What is asked of a model: context and continuations of each item, worded by the templates of `config.yaml`.

A template is filled in with the fields of the item; a line of it whose fields are all empty is left out, so that an
item without an explanation has no line that announces one.
"""

import hashlib
import json
import string
from typing import Any, NamedTuple

from depthbench.data import items
from depthbench.errors import UserError
from depthbench.specs import TaskSpec

FORMATTER = string.Formatter()


class Question(NamedTuple):
    """An item in words: a context, and the continuation to score, or one for each choice."""

    item_id: str
    context: str
    continuations: tuple[str, ...]
    gold: int  # index of the right one
    n_chars: tuple[int, ...] = ()  # of each choice


def questions(task: str, spec: TaskSpec) -> list[Question]:
    """Return the first `limit` items of a task in words.

    Raises:
        UserError: E-ITEM for an empty continuation; as `items.raw_items`.
    """
    return [_question(task, spec, item) for item in items.raw_items(task, spec.path)[: spec.limit]]


def items_id(asked: list[Question]) -> str:
    """Return the hash of all contexts, continuations and right choices: two evaluations compare if it is equal."""
    content = [[q.context, *q.continuations, q.gold] for q in asked]
    return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()[:16]


def _question(task: str, spec: TaskSpec, item: items.Item) -> Question:
    choices = item.get("choices")
    fields = [item] if choices is None else [{**item, "choice": choice} for choice in choices]
    continuations = tuple(_fill(spec.continuation, values) for values in fields)
    if not all(text.strip() for text in continuations):
        raise UserError("E-ITEM", f"{task}: {item['item_id']} has an empty continuation; mend the item or the template")
    context = _fill(spec.context, {"choice": "", **item})
    n_chars = tuple(map(len, choices or ()))
    return Question(item["item_id"], context, continuations, item.get("gold", 0), n_chars)


def _fill(template: str, fields: dict[str, Any]) -> str:
    lines = []
    for line in template.split("\n"):
        named = [field for _, field, _, _ in FORMATTER.parse(line) if field is not None]
        if not named or any(fields[field] for field in named):
            lines.append(line.format_map(fields))
    return "\n".join(lines)

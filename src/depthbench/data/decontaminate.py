r"""Which documents hold a piece of an evaluation item.

A document hits an item if the two share 13 words in a row: maximal runs of word characters (`\w+`) of the
lower-cased text; for the item, of its question and gold answer together. Items with fewer than 13 words
have no such piece and cannot be found; they are counted.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from depthbench.data.items import TASKS, Item, contamination_text, raw_items

N_WORDS = 13
WORD = re.compile(r"\w+")
Hit = tuple[str, str]  # task, item_id


class Index:
    """The shingles of all items, and a tally of the documents that were looked up."""

    def __init__(self, items_of: Mapping[str, Sequence[Item]]):
        self.n_items = {task: len(items) for task, items in items_of.items()}
        self.n_short: Counter[str] = Counter()
        self._owners: defaultdict[tuple[str, ...], set[Hit]] = defaultdict(set)
        self._items_hit: set[Hit] = set()
        self._docs_hit: Counter[str] = Counter()
        for task, items in items_of.items():
            for item in items:
                pieces = list(shingles(contamination_text(task, item)))
                self.n_short[task] += not pieces
                for piece in pieces:
                    self._owners[piece].add((task, item["item_id"]))

    def hits(self, text: str) -> set[Hit]:
        """Return the (task, item_id) that a text shares 13 words in a row with."""
        common = self._owners.keys() & set(shingles(text))
        return set().union(*(self._owners[piece] for piece in common))

    def tally(self, text: str) -> bool:
        """Count a training document; return whether it hits any item."""
        hits = self.hits(text)
        self._items_hit |= hits
        self._docs_hit.update({task for task, _ in hits})
        return bool(hits)

    def found(self) -> dict[str, Any]:
        """Return the tally as plain values, for `add`."""
        return {"items_hit": sorted(self._items_hit), "docs_hit": dict(sorted(self._docs_hit.items()))}

    def add(self, found: dict[str, Any]) -> None:
        """Add the tally of other training documents."""
        self._items_hit |= {(task, item_id) for task, item_id in found["items_hit"]}
        self._docs_hit.update(found["docs_hit"])

    def rows(self, action: str) -> list[dict[str, Any]]:
        """Return the contamination table after all training documents were counted, a row per task."""
        items_hit = Counter(task for task, _ in self._items_hit)
        return [
            {
                "task": task,
                "n_items": n_items,
                "n_items_short": self.n_short[task],
                "n_items_hit": items_hit[task],
                "n_docs_hit": self._docs_hit[task],
                "action": action,
            }
            for task, n_items in self.n_items.items()
        ]


def index_of_all_items() -> Index:
    """Return the index of every task.

    Raises:
        UserError: E-ITEM, E-WHEEL, E-MEMBER.
    """
    return Index({task: raw_items(task) for task in TASKS})


def rows_not_looked_for() -> list[dict[str, Any]]:
    """Return the contamination table where nobody looked: counts are empty, not 0."""
    empty = dict.fromkeys(["n_items", "n_items_short", "n_items_hit", "n_docs_hit"])
    return [{"task": task, **empty, "action": "off"} for task in TASKS]


def shingles(text: str) -> Iterator[tuple[str, ...]]:
    """Yield all 13 words in a row of a text; none if it has fewer."""
    words = WORD.findall(text.lower())
    return zip(*(words[i:] for i in range(N_WORDS)), strict=False)

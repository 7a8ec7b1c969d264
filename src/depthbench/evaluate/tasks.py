"""Scores on tasks: nll of the right answer (coding, STEM, math), accuracy of a choice (ARC-Easy).

nll = sum of nll / sum of tokens [nats/token]; nll_item = mean over items of an item's own mean; bits_per_byte = sum of
nll / (ln 2 x bytes of the answers). A choice is as good as its summed log-likelihood (`acc`), or that per character
of the choice (`acc_norm`); an item whose best choices tie gives 1 / number of them. Chance = mean of 1 / choices.

Status of a row: ok; diverged; not_requested; not_available (GPQA without a source); failed (more items cut to the
context length than `max_truncated` allows).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tokenizers import Tokenizer

from depthbench import stats
from depthbench.data import items
from depthbench.data.tokenizer import byte_lengths
from depthbench.errors import UserError
from depthbench.evaluate.requests import Question, items_id, questions
from depthbench.evaluate.scoring import Encoded, encode, score
from depthbench.model.backbone import Model
from depthbench.schema import CATEGORIES, TASK_FIELDS
from depthbench.specs import EvaluationSpec

ACCURACY = "arc_easy"
COUNTS = ["n_items", "n_truncated", "n_fallback"]
NLL = [
    *("task", "category", "split", "status", "reason", *COUNTS, "n_tokens", "n_bytes"),
    *("nll", "nll_item", "bits_per_byte", "lo", "hi", "items_id", "limit"),
]
NLL_ITEMS = ["task", "item_id", "n_tokens", "n_bytes", "nll_sum", "truncated", "fallback"]
ARC = [
    *("task", "split", "status", "reason", *COUNTS),
    *(measure + bound for measure in ("acc", "acc_norm") for bound in ("", "_lo", "_hi")),
    *("chance", "items_id", "limit"),
]
ARC_ITEMS = ["item_id", "n_choices", "gold", "pred", "pred_norm", "credit", "credit_norm", "gold_nll"]


class Asked(NamedTuple):
    """A task that is asked for: its items in words, or why there are none."""

    about: dict[str, Any]  # columns of the summary
    questions: list[Question]


class Frames(NamedTuple):
    """Summary and items of the nll tasks and of the accuracy task."""

    nll: pd.DataFrame
    nll_items: pd.DataFrame
    arc: pd.DataFrame
    arc_items: pd.DataFrame

    def lines(self) -> Iterator[str]:
        """Yield what to tell a person of each task that was asked for."""
        for row in pd.concat([self.nll, self.arc]).to_dict("records"):
            about = f"{row['n_items']} items, {row['n_truncated']} of them cut to the context length"
            if row["status"] != "ok":
                reason = row["reason"] if isinstance(row["reason"], str) else ""  # else nan
                told = "" if row["status"] == "not_requested" else f"{row['status']}: {reason}"
            elif row["task"] == ACCURACY:
                interval = f"[{row['acc_norm_lo']:.4f}, {row['acc_norm_hi']:.4f}]"
                told = f"acc_norm {row['acc_norm']:.4f} {interval}, chance {row['chance']:.4f}, {about}"
            else:
                told = f"{row['nll']:.4f} nats/token [{row['lo']:.4f}, {row['hi']:.4f}], {about}"
            if told:
                yield f"{row['task']}: {told.removesuffix(': ')}"


def prepare(spec: EvaluationSpec) -> dict[str, Asked]:
    """Return the tasks of a spec in words.

    Raises:
        UserError: E-ITEM, E-WHEEL, E-MEMBER; E-HUB unless it is of GPQA without a `path`, which is not_available.
    """
    found: dict[str, Asked] = {}
    for task in (name for name in TASK_FIELDS if name in spec.tasks):
        wanted = spec.tasks[task]
        about = {"task": task, "split": items.split(task, wanted.path), "limit": wanted.limit}
        try:
            asked = questions(task, wanted)
        except UserError as error:
            if (task, wanted.path, error.code) != ("gpqa", None, "E-HUB"):
                raise
            found[task] = Asked({**about, "status": "not_available", "reason": str(error)}, [])
            continue
        found[task] = Asked({**about, "n_items": len(asked), "items_id": items_id(asked)}, asked)
    return found


def measure(
    asked: dict[str, Asked],
    spec: EvaluationSpec,
    loaded: tuple[Model, Tokenizer] | None,
    max_length: int,
    compute: str,
    resamples: int,
) -> Frames:
    """Return the scores of a model, or of none (`loaded` is None) for a diverged run.

    Args:
        asked: What `prepare` made of `spec`.
        spec: What is asked for.
        loaded: The model, on the device to use, and its tokenizer.
        max_length: T, the longest input.
        compute: "float32" or "bfloat16", the type of the forward pass.
        resamples: Of the intervals.
    """
    tables = _tables(asked, *loaded, max_length, compute) if loaded else {}
    nll_rows: list[dict[str, Any]] = []
    arc_row: dict[str, Any] = {"status": "not_requested"}
    kept: dict[str, pd.DataFrame] = {}
    for task, (about, _) in asked.items():
        row = about | {"category": next((c for c, names in CATEGORIES.items() if task in names), None)}
        if "status" not in row:
            table = tables.get(task)
            row |= {"status": "diverged"} if table is None else _summary(task, table, spec, max_length, resamples)
        if row["status"] in ("ok", "failed"):
            kept[task] = tables[task]
        if task == ACCURACY:
            arc_row = row
        else:
            nll_rows.append(row)
    # whole numbers stay whole beside rows that have none
    whole = dict.fromkeys([*COUNTS, "limit"], "Int64")
    nll_items = [table for task, table in kept.items() if task != ACCURACY]
    return Frames(
        pd.DataFrame(nll_rows or [{"status": "not_requested"}])
        .reindex(columns=NLL)
        .astype(whole | {"n_tokens": "Int64", "n_bytes": "Int64"}),
        pd.concat(nll_items)[NLL_ITEMS] if nll_items else pd.DataFrame(columns=NLL_ITEMS),
        pd.DataFrame([arc_row]).reindex(columns=ARC).astype(whole),
        kept[ACCURACY][ARC_ITEMS] if ACCURACY in kept else pd.DataFrame(columns=ARC_ITEMS),
    )


def _tables(
    asked: dict[str, Asked], model: Model, tokenizer: Tokenizer, max_length: int, compute: str
) -> dict[str, pd.DataFrame]:
    """Score all continuations of all tasks in one go; return the items of each task."""
    pairs: list[Encoded] = []
    owners: list[tuple[str, Question, slice]] = []
    for task, (_, found) in asked.items():
        for question in found:
            first = len(pairs)
            pairs += [encode(tokenizer, question.context, text, max_length) for text in question.continuations]
            owners.append((task, question, slice(first, len(pairs))))
    nll = score(model, pairs, compute).nll if pairs else np.zeros(0)
    sizes = byte_lengths(tokenizer)
    rows: dict[str, list[dict[str, Any]]] = {task: [] for task, (about, _) in asked.items() if "status" not in about}
    for task, question, at in owners:
        rows[task].append(_item(task, question, pairs[at], nll[at], sizes))
    return {task: pd.DataFrame(found) for task, found in rows.items()}


def _item(
    task: str, question: Question, pairs: Sequence[Encoded], nll: np.ndarray, sizes: np.ndarray
) -> dict[str, Any]:
    row = {
        "task": task,
        "item_id": question.item_id,
        "truncated": any(pair.truncated for pair in pairs),
        "fallback": any(pair.fallback for pair in pairs),
    }
    if task == ACCURACY:
        return row | choose(nll, question.gold, question.n_chars)
    (pair,) = pairs
    return row | {
        "n_tokens": pair.n_scored,
        "n_bytes": int(sizes[pair.tokens[-pair.n_scored :]].sum()),
        "nll_sum": float(nll[0]),
    }


def choose(nll: np.ndarray, gold: int, n_chars: Sequence[int]) -> dict[str, Any]:
    """Return which choice a model takes, by summed nll and by nll per character, and the credit for it."""
    row: dict[str, Any] = {"n_choices": len(nll), "gold": gold, "gold_nll": float(nll[gold])}
    for suffix, values in (("", nll), ("_norm", nll / np.array(n_chars))):
        best = values == values.min()
        row |= {f"pred{suffix}": int(best.argmax()), f"credit{suffix}": best[gold] / max(best.sum(), 1)}
    return row


def _summary(task: str, table: pd.DataFrame, spec: EvaluationSpec, max_length: int, resamples: int) -> dict[str, Any]:
    """Return status and measures of a task's items."""
    cut, limit = int(table["truncated"].sum()), spec.max_truncated
    row: dict[str, Any] = {"n_truncated": cut, "n_fallback": int(table["fallback"].sum())}
    if limit is not None and cut > limit * len(table):
        reason = f"{cut} of {len(table)} items are longer than {max_length} tokens, max_truncated is {limit}"
        return row | {"status": "failed", "reason": reason}
    values = table["gold_nll"] if task == ACCURACY else table["nll_sum"]
    if not np.isfinite(values).all():
        return row | {"status": "diverged"}
    return row | {"status": "ok"} | (_accuracy if task == ACCURACY else _nll)(table, resamples)


def _accuracy(table: pd.DataFrame, resamples: int) -> dict[str, Any]:
    row = {"chance": (1 / table["n_choices"]).mean()}
    for name, credit in (("acc", table["credit"]), ("acc_norm", table["credit_norm"])):
        lo, hi = stats.bootstrap_ratio(credit, np.ones(len(table)), table["task"], resamples)
        row |= {name: credit.mean(), f"{name}_lo": lo, f"{name}_hi": hi}
    return row


def _nll(table: pd.DataFrame, resamples: int) -> dict[str, Any]:
    nll, n_tokens, n_bytes = (table[column].sum() for column in ("nll_sum", "n_tokens", "n_bytes"))
    lo, hi = stats.bootstrap_ratio(table["nll_sum"], table["n_tokens"], table["task"], resamples)
    return {
        "n_tokens": n_tokens,
        "n_bytes": n_bytes,
        "nll": nll / n_tokens,
        "nll_item": (table["nll_sum"] / table["n_tokens"]).mean(),
        "bits_per_byte": nll / (math.log(2) * n_bytes),
        "lo": lo,
        "hi": hi,
    }

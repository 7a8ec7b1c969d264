"""The items of the evaluation tasks out of their data sets on the hub, or local folders of the same layout.

The `configs` block of a data set's card says which files make a split; without one they are those named after it
(`test-00000-of-00001.parquet`, `test.jsonl`), in a folder named after the configuration, in `data`, or at the top.
GPQA, whose text must not spread, is a gated set; `permuted` mixes its choices.
"""

import csv
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import DatasetCard, HfApi, snapshot_download

from depthbench.data.hub import REACH_SECONDS
from depthbench.errors import UserError

Row = dict[str, Any]
SUFFIXES = (".parquet", ".jsonl", ".csv")
ORDERS = tuple(itertools.permutations(range(4)))


@dataclass(frozen=True)
class HubTask:
    """A task's data set, and how a row becomes an item; no `id_field`: its items are numbered."""

    path: str
    name: str | None  # configuration
    split: str
    id_field: str | None
    read: Callable[[Row], Row]


def rows_of(task: str, path: str) -> Iterator[tuple[str, Row]]:
    """Yield id and fields of each item of a task, in the order of the data set.

    Args:
        task: A key of `HUB`.
        path: Data set id, local folder, or for GPQA the name of its CSV.

    Raises:
        UserError: E-HUB if the data set cannot be reached or has no such split; E-ITEM if a file cannot be read,
            or a row lacks a field.
    """
    of = HUB[task]
    number = 0
    for file in _files(task, path):
        for row in _read(task, file):
            item_id = str(row.get(of.id_field) or number) if of.id_field else str(number)
            try:
                item = of.read(row)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                lacks = f"no field {error.args[0]}" if isinstance(error, KeyError) else "its fields have another form"
                raise UserError("E-ITEM", f"{task}: {item_id}: {lacks} in {file.name}; take another file") from None
            yield item_id, item
            number += 1


def permuted(record_id: str) -> tuple[int, ...]:
    """Return the order of GPQA's correct answer (0) and the three others: permutation number SHA-256(id) mod 24."""
    number = int.from_bytes(hashlib.sha256(record_id.encode()).digest(), "big")
    return ORDERS[number % len(ORDERS)]


def _files(task: str, path: str) -> list[Path]:
    given = Path(path).expanduser()
    if given.suffix == ".csv":
        if not given.is_file():
            raise UserError("E-ITEM", f"{task}: {path}: no such file; name the CSV, or take the path out")
        return [given]
    folder = given if given.is_dir() else _snapshot(task, path)
    patterns = list(_patterns(task, folder))
    for places in patterns:
        try:
            found = sorted({file for place in places for file in folder.glob(place) if file.suffix in SUFFIXES})
        except (NotImplementedError, ValueError) as error:  # an absolute path, an empty one, a ** in a name
            raise _error(task, path, f"README.md: its data_files cannot be followed ({error})") from None
        if found:
            return found
    raise _error(task, path, f"no file {' or '.join(itertools.chain(*patterns))}")


def _patterns(task: str, folder: Path) -> Iterator[list[str]]:
    """Yield what names the files of a task's split; the first that names some is right."""
    of = HUB[task]
    card = folder / "README.md"
    try:
        configs = DatasetCard.load(card).data.get("configs") if card.is_file() else None
    except Exception as error:  # the library and its YAML reader raise what they like
        raise _error(task, str(folder), f"README.md cannot be read ({' '.join(str(error).split()):.200})") from None
    named = [c for c in _as_list(configs) if isinstance(c, dict) and c.get("config_name") in (of.name, "default")]
    if not named:
        yield from ([f"{of.name}.csv"], [f"{of.name}/{of.split}*"], [f"data/{of.split}*"], [f"{of.split}*"])
        return
    places: list[str] = []
    for entry in (e for c in named for e in _as_list(c.get("data_files"))):
        if not isinstance(entry, dict):
            places.append(str(entry))
        elif entry.get("split") == of.split:
            places += map(str, _as_list(entry.get("path")))
    yield places


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _snapshot(task: str, path: str) -> Path:
    """Return the folder of a data set in the cache of huggingface_hub, the newest one where the hub answers."""
    kinds = ["README.md", *(f"*{suffix}" for suffix in SUFFIXES)]
    try:
        # the download itself would try for 23 s before it tells
        HfApi().dataset_info(path, timeout=REACH_SECONDS)
        return Path(snapshot_download(path, repo_type="dataset", allow_patterns=kinds))
    except Exception as error:  # transport errors have no common base that the library promises
        try:
            return Path(snapshot_download(path, repo_type="dataset", allow_patterns=kinds, local_files_only=True))
        except Exception:
            raise _error(task, path, " ".join(str(error).split())[:300] or type(error).__name__) from None


def _read(task: str, file: Path) -> Iterator[Row]:
    try:
        if file.suffix == ".parquet":
            yield from pq.read_table(file).to_pylist()
        elif file.suffix == ".jsonl":
            with file.open(encoding="utf-8") as lines:
                for line in filter(str.strip, lines):
                    row = json.loads(line)
                    yield row if isinstance(row, dict) else {}
        else:
            with file.open(encoding="utf-8-sig", newline="") as lines:
                yield from csv.DictReader(lines)
    except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise UserError("E-ITEM", f"{task}: {file}: cannot be read ({reason}); mend it or name another") from None


def _error(task: str, path: str, reason: str) -> UserError:
    of = HUB[task]
    remedy = f"mend it, or set tasks.{task}.path to a local folder with the data set's files"
    archive = "" if task == "gpqa" else ", or take it out to read the archive"
    return UserError("E-HUB", f"{path} ({of.name or 'default'}, {of.split}): {reason.rstrip('.')}; {remedy}{archive}")


def gpqa_hub() -> str:
    """Return the id of the gated set.

    Raises:
        UserError: E-HUB if the environment holds no access token.
    """
    if not os.environ.get("HF_TOKEN"):
        raise _error("gpqa", HUB["gpqa"].path, "gated, and HF_TOKEN holds no access token")
    return HUB["gpqa"].path


def _mbpp(row: Row) -> Row:
    code = row["code"] and row["code"].replace("\r\n", "\n")
    tests = row["test_list"]
    if not isinstance(tests, list):  # of a CSV: a list in words
        raise TypeError
    return {"text": row["text"], "tests": "\n".join(tests), "code": code}


def _gpqa(row: Row) -> Row:
    gold = row["Correct Answer"].strip()
    answers = [gold, *(row[f"Incorrect Answer {n}"].strip() for n in (1, 2, 3))]
    question = row["Question"].strip()
    order = permuted(row.get("Record ID") or row["Question"])
    shown = {letter: answers[i] for letter, i in zip("abcd", order, strict=True)}
    explanation = (row.get("Explanation") or "").strip()
    return {"question": question, **shown, "correct_answer": gold, "explanation": explanation}


def _arc(row: Row) -> Row:
    choices = row["choices"]
    return {
        "question": row["question"],
        "choices": list(choices["text"]),
        "gold": list(choices["label"]).index(row["answerKey"]) if row["answerKey"] in choices["label"] else -1,
    }


def _fields(*names: str) -> Callable[[Row], Row]:
    return lambda row: {name: row[name] for name in names}


HUB = {
    "mbpp": HubTask("google-research-datasets/mbpp", "full", "test", "task_id", _mbpp),
    "humaneval": HubTask(
        "openai/openai_humaneval", "openai_humaneval", "test", "task_id", _fields("prompt", "canonical_solution")
    ),
    "sciq": HubTask("allenai/sciq", None, "test", None, _fields("question", "correct_answer", "support")),
    "gpqa": HubTask("Idavidrein/gpqa", "gpqa_diamond", "train", "Record ID", _gpqa),
    "gsm8k": HubTask("openai/gsm8k", "main", "test", None, _fields("question", "answer")),
    "math500": HubTask("HuggingFaceH4/MATH-500", None, "test", None, _fields("problem", "solution")),
    "arc_easy": HubTask("allenai/ai2_arc", "ARC-Easy", "test", "id", _arc),
}

"""The page docs/results-format.md: every file of a run, every table and figure, with their columns."""

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from types import ModuleType

from depthbench import figures, readers, tables
from depthbench.columns import MEANINGS, Column
from depthbench.errors import UserError
from depthbench.formats import OTHER_FILES, OWN, RECORDS, RUN_FILES

# Told once on top of the page: which run, of which model, on what.
COMMON = (
    *("run_id", "suites", "design", "label", "scale", "n_layers", "d_model", "aspect_ratio", "lr", "seed", "status"),
    *("tokenizer_vocab", "data_id", "calib_id", "doc_key", "origin"),
)
HEAD = """# Format of the results

Every file that a study writes, its columns and their units; written by `make docs`, do not edit.

CSV files are UTF-8 with one line of names; a value that is not there is empty, true and false are `True` and `False`.
Files of runs lie in `results/<study>/runs/<design>/<scale>-d<width>-l<depth>/lr<lr>-s<seed>/`, tables as CSV and LaTeX
in `results/<study>/tables/`, figures as PDF, SVG, PNG and the CSV that they drew in `results/<study>/figures/`. Columns
are given by name, not by place. An analysis that was not made has one row with its `status`, and may lack columns that
no table or figure reads.

## Columns of many files

Below, these are named without their meaning.
"""


def page() -> str:
    """Return the page as Markdown.

    Raises:
        UserError: E-DOCS for a column without a meaning.
    """
    parts = [HEAD, _table((name, MEANINGS[name]) for name in COMMON)]
    parts.append("## Files of a run\n")
    for file, about in RUN_FILES.items():
        parts.append(_section(file, f"One row: {about.row}.", file, columns(file)))
    parts.append(
        "### `model.safetensors`\n\nThe weights by name; of a diverged run those of the last finite step. An import may"
        " have `tokenizer.json` beside it.\n"
    )
    parts.append("## Files of a study and of the prepared text\n")
    for file, about in OTHER_FILES.items():
        parts.append(_section(file, f"One row: {about.row}.", file, columns(file)))
    for title, package in (("Tables", tables), ("Figures", figures)):
        parts.append(f"## {title}\n")
        for name, module in modules(package):
            first = (module.__doc__ or "").partition("\n")[0]
            parts.append(_section(name, first, f"{title.lower()}/{name}.csv", module.COLUMNS))
    return "\n".join(parts)


def modules(package: ModuleType) -> Iterator[tuple[str, ModuleType]]:
    """Yield the name and module of each table or figure."""
    for found in pkgutil.iter_modules(package.__path__):
        if not found.name.startswith("_"):
            yield found.name, importlib.import_module(f"{package.__name__}.{found.name}")


def columns(file: str) -> list[str]:
    """Return the columns of a file of `RUN_FILES` or `OTHER_FILES`."""
    read = [] if file in RECORDS else [*readers.COLUMNS.get(file, {})]
    if file == "metrics.jsonl":
        read.remove("run_id")  # the reader knows it from the folder
    return list(dict.fromkeys([*read, *(RUN_FILES | OTHER_FILES)[file].others]))


def meaning(file: str, name: str) -> Column:
    """Return what the column `name` of `file` means.

    Raises:
        UserError: E-DOCS, if nothing says it.
    """
    found = OWN.get(file, {}).get(name) or MEANINGS.get(name)
    if found is None:
        raise UserError("E-DOCS", f"{file}: column {name!r} has no meaning; add one in depthbench/columns.py")
    return found


def _section(title: str, about: str, file: str, names: Iterable[str]) -> str:
    own = OWN.get(file, {})
    told = [name for name in names if name not in COMMON or name in own]
    common = [f"`{name}`" for name in names if name not in told]
    text = f"### `{title}`\n\n{about}\n"
    if common:
        text += f"\nOf many files: {', '.join(common)}.\n"
    return text + "\n" + _table((name, meaning(file, name)) for name in told)


def _table(rows: Iterable[tuple[str, Column]]) -> str:
    lines = ["| column | type | unit | meaning |", "| --- | --- | --- | --- |"]
    for name, column in rows:
        text = column.meaning.replace("|", "\\|")
        lines.append(f"| `{name}` | {column.kind} | {column.unit} | {text} |")
    return "\n".join(lines) + "\n"

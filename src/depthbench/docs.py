"""What is generated in the documentation: `python -m depthbench.docs [--check | mini]`.

The configuration's JSON Schema and its table of keys come from `schema.py`, the format of the results from the modules
that write them (`format_page`), the results in README.md from `docs/demo/losses.csv`, the table of the demo's own run.
With `mini` it is docs/results-mini.md, from results/mini.
"""

import csv
import inspect
import json
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from depthbench import format_page, results_page, results_sections
from depthbench.errors import UserError
from depthbench.schema import Config, parse_rate

BEGIN, END = "<!-- results: written by `make docs` from docs/demo -->", "<!-- end of results -->"
PARTIAL = ("Recipe", "Optimizer", "Schedule", "Precision")  # `extends` fills in what they leave out


def schema() -> dict[str, Any]:
    """Return the JSON Schema of `config.yaml`, for editors."""
    made = Config.model_json_schema(mode="validation")
    for name in PARTIAL:
        made["$defs"][name].pop("required", None)
    extends = {"type": "string", "title": "Extends", "description": "another recipe, taken key by key"}
    made["$defs"]["Recipe"]["properties"]["extends"] = extends
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def page() -> str:
    """Return the table of all keys as Markdown."""
    head = "# Configuration\n\nEvery key of `config.yaml`; written by `make docs`, do not edit.\n"
    return head + "\n".join(_tables(Config, "", set())) + "\n"


def _tables(model: type[BaseModel], where: str, seen: set[type]) -> Iterator[str]:
    yield f"\n## {where or 'Top level'}\n\n{inspect.cleandoc(model.__doc__ or '')}\n"
    yield "| key | type | default | meaning |\n| --- | --- | --- | --- |"
    inner: list[tuple[type[BaseModel], str]] = []
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else f"`{json.dumps(field.get_default())}`"
        kind = "rate" if _is_rate(field.metadata) else _type(field.annotation)
        yield f"| `{name}` | {kind} | {default} | {field.description or ''} |"
        inner += [(part, name) for part in _models(field.annotation)]
    for part, name in inner:
        if part not in seen:
            seen.add(part)
            yield from _tables(part, f"{where}.{name}".lstrip("."), seen)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models(part)


def _type(annotation: Any) -> str:
    """A type in a reader's words."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return "rate" if _is_rate(annotation.__metadata__) else _type(parts[0])
    if origin is typing.Literal:
        return " or ".join(f"`{p}`" for p in parts)
    if origin is list:
        return f"list of {_type(parts[0])}"
    if origin is tuple:
        return f"[{', '.join(_type(p) for p in parts)}]"
    if origin is dict:
        return f"name to {_type(parts[1])}"
    if parts:
        return " or ".join(_type(p) for p in parts if p is not type(None))
    words = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    return words.get(annotation, "mapping")


def _is_rate(metadata: typing.Iterable[Any]) -> bool:
    return any(getattr(m, "func", None) is parse_rate for m in metadata)


def results(losses: Path) -> str:
    """Return the results of the demo's main suite as Markdown, from its table `losses`."""
    with losses.open() as file:
        rows = [row for row in csv.DictReader(file) if "main" in row["suites"].split(", ") and row["seed"] == "0"]
    shapes = list(dict.fromkeys((int(row["n_layers"]), int(row["d_model"])) for row in rows))
    cells = {(r["label"], int(r["n_layers"]), int(r["d_model"])): results_sections.cell(r) for r in rows}
    if vague := [row["run_id"] for row in rows if row["mixed_commit"] != "False"]:
        raise SystemExit(f"{losses}: no one commit gives {vague[0]}; run make demo-docs in a clean clone")
    entropy = float(rows[0]["unigram_entropy"])
    room = entropy - max(float(row["loss"]) for row in rows)
    lines = [
        f"Held-out loss in nats per token, with 95 % intervals over documents, after {int(rows[0]['tokens']):,} tokens"
        f" (commit {rows[0]['commit']}). The entropy of single tokens of the same text is {entropy:.3f}: every model is"
        f" at least {room:.3f} below it.",
        "",
        "| design | " + " | ".join(f"L = {depth}, d = {width}" for depth, width in shapes) + " |",
        "| --- |" + " --- |" * len(shapes),
    ]
    for label in dict.fromkeys(row["label"] for row in rows):
        lines.append(f"| {label} | " + " | ".join(cells[label, *shape] for shape in shapes) + " |")
    return "\n".join(lines)


def readme(text: str, block: str) -> str:
    """Return the README with `block` as its results."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n\n{block}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Write what is generated into the checkout, or with `--check` exit 1 if something differs; or the page of mini."""
    root = Path(__file__).parents[2]
    if results_page.STUDY in sys.argv:
        print(results_page.write(root).relative_to(root))
        return
    pages = {
        root / "workflow/schemas/config.schema.json": json.dumps(schema(), indent=1) + "\n",
        root / "docs/config.md": page(),
        root / "docs/results-format.md": format_page.page(),
        root / "README.md": readme((root / "README.md").read_text(), results(root / "docs/demo/losses.csv")),
    }
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv and stale:
        raise SystemExit(f"out of date: {', '.join(str(p.relative_to(root)) for p in stale)}; run make docs")
    for path in stale:
        path.write_text(pages[path])


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(str(error)) from None

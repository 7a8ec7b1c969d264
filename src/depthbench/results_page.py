"""The page of a study's results, docs/results-mini.md: written from the tables and figures of results/mini.

Nothing on it is typed in by hand but what such a size can and cannot tell; runs and tables that are not there are
named. The tables and pictures that it shows are copied beside it.
"""

import csv
import importlib
import inspect
import shutil
from collections.abc import Callable
from pathlib import Path

from depthbench import files
from depthbench import results_sections as sections
from depthbench.errors import UserError
from depthbench.results_sections import Row, Tables

STUDY = "mini"
COMMAND = f"snakemake -c2 --config study={STUDY}"
PUBLISHED = ("losses", "paired", "seed_noise", "lr_audit", "depth_trend", "late_layers", "claims", "run_costs")
MEANING = """## What this size can and cannot tell

Models of {parameters} parameters after {tokens} tokens are far from those of the paper, 200 M to 1.6 B parameters after
4 to 32 billion tokens. They can tell that a design trains, and how losses of designs and shapes differ in these runs,
on this text, with these rates. They cannot tell which design is better at another size: the best rate moves with width,
depth and length of training, and effects of depth may need more layers than there are here.

- **Noise.** Intervals are over held-out documents: they hold the noise of evaluation, not that of training, unless they
  say so. The interval of one loss holds what all models find hard alike; compare models by their differences.
- **Sizes.** Models of a shape are of equal size but for what a design adds: {overheads}. In the paper mHC adds about
  1 % and MoDA 11 to 12.5 %. So mHC is no model of equal size here, least of all where it is deep.
- **Rates.** They are swept at one shape, with one seed, on the documents that are reported; the other shapes take that
  rate. A shape that needs another one looks worse than it is.
"""
# Which figures stand in a section; the others follow at the end.
FIGURES = {
    "losses": ("validation_loss",),
    "rates": ("lr_sweep",),
    "late": ("layer_perturbation", "causal_maps", "permutation_maps"),
}


def write(root: Path) -> Path:
    """Write the page, its tables and figures below `root`/docs; return its path.

    Raises:
        UserError: E-DOCS, if there are no results or a table is not whole.
    """
    results = root / "results" / STUDY
    pictures = sorted((results / "figures").glob("*.png"))
    text = page(results, [picture.stem for picture in pictures])
    folder = root / "docs" / STUDY
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tables = [results / "tables" / f"{name}.csv" for name in PUBLISHED]
    for file in (*pictures, *(table for table in tables if table.exists())):
        shutil.copyfile(file, folder / file.name)
    out = root / "docs" / f"results-{STUDY}.md"
    files.write_text(out, text)
    return out


def page(results: Path, pictures: list[str]) -> str:
    """Return the page of the results in a folder."""
    tables = {path.stem: _read(path) for path in sorted((results / "tables").glob("*.csv"))}
    if lacking := [name for name in ("losses", "run_costs") if not tables.get(name)]:
        raise UserError("E-DOCS", f"{results}: no table {lacking[0]}; run {COMMAND} first")
    shown = {section: [name for name in names if name in pictures] for section, names in FIGURES.items()}
    others = [name for name in pictures if not any(name in names for names in shown.values())]
    try:
        _check_seeds(tables)
        parts = [
            f"# Results of the study `{STUDY}`\n\nWritten by `python -m depthbench.docs {STUDY}`; do not edit.\n",
            _origin(tables),
            _meaning(tables["losses"]),
            _section("Losses", tables, "losses", sections.losses),
            sections.noise(tables.get("seed_noise")),
            _figures(shown["losses"]),
            _section("Differences from Pre-LN", tables, "paired", sections.differences),
            _section("Learning rates", tables, "lr_audit", sections.rates),
            _figures(shown["rates"]),
            _section("Depth at equal size", tables, "depth_trend", sections.trend),
            _section("Late layers", tables, "late_layers", sections.late),
            _figures(shown["late"]),
            _section("The paper's claims", tables, "claims", sections.claims),
            "## More figures\n",
            _figures(others) or "There are none.\n",
        ]
    except (KeyError, ValueError) as error:
        problem = f"{results}/tables: {type(error).__name__} {error}, not of this version"
        raise UserError("E-DOCS", f"{problem}; run {COMMAND} again") from error
    return "\n".join(part for part in parts if part)


def _check_seeds(tables: Tables) -> None:
    """Raise ValueError if seeds are repeated, and a table that compares them does not: it is of an older version."""
    for name in ("paired", "depth_trend") if any(row["sd"] for row in tables.get("seed_noise", [])) else ():
        if name in tables and not any(row["suite"] == "seeds" for row in tables[name]):
            raise ValueError(f"no seeds in {name}")


def _read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _run(row: Row) -> str:
    return f"{row['label']} L{row['n_layers']} d{row['d_model']} at {row['lr']} seed {row['seed']}"


def _section(title: str, tables: Tables, name: str, text: Callable[[list[Row], Tables], str]) -> str:
    rows = tables.get(name)
    return f"## {title}\n\n" + (text(rows, tables) if rows else f"The table `{name}` is not there.\n")


def _origin(tables: Tables) -> str:
    losses, costs = tables["losses"], tables["run_costs"]
    done = [row for row in costs if row["status"] != "missing"]
    seconds = sum(float(row["seconds"]) for row in done)
    commits = [row["commit"] for row in done]
    counts = ", ".join(f"{name} ({commits.count(name)} runs)" for name in dict.fromkeys(commits))
    devices = ", ".join(dict.fromkeys(f"{row['device']}, {row['threads']} thread a run" for row in done))
    entropy = next((float(row["unigram_entropy"]) for row in losses if row["unigram_entropy"]), float("nan"))
    lines = [
        *("Command:\n", f"```bash\n{COMMAND}\n```\n"),
        f"{len(done)} of {len(costs)} runs on {devices or 'no machine'}; commit {counts or 'unknown'}. The wall times"
        f" of the trainings sum up to {seconds / 3600:.2f} hours: several ran at a time, pauses and what else the"
        " machine did are in it, so it is no measure of speed ([performance](performance.md)).\n",
        "Designs, shapes, text and rates are those of the study in [config.yaml](../config.yaml). The entropy of single"
        f" tokens of the held-out text is {entropy:.3f} nats/token.\n",
    ]
    for status in ("missing", "diverged"):
        if named := [_run(row) for row in losses if row["status"] == status]:
            lines.append(f"{status.capitalize()}: {'; '.join(named)}.\n")
    names = [f"[{name}]({STUDY}/{name}.csv)" for name in PUBLISHED if tables.get(name)]
    return "\n".join(lines) + f"\nTables as files: {', '.join(names)}; [their columns](results-format.md).\n"


def _meaning(losses: list[Row]) -> str:
    ok = [row for row in losses if row["status"] == "ok"]
    more: dict[str, set[float]] = {}
    for row in ok:
        more.setdefault(row["label"], set()).add(round(float(row["overhead_pct"]), 1))
    overheads = [f"{label} {sections.spread(values, '.1f')} %" for label, values in more.items() if max(values) >= 1]
    return MEANING.format(
        parameters=sections.spread(int(row["n_params"]) for row in ok),
        tokens=sections.spread(int(row["tokens"]) for row in ok),
        overheads=", ".join(overheads) or "less than 1 %",
    )


def _figures(names: list[str]) -> str:
    return "\n".join(
        f"### {_words(name)}\n\n{_caption(name)}\n\n![{_words(name)}]({STUDY}/{name}.png)\n" for name in names
    )


def _words(name: str) -> str:
    return name.replace("_", " ")


def _caption(name: str) -> str:
    """Return what the figure's module says of it."""
    return inspect.getdoc(importlib.import_module(f"depthbench.figures.{name}")) or ""

"""The page of a study's results, docs/results-mini.md: written from the tables and figures of results/mini.

Nothing on it is typed in by hand but what such a size can and cannot tell; runs and tables that are not there are
named.
"""

import csv
import shutil
from collections.abc import Iterable
from pathlib import Path

from depthbench import files
from depthbench.errors import UserError

STUDY = "mini"
Row = dict[str, str]
COMMAND = f"snakemake -c2 --config study={STUDY}"
MEANING = """## What this size can and cannot tell

Models of {parameters} parameters after {tokens} tokens are far from those of the paper, 200 M to 1.6 B parameters after
4 to 32 billion tokens. They can tell that a design trains, what it costs, and how losses of designs and shapes differ
in these runs, on this text, with these rates. They cannot tell which design is better at another size: the best rate
moves with width, depth and length of training, and effects of depth may need more layers than there are here.

Intervals are over held-out documents: they hold the noise of evaluation, not that of training. Where there are several
seeds, the smallest difference that they resolve is given; a smaller one is no result. mHC and MoDA add parameters to
Pre-LN of the same shape, a larger share at these widths than at the paper's: `overhead_pct` of the table `losses`.
"""


def write(root: Path) -> Path:
    """Write the page and copies of the figures below `root`/docs; return its path.

    Raises:
        UserError: E-DOCS, if there are no results or a table is not whole.
    """
    results = root / "results" / STUDY
    pictures = sorted((results / "figures").glob("*.png"))
    text = page(results, [picture.stem for picture in pictures])
    folder = root / "docs" / STUDY
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    for picture in pictures:
        shutil.copyfile(picture, folder / picture.name)
    out = root / "docs" / f"results-{STUDY}.md"
    files.write_text(out, text)
    return out


def page(results: Path, pictures: Iterable[str]) -> str:
    """Return the page of the results in a folder."""
    tables = {path.stem: _read(path) for path in sorted((results / "tables").glob("*.csv"))}
    if lacking := [name for name in ("losses", "run_costs") if not tables.get(name)]:
        raise UserError("E-DOCS", f"{results}: no table {lacking[0]}; run {COMMAND} first")
    try:
        parts = [
            f"# Results of the study `{STUDY}`\n\nWritten by `python -m depthbench.docs {STUDY}`; do not edit.\n",
            _origin(tables["losses"], tables["run_costs"]),
            _losses(tables["losses"], tables.get("seed_noise")),
            _rates(tables.get("lr_audit")),
            _trend(tables.get("depth_trend")),
            _late(tables.get("late_layers")),
            _claims(tables.get("claims")),
            _meaning(tables["losses"]),
            _figures(pictures),
        ]
    except (KeyError, ValueError) as error:
        problem = f"{results}/tables: {type(error).__name__} {error}, not of this version"
        raise UserError("E-DOCS", f"{problem}; run {COMMAND} again") from error
    return "\n".join(parts)


def cell(row: Row) -> str:
    """Return the loss of a run with its interval; diverged and missing in words."""
    if row["status"] != "ok":
        return row["status"]
    loss, lo, hi = (float(row[key] or "nan") for key in ("loss", "loss_lo", "loss_hi"))
    return f"{loss:.3f} [{lo:.3f}, {hi:.3f}]"


def _read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(header), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(text.replace('|', '/') for text in line)} |" for line in lines) + "\n"


def _interval(row: Row, value: str, lo: str, hi: str) -> str:
    if not row[value]:
        return "-"
    number = f"{float(row[value]):+.4f}"
    return f"{number} [{float(row[lo]):+.4f}, {float(row[hi]):+.4f}]" if row[lo] else number


def _run(row: Row) -> str:
    return f"{row['label']} L{row['n_layers']} d{row['d_model']} at {row['lr']} seed {row['seed']}"


def _origin(losses: list[Row], costs: list[Row]) -> str:
    done = [row for row in costs if row["status"] != "missing"]
    seconds = sum(float(row["seconds"]) for row in done)
    commits = ", ".join(dict.fromkeys(row["commit"] for row in done))
    devices = ", ".join(dict.fromkeys(f"{row['device']}, {row['threads']} thread a run" for row in done))
    lines = [
        *("Command:\n", f"```bash\n{COMMAND}\n```\n"),
        f"{len(done)} of {len(costs)} runs, trained in {seconds / 3600:.2f} hours in all on {devices or 'no machine'};"
        f" commit {commits or 'unknown'}.\n",
    ]
    for status in ("missing", "diverged"):
        if named := [_run(row) for row in losses if row["status"] == status]:
            lines.append(f"{status.capitalize()}: {'; '.join(named)}.\n")
    return "\n".join(lines)


def _losses(losses: list[Row], noise: list[Row] | None) -> str:
    rows = [row for row in losses if {"main", "seeds"} & set(row["suites"].split(", "))]
    shapes = list(dict.fromkeys((int(row["n_layers"]), int(row["d_model"])) for row in rows))
    found: dict[tuple[str, int, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: int(row["seed"])):
        found.setdefault((row["label"], int(row["n_layers"]), int(row["d_model"])), []).append(row)
    table = [
        [label, *("; ".join(map(cell, found.get((label, *shape), []))) or "-" for shape in shapes)]
        for label in dict.fromkeys(row["label"] for row in rows)
    ]
    head = "Held-out loss [nats/token] with 95 % intervals over documents, seed by seed."
    text = f"## Losses\n\n{head}\n\n" + _markdown(
        ["design", *(f"L = {depth}, d = {width}" for depth, width in shapes)], table
    )
    if not noise:
        return text + "\nThe table `seed_noise` is not there: what difference the seeds resolve is not known.\n"
    for scale, row in {row["scale"]: row for row in noise if row["sd"]}.items():
        text += (
            f"\nOver seeds the standard deviation is {float(row['sd']):.4f} nats/token at scale {scale}; the smallest"
            f" significant difference of two means over {row['n_seeds']} seeds is {float(row['resolvable']):.4f}.\n"
        )
    return text


def _rates(audit: list[Row] | None) -> str:
    head = "## Learning rates\n\n"
    if not audit:
        return head + "The table `lr_audit` is not there.\n"
    edges = [row for row in audit if row["at_edge"] not in ("no", "")]
    n_inside = sum(row["at_edge"] == "no" for row in audit)
    text = f"The best rate of {n_inside} of {len(audit)} sweeps lies inside its grid.\n"
    if without := [f"{row['label']} L{row['n_layers']}" for row in audit if not row["at_edge"]]:
        text += f"\nWithout any loss: {', '.join(without)}.\n"
    if edges:
        named = [f"- {row['label']} L{row['n_layers']}: best {row['best_lr']} of {row['grid']}" for row in edges]
        text += "\nBest at the edge of the grid, so no optimum was found:\n\n" + "\n".join(named) + "\n"
    return head + text


def _trend(trend: list[Row] | None) -> str:
    head = "## Depth at equal size\n\n"
    if not trend:
        return head + "The table `depth_trend` is not there.\n"
    header = ["design", "seed", "slope [nats/token per doubling of depth]", "best shape", "without a loss"]
    rows = [
        [row["label"], row["seed"], _interval(row, "slope", "slope_lo", "slope_hi"), row["best_shape"], row["absent"]]
        for row in trend
    ]
    return head + _markdown(header, rows)


def _late(late: list[Row] | None) -> str:
    head = "## Late layers\n\n"
    if not late:
        return head + "The table `late_layers` is not there.\n"
    header = ["design", "L", "measure", "skip", "share of late pairs above the paper's threshold"]
    rows = [
        [row["label"], row["n_layers"], row["measure"], row["skip_mode"], _interval(row, "fraction", "lo", "hi")]
        for row in late
    ]
    return head + _markdown(header, rows)


def _claims(claims: list[Row] | None) -> str:
    head = "## The paper's claims\n\n"
    if not claims:
        return head + "The table `claims` is not there.\n"
    judged = [row for row in claims if row["verdict"] in ("agrees", "disagrees", "undecided")]
    n_others = sum(row["verdict"] == "not run" for row in claims)
    named = f"{n_others} of {len(claims)} are not run: they name a shape of the paper's, or something is missing.\n\n"
    rows = [[row["claim"], _interval(row, "ours", "lo", "hi"), row["unit"], row["verdict"]] for row in judged]
    return head + named + _markdown(["claim", "ours", "unit", "verdict"], rows)


def _meaning(losses: list[Row]) -> str:
    ranges = {}
    for name, column in {"parameters": "n_params", "tokens": "tokens"}.items():
        values = sorted({int(row[column]) for row in losses if row[column]}) or [0]
        ranges[name] = f"{values[0]:,}" + f" to {values[-1]:,}" * (len(values) > 1)
    return MEANING.format(**ranges)


def _figures(pictures: Iterable[str]) -> str:
    lines = [f"### {name.replace('_', ' ')}\n\n![{name.replace('_', ' ')}]({STUDY}/{name}.png)\n" for name in pictures]
    return "## Figures\n\n" + ("\n".join(lines) or "There are none yet.\n")

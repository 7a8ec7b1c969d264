"""The sections of the page of a study's results (`results_page`): each is Markdown from rows of one table.

A section gets the rows of its table and all tables, as text from their CSV files.
"""

from collections.abc import Callable, Iterable

from depthbench.tables.seed_noise import Noise

Row = dict[str, str]
Tables = dict[str, list[Row]]


def cell(row: Row) -> str:
    """Return the loss of a run with its interval; diverged and missing in words."""
    if row["status"] != "ok":
        return row["status"]
    loss, lo, hi = (float(row[key] or "nan") for key in ("loss", "loss_lo", "loss_hi"))
    return f"{loss:.3f} [{lo:.3f}, {hi:.3f}]"


def spread(values: Iterable[float], form: str = ",.0f") -> str:
    """Return the least and the largest of values, one number if they are equal."""
    found = sorted(set(values)) or [0]
    return f"{found[0]:{form}}" + f" to {found[-1]:{form}}" * (len(found) > 1)


def _markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(header), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(text.replace('|', '/') for text in line)} |" for line in lines) + "\n"


def _interval(row: Row, value: str, lo: str, hi: str, form: str = "+.4f") -> str:
    if not row[value]:
        return "-"
    number = f"{float(row[value]):{form}}"
    return f"{number} [{float(row[lo]):{form}}, {float(row[hi]):{form}}]" if row[lo] else number


def _shape(row: Row) -> tuple[int, int]:
    return int(row["n_layers"]), int(row["d_model"])


def _by_shape(rows: list[Row], text: Callable[[Row], str]) -> str:
    """Return a table of designs by shapes; `text` makes the cell of one run, several seeds are put side by side."""
    shapes = sorted({_shape(row) for row in rows})
    found: dict[tuple[str, int, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: int(row["seed"])):
        found.setdefault((row["label"], *_shape(row)), []).append(row)
    lines = [
        [label, *("; ".join(map(text, found.get((label, *shape), []))) or "-" for shape in shapes)]
        for label in dict.fromkeys(row["label"] for row in rows)
    ]
    return _markdown(["design", *(f"L = {depth}, d = {width}" for depth, width in shapes)], lines)


def losses(table: list[Row], _: Tables) -> str:
    """Return the losses of the main shapes and of the repeated seeds."""
    rows = [row for row in table if {"main", "seeds"} & set(row["suites"].split(", "))]
    head = (
        "Held-out loss [nats/token] with 95 % intervals over documents, seed by seed; in brackets the rank among the"
        " designs at that shape, by seed 0 alone."
    )
    return f"{head}\n\n" + _by_shape(rows, lambda row: cell(row) + f" ({row['rank']})" * bool(row["rank"]))


def noise(table: list[Row] | None) -> str:
    """Return which differences the seeds resolve; a mean over three seeds is what the study can have."""
    found = {row["scale"]: Noise(float(row["sd"]), int(row["df"])) for row in table or [] if row["sd"]}
    if not found:
        return "No seeds are repeated, or the table `seed_noise` is not there: what is resolved is not known.\n"
    return "\n".join(
        f"Over seeds, which change the first weights and the order of the data, the standard deviation at scale {scale}"
        f" is {own.sd:.4f} nats/token (pooled, {own.df} degrees of freedom). The smallest difference that is"
        f" significant at 5 % is {own.resolvable():.4f} between two single runs, {own.resolvable(3):.4f} between two"
        " means over three seeds; a smaller one is no result.\n"
        for scale, own in found.items()
    )


def differences(paired: list[Row], _: Tables) -> str:
    """Return the differences from Pre-LN, seed by seed."""
    rows = [row for row in paired if row["contrast"] == "vs_preln_same_shape" and row["suite"] in ("main", "seeds")]
    once = {(row["run_id"], row["run_id_ref"]): row for row in rows}
    documents = spread(int(row["n_units"]) for row in rows if row["n_units"])
    head = (
        f"Loss less that of Pre-LN of the same shape and seed, on the same {documents} documents [nats/token], seed by"
        " seed; intervals over documents. Negative is better than Pre-LN.\n\n"
    )
    return head + _by_shape(list(once.values()), lambda row: row["note"] or _interval(row, "diff", "lo", "hi", "+.3f"))


def rates(audit: list[Row], tables: Tables) -> str:
    """Return what the sweep says of the declared rates."""
    losses = {(row["label"], *_shape(row), row["lr"], row["seed"]): row for row in tables["losses"]}

    def line(row: Row) -> list[str]:
        declared = losses.get((row["label"], *_shape(row), row["declared_lr"], row["seed"]), {}).get("loss")
        behind = f"{float(declared) - float(row['best_loss']):.4f}" if declared and row["best_lr"] else "-"
        margin = f"{float(row['margin_to_second']):.4f}" if row["margin_to_second"] else "-"
        edge = f"at the {row['at_edge']} edge: no optimum"
        words = {"no": "inside", "": "no loss", "single": "one rate only"}.get(row["at_edge"], edge)
        shape = f"L = {row['n_layers']}"
        end = [words, margin, row["margin_exceeds_noise"] or "-", row["diverged"] or "-"]
        return [row["label"], shape, row["grid"], row["declared_lr"], behind, row["best_lr"] or "-", *end]

    head = (
        "The declared rate is that of all other results, also where another one is best or the best one lies at the"
        " edge of its grid. Margin: loss of the second best rate less that of the best [nats/token].\n\n"
    )
    n_inside = sum(row["at_edge"] == "no" for row in audit)
    count = f"\nThe best rate of {n_inside} of {len(audit)} sweeps lies inside its grid.\n"
    header = ["design", "shape", "grid", "declared", "behind the best by [nats/token]", "best", "where", "margin"]
    return head + _markdown([*header, "above the noise of one seed", "diverged"], map(line, audit)) + count


def trend(table: list[Row], _: Tables) -> str:
    """Return the slopes over depth, seed by seed."""
    head = (
        "Slope of the loss over log2(L), negative where depth helps; intervals over documents. What another seed may"
        " change is not in them: compare the seeds.\n\n"
    )
    header = ["design", "seed", "slope [nats/token per doubling of depth]", "best shape", "of the resamples", "absent"]
    rows = [row for row in table if row["suite"] == "main" or (row["suite"] == "seeds" and row["seed"] != "0")]
    lines = [
        [
            *(row["label"], row["seed"], _interval(row, "slope", "slope_lo", "slope_hi"), row["best_shape"] or "-"),
            *(f"{float(row['best_share']):.0%}" if row["best_share"] else "-", row["absent"] or "-"),
        ]
        for row in rows
    ]
    return head + _markdown(header, lines)


def late(table: list[Row], _: Tables) -> str:
    """Return the shares of late layers that depend on each other, a table for each score."""
    text = (
        "Share of the pairs of late layers, the last three quarters, whose score is above the paper's threshold,"
        " with intervals over documents, not over trainings. A shallow model has few pairs.\n"
    )
    titles = {
        "causal": "Causal score: what skipping the earlier layer changes in the later one",
        "permutation": "Permutation score: what exchanging the two changes in the loss",
    }
    for measure, title in titles.items():
        rows = [row for row in table if row["measure"] == measure]
        pairs = {row["n_layers"]: row["n_pairs"] for row in rows if row["n_pairs"]}
        counts = ", ".join(f"{n} at L = {depth}" for depth, n in sorted(pairs.items(), key=lambda pair: int(pair[0])))
        rows = [row | {"label": row["label"] + " (released skip)" * (row["skip_mode"] == "released")} for row in rows]
        text += f"\n{title} (pairs: {counts}).\n\n" + _by_shape(rows, _share)
    return text


def _share(row: Row) -> str:
    return _interval(row, "fraction", "lo", "hi", ".2f") if row["fraction"] else row["status"].replace("_", " ")


def claims(table: list[Row], _: Tables) -> str:
    """Return the claims that could be judged, and how many could not."""
    judged = [row for row in table if row["verdict"] in ("agrees", "disagrees", "undecided")]
    n_not_run = sum(row["verdict"] == "not run" for row in table)
    n_contradictions = sum(row["verdict"] == "contradiction" for row in table)
    head = (
        f"Whether the same holds at this size, which neither proves nor refutes the paper. Of {len(table)} claims"
        f" {n_not_run} are not run: they name a shape of the paper's or a suite that this study has not, or something"
        f" is missing; {n_contradictions} are contradictions within the paper. Intervals of losses hold the noise of"
        " training where seeds are repeated; those of layers are over documents alone, one seed.\n\n"
    )
    rows = [
        [row["claim"], _interval(row, "ours", "lo", "hi"), row["unit"], row["verdict"], row["note"]] for row in judged
    ]
    return head + _markdown(["claim", "ours", "unit", "verdict", "note"], rows)

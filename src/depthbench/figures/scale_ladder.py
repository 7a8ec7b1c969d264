"""Held-out loss over the aspect ratio at several budgets, a panel for each (paper Fig. 3).

The suites `ladder` and `large`: models of equal size within a panel, which grows from panel to panel, as do the tokens
of a run. Marks, bars and the note are those of `validation_loss`; the paper has values for its 400M models alone.
"""

import textwrap

import pandas as pd
import plotnine as p9

from depthbench import reference
from depthbench.artifacts import ArtifactSpec
from depthbench.figures import _aspect, _theme
from depthbench.figures.validation_loss import overheads
from depthbench.tables import losses

FILES = ("run.json", "validation.csv", "validation_docs.parquet")
COLUMNS = [
    *("panel", "design", "label", "n_layers", "d_model", "aspect_ratio", "lr", "seed", "status"),
    *("loss", "loss_lo", "loss_hi", "published", "n_params", "overhead_pct", "tokens", "run_id"),
]


def draw(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> tuple[p9.ggplot, pd.DataFrame]:
    """Return the plot and its frame: one row per run, missing runs included (`status`); the panel is the scale."""
    table = losses.held_out(frames, spec)
    frame = table[table["seed"] == 0].assign(panel=lambda rows: rows["scale"])
    frame = frame.assign(published=reference.beside(frame, frames, "val_loss", "main"))
    sentences = [*overheads(frame), *remarks(table)]
    if frame["published"].notna().any():
        sentences += [reference.NOTE, reference.ONE_MORE]
    note = textwrap.fill(" ".join(sentences), _theme.NOTE_WIDTH)
    return _aspect.plot(reference.marks(frame), headings(frame), "Held-out loss [nats/token]", note, spec), frame[
        COLUMNS
    ]


def headings(frame: pd.DataFrame) -> dict[str, str]:
    """Return the heading of each scale, small ones first: median parameters, tokens of a run that did not diverge."""
    drawn = frame[frame["status"] != "missing"]
    budgets = drawn.groupby("scale").agg({"n_params": "median"}).sort_values("n_params")
    budgets["tokens"] = drawn[drawn["status"] == "ok"].groupby("scale")["tokens"].max()
    return {
        str(scale): f"{size(row['n_params'])} parameters"
        + (f", {size(row['tokens'])} tokens" if pd.notna(row["tokens"]) else "")  # of imports not told
        for scale, row in budgets.iterrows()
    }


def size(number: float) -> str:
    """Return a count in few digits: 0.2M, 400M, 1.6B."""
    unit, factor = ("B", 1e9) if number >= 1e9 else ("M", 1e6)
    return f"{number / factor:.2g}{unit}" if number / factor < 100 else f"{number / factor:.0f}{unit}"


def remarks(table: pd.DataFrame) -> list[str]:
    """Return sentences that name the runs that are not drawn."""
    named = []
    missing, others = table[table["status"] == "missing"], table[table["seed"] != 0]
    for title, rows in {"Missing": missing, "Other seeds, not drawn": others}.items():
        scales = [
            f"{label} {scale} {_aspect.names(runs)}"
            for (label, scale), runs in rows.groupby(["label", "scale"], sort=False)
        ]
        named += [f"{title}: {'; '.join(scales)}."] if scales else []
    return named

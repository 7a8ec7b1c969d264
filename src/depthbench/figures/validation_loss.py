"""Held-out loss over the aspect ratio d_model / n_layers (paper Fig. 1 left, Fig. 2).

Panels: every design of the main suite, on the shapes that all of them have (`common`); the designs that were
trained at every main shape, where these are more (`all`; Pre-LN, HC and Full AttnRes in the paper); the iso-backbone
suite, whose shapes have equal size without the embeddings (`backbone`). The axis is logarithmic and runs from
shallow-wide to deep-narrow. Thin bars are 95 % intervals over documents; a diverged run is a named cross at
the upper edge; what is not drawn is named below, and which designs are larger than the budget allows.

Hollow marks are the paper's values where the study shows them (`reference`). Losses of the study's key `compare` are
grey, in each panel that has their shape; one of a shape that none has stands in that of all shapes, else the first.
"""

import dataclasses
import textwrap

import pandas as pd
import plotnine as p9

from depthbench import reference
from depthbench.artifacts import ArtifactSpec
from depthbench.figures import _aspect, _theme
from depthbench.schema import Family
from depthbench.tables import losses

FILES = ("run.json", "validation.csv", "validation_docs.parquet")
HEADINGS = {
    "common": "equal size",
    "all": "equal size, all shapes",
    "backbone": "equal size without embeddings",
}
COLUMNS = [
    *("panel", "design", "label", "n_layers", "d_model", "aspect_ratio", "lr", "seed", "status"),
    *("loss", "loss_lo", "loss_hi", "published", "overhead_pct", "run_id"),
]
SUITES = {"common": "main", "all": "main", "backbone": "backbone"}
BUDGET = 3.0  # percent, how far sizes of one budget may be apart in the paper


def draw(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> tuple[p9.ggplot, pd.DataFrame]:
    """Return the plot and its frame: one row per panel and run, missing runs included, and per loss to compare."""
    table = losses.held_out(frames, spec)
    frame = with_published(panels(table), frames)
    sentences = [*overheads(frame), *remarks(frame, table)]
    if frame["published"].notna().any():
        sentences += [reference.NOTE, reference.ONE_MORE]
    if "compare" in frames:
        others = compared(frames["compare"], frame)
        frame = pd.concat([frame, others], ignore_index=True)
        named = dict.fromkeys(zip(others["design"], others["label"], strict=True))
        grey: dict[str, tuple[str, Family]] = {design: (label, "baseline") for design, label in named}
        spec = dataclasses.replace(spec, labels={**spec.labels, **grey})
        sentences.append(f"From {spec.compare}: {', '.join(label for _, label in named)}.")
    note = textwrap.fill(" ".join(sentences), _theme.NOTE_WIDTH)
    shown = reference.marks(frame)
    return _aspect.plot(shown, HEADINGS, "Held-out loss [nats/token]", note, spec), frame[COLUMNS]


def panels(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `losses` once for each panel that they belong to; runs of seed 0 only."""
    first = table[table["seed"] == 0]
    suites = first["suites"].str.split(", ")
    main, backbone = (first[suites.map(lambda names, s=suite: s in names)] for suite in ("main", "backbone"))
    shapes = [set(zip(runs["n_layers"], runs["d_model"], strict=True)) for _, runs in main.groupby("design")]
    common = set.intersection(*shapes) if shapes else set()
    on_common = [shape in common for shape in zip(main["n_layers"], main["d_model"], strict=True)]
    every = set().union(*shapes)
    complete = main.groupby("design")["run_id"].transform("size") == len(every)
    parts = {"common": main[on_common], "all": main[complete & (len(every) > len(common))], "backbone": backbone}
    return pd.concat([part.assign(panel=key) for key, part in parts.items()], ignore_index=True)


def with_published(frame: pd.DataFrame, frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of `panels` with the paper's loss of their panel, `published`."""
    values: dict = {}
    for panel, rows in frame.groupby("panel"):
        values |= dict(zip(rows.index, reference.beside(rows, frames, "val_loss", SUITES[str(panel)]), strict=True))
    return frame.assign(published=pd.Series(values, dtype="float64"))


def compared(table: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the losses to compare once for each panel of `frame` that shows them; they have no run."""
    drawn = frame[frame["status"] != "missing"].groupby("panel")
    shapes = {key: {*zip(rows["n_layers"], rows["d_model"], strict=True)} for key, rows in drawn}
    widest = [key for key in ("all", *HEADINGS) if key in shapes][:1]
    rows = []
    for row in table.to_dict("records"):
        keys = [key for key in HEADINGS if (row["n_layers"], row["d_model"]) in shapes.get(key, ())] or widest
        known = {"design": f"compare: {row['label']}", "aspect_ratio": row["d_model"] / row["n_layers"], "status": "ok"}
        rows += [row | known | {"panel": key} for key in keys]
    return pd.DataFrame(rows, columns=["panel", "design", "aspect_ratio", "status", *table.columns])


def overheads(frame: pd.DataFrame) -> list[str]:
    """Return a sentence that names the designs above the size budget, with their range over the shapes drawn."""
    drawn = frame[frame["status"] != "missing"].groupby("label", sort=False)["overhead_pct"].agg(["min", "max"])
    above = drawn[drawn["max"] > BUDGET]
    named = []
    for label, low, high in above.round(1).itertuples():
        percent = f"{high:.1f} %" if low == high else f"{low:.1f} to {high:.1f} %"
        named.append(f"{label} {percent}".replace(" ", "\N{NO-BREAK SPACE}"))
    return [f"More parameters than Pre-LN of the same shape: {', '.join(named)}."] if named else []


def remarks(frame: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """Return sentences that name what is not drawn: panels, runs that are missing, runs of no panel."""
    drawn = frame[frame["status"] != "missing"]
    found = []
    for key in HEADINGS:
        if key not in set(frame["panel"]):
            if key != "all":  # what it would show stands in the panel before
                found.append(f"Left out: {HEADINGS[key]}; the study declares no such runs.")
        elif key not in set(drawn["panel"]):
            found.append(f"Left out: {HEADINGS[key]}; all its runs are missing.")
    homeless = table[~table["run_id"].isin(frame["run_id"])]
    for title, rows in {"Missing": table[table["status"] == "missing"], "In no panel": homeless}.items():
        named = [f"{label} {_aspect.names(runs)}" for label, runs in rows.groupby("label", sort=False)]
        found += [f"{title}: {'; '.join(named)}."] if named else []
    return found

"""What the figures of layer analyses share: runs with their rows, names of panels, and the note below.

A table without rows of its own has one row whose status says why; a missing run has one of status `missing`.
"""

import textwrap
from collections.abc import Callable
from typing import Any

import pandas as pd

from depthbench.artifacts import ArtifactSpec, runs_frame
from depthbench.figures import _aspect, _theme

MEASURED = ("ok", "approximate")
# What stands in a panel without values, and what the note says of its runs.
WORDS = {
    "missing": "missing",
    "diverged": "diverged",
    "not_requested": "not analysed",
    "not_applicable": "does not\napply",
    "too_shallow": "too shallow",
    "undefined": "undefined",
    "none": "no such run",
}
TITLES = {
    "missing": "Missing",
    "diverged": "Diverged",
    "not_requested": "Not analysed, since the study asks for no analysis of it",
    "not_applicable": "The measure does not apply",
    "too_shallow": "Too shallow, without a pair of layers to compare",
    "undefined": "No late pair has a score",
    "approximate": "Approximate, without gains and centring",
}
RUN = ["design", "label", "scale", "n_layers", "d_model", "aspect_ratio", "lr", "seed", "status", "run_id"]
# What tells runs of one design and depth apart.
MARKS: dict[str, Callable[[Any], str]] = {
    "d_model": "d{}".format,
    "lr": lambda lr: f"at {_theme.rate_label(lr)}",
    "scale": str,
}


def joined(rows: pd.DataFrame, spec: ArtifactSpec) -> pd.DataFrame:
    """Return the runs of seed 0 in the order in which they are shown, with their rows of one analysis."""
    table = runs_frame(spec).merge(rows.drop(columns="data_id"), on="run_id", how="left", validate="1:m")
    table = table[table["seed"] == 0]
    return table.assign(status=table["status"].fillna("missing")).reset_index(drop=True)


def at_one(table: pd.DataFrame, spec: ArtifactSpec) -> pd.DataFrame:
    """Return the rows of runs at the depth at which designs are compared."""
    return table[table["n_layers"] == spec.depths.one]


def in_suite(table: pd.DataFrame, suite: str) -> pd.DataFrame:
    """Return the rows of runs of a suite."""
    return table[table["suites"].str.split(", ").map(lambda names: suite in names).astype(bool)]


def shapes(table: pd.DataFrame) -> pd.Series:
    """Return the name of each row's shape, `L16`, and more where runs of a design and depth differ in more."""
    by_depth = table.drop_duplicates("run_id").groupby(["design", "n_layers"])
    names = "L" + table["n_layers"].astype(str)
    for column, text in MARKS.items():
        if by_depth[column].nunique().gt(1).any():
            names += " " + table[column].map(text)
    return names


def labels(table: pd.DataFrame) -> pd.Series:
    """Return the name of each row's design for people; designs of one name have their key, too."""
    shared = table.groupby("label")["design"].transform("nunique") > 1
    return table["label"].where(~shared, table["label"] + " (" + table["design"] + ")")


def by_shape(table: pd.DataFrame) -> pd.DataFrame:
    """Add `panel`, the name of each row's shape; it is empty where there is one shape only."""
    names = shapes(table)
    return table.assign(panel=names if names.nunique() > 1 else "")


def note(spec: ArtifactSpec, table: pd.DataFrame, *sentences: str) -> str:
    """Return the note below: the given sentences, then the runs of which something is to be said."""
    return textwrap.fill(" ".join([*filter(None, sentences), *remarks(spec, table)]), _theme.NOTE_WIDTH)


def remarks(spec: ArtifactSpec, table: pd.DataFrame) -> list[str]:
    """Return sentences that name runs without values, runs with approximate ones, and those of other seeds."""
    runs = table.drop_duplicates(["run_id", "status"])
    every = runs_frame(spec)
    several = every.duplicated(["design", "scale", "n_layers", "d_model", "seed"])  # rates of one shape
    rates = set(every.loc[several, "label"])
    groups = {title: runs[runs["status"] == status] for status, title in TITLES.items()}
    groups["Other seeds, not drawn"] = every[every["seed"] != 0]
    found = []
    for title, rows in groups.items():
        named = [f"{label} {_aspect.names(own, label in rates)}" for label, own in rows.groupby("label", sort=False)]
        found += [f"{title}: {'; '.join(named)}."] if named else []
    return found

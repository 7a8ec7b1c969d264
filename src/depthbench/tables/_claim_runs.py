"""The runs that a claim of the paper speaks of, and what is known of them."""

from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from depthbench.artifacts import ArtifactSpec
from depthbench.errors import UserError
from depthbench.tables._measured import measured, resampled, shape_names
from depthbench.tables.seed_noise import Noise, pooled

KEYS = ("suite", "scale", "design", "n_layers", "d_model")
SHAPE = ["scale", "n_layers", "d_model"]


class Measured(NamedTuple):
    """A number of ours with its interval, an exact one (a closed form) is its own; the note says what is not in it."""

    value: float
    lo: float
    hi: float
    note: str = ""


class Unmeasured(Exception):  # noqa: N818 - it is no error
    """Why there is no number, and the verdict that follows: not run, or undecided."""

    def __init__(self, verdict: str, reason: str):
        super().__init__(reason)
        self.verdict = verdict


@dataclass(frozen=True)
class Evidence:
    """Everything that was measured: the runs of seed 0, their losses in each resample, the noise of a scale's seeds."""

    spec: ArtifactSpec
    frames: dict[str, pd.DataFrame]
    runs: pd.DataFrame
    samples: pd.DataFrame
    noise: dict[str, Noise]

    @classmethod
    def of(cls, frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> "Evidence":
        """Gather it; raises UserError E-RUN for runs that cannot be compared."""
        runs = measured(frames, spec)
        return cls(spec, frames, runs[runs["seed"] == 0], resampled(frames, spec), pooled(runs))

    def select(self, selector: str) -> list[pd.DataFrame]:
        """Return the runs of each part of a selector, `design=hc n_layers=70 | n_layers=42`; a part changes the first.

        Raises:
            Unmeasured: if the study has no run of a part.
            UserError: E-REFERENCE for a selector that cannot be read.
        """
        wanted: dict[str, str] = {}
        found = []
        for part in selector.split("|"):
            pairs = dict(pair.partition("=")[::2] for pair in part.split())
            if strange := [key for key, value in pairs.items() if key not in KEYS or not value]:
                raise UserError("E-REFERENCE", f"claims.csv: selector {selector!r}: {strange[0]} is none of {KEYS}")
            wanted |= pairs
            found.append(self._runs(wanted))
        return found

    def _runs(self, wanted: dict[str, str]) -> pd.DataFrame:
        rows = self.runs
        for key, value in wanted.items():
            names = set(value.split(","))
            if key == "suite":
                rows = rows[[bool(names & set(suites.split(", "))) for suites in rows["suites"]]]
            else:
                rows = rows[rows[key].astype("str").isin(names)]
        if rows.empty:
            raise Unmeasured("not run", "the study has no such run")
        return rows.sort_values(["n_layers", "d_model"])


def present(rows: pd.DataFrame) -> pd.DataFrame:
    """Return runs of one budget, of several rates at a shape the one with the lowest loss.

    Raises:
        Unmeasured: if one is missing or has no loss, or if there are several budgets.
    """
    if (missing := rows[rows["status"] == "missing"]).size:
        raise Unmeasured("not run", f"missing: {', '.join(missing['label'] + ' ' + shape_names(missing))}")
    rows = rows.sort_values("loss", na_position="last").drop_duplicates([*SHAPE, "design"])
    if (diverged := rows[rows["status"] != "ok"]).size:
        raise Unmeasured("undecided", f"diverged: {', '.join(diverged['label'] + ' ' + shape_names(diverged))}")
    if rows["scale"].nunique() > 1:
        raise Unmeasured("undecided", f"several budgets: {', '.join(rows['scale'].unique())}")
    return rows.sort_values(["n_layers", "d_model"]).reset_index(drop=True)


def one(rows: pd.DataFrame) -> pd.Series:
    """Return the only run; raises Unmeasured if there are several."""
    if len(rows) > 1:
        raise Unmeasured("undecided", f"several shapes: {', '.join(shape_names(rows))}")
    return rows.iloc[0]


def paired(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return runs side by side, those of `second` with `_ref`: the only two of a design, or those of a common shape.

    Raises:
        Unmeasured: if they have no shape in common.
    """
    if len(first) == len(second) == 1 and first["design"].iloc[0] == second["design"].iloc[0]:
        return first.merge(second, how="cross", suffixes=("", "_ref"))
    pairs = first.merge(second, on=SHAPE, suffixes=("", "_ref"))
    if pairs.empty:
        raise Unmeasured("not run", "no shape in common")
    return pairs

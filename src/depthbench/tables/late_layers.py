"""How many pairs of late layers depend on each other: the numbers behind figure `layer_perturbation`.

Share of the pairs of the last three quarters of the layers whose score is above a threshold: of the causal score for
each way to skip a layer, and of the permutation score. `fraction`, `lo` and `hi` are those of the paper's threshold
`tau`, with 95 % intervals over documents; `fraction_0.30` and its like are those of other thresholds.
"""

import pandas as pd

from depthbench.artifacts import ArtifactSpec, runs_frame

FILES = ("analysis/causal_summary.csv", "analysis/permutation_summary.csv")
THRESHOLDS = (0.05, 0.10, 0.15, 0.30, 0.45, 0.60)
FRACTIONS = [f"fraction_{tau:.2f}" for tau in THRESHOLDS]
COLUMNS = [
    *("suites", "design", "label", "scale", "n_layers", "d_model", "lr", "seed", "measure", "skip_mode", "status"),
    *("tau", "n_pairs", "n_undefined", "fraction", "lo", "hi", *FRACTIONS, "run_id"),
]
PRINTED = {
    "label": ("Design", "{}"),
    "n_layers": ("L", "{}"),
    "d_model": ("d", "{}"),
    "seed": ("Seed", "{}"),
    "measure": ("Measure", "{}"),
    "skip_mode": ("Skip", "{}"),
    "status": ("Status", "{}"),
    "n_pairs": ("Pairs", "{}"),
    "tau": ("Threshold", "{:.2f}"),
    "fraction": ("Share", "{:.3f}"),
    "lo": ("Low", "{:.3f}"),
    "hi": ("High", "{:.3f}"),
}


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per run, measure and way to skip, in display order; without values all but the name is empty."""
    runs = runs_frame(spec)
    parts = [
        runs.merge(shares(rows), on="run_id", how="left").assign(measure=measure)
        for measure, rows in curves(frames).items()
    ]
    runs = runs.assign(place=range(len(runs)))
    table = pd.concat(parts, ignore_index=True).merge(runs[["run_id", "place"]], on="run_id")
    table["status"] = table["status"].fillna("missing")
    table = table.astype({"n_pairs": "Int64", "n_undefined": "Int64"})
    return table.sort_values("place", kind="stable", ignore_index=True)[COLUMNS]


def curves(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return the shares over thresholds by measure; where no late pair has a score the status says so."""
    found = {}
    for measure in ("causal", "permutation"):
        rows = frames[f"{measure}_summary"]
        rows = rows if "skip_mode" in rows else rows.assign(skip_mode="")
        found[measure] = rows.assign(
            status=rows["status"].mask(rows["reason"].isin(["too_shallow", "undefined"]), rows["reason"])
        )
    return found


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run and way to skip: the share at the paper's threshold, and those at others."""
    cell = ["run_id", "skip_mode"]
    # A table without values has one row, of no threshold.
    paper = rows[rows["is_paper"].fillna(False).astype(bool) | rows["tau"].isna()].drop_duplicates(cell)
    steps = rows["tau"].mul(100).round()
    others = pd.DataFrame(
        {
            name: rows[steps == round(100 * tau)].set_index(cell)["fraction"]
            for name, tau in zip(FRACTIONS, THRESHOLDS, strict=True)
        },
        dtype="float64",
    )
    kept = [*cell, "status", "tau", "n_pairs", "n_undefined", "fraction", "lo", "hi"]
    return paper[kept].join(others, on=cell)

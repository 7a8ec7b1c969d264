"""What is trained: the designs, shapes, tokens and rates of each suite (paper Table 2).

Designs of a suite that share scale, shapes and seeds stand in one row. A run may belong to several suites.
"""

import pandas as pd

from depthbench.artifacts import ArtifactSpec, runs_frame

FILES = ()
ORDER = ("main", "backbone", "ladder", "large", "moda_norms", "sweep", "seeds")  # others after these
COLUMNS = ["suite", "scale", "fixed", "designs", "shapes", "steps", "warmup_steps", "tokens", "lr", "seeds", "n_runs"]
# What all shapes of a suite have in common, as nearly as whole widths allow.
FIXED = {
    "main": "parameters",
    "backbone": "parameters without embeddings",
    "ladder": "parameters",
    "large": "parameters",
}
PRINTED = {
    "suite": ("Suite", "{}"),
    "scale": ("Scale", "{}"),
    "fixed": ("Held fixed", "{}"),
    "designs": ("Designs", "{}"),
    "shapes": ("Shapes (L, d)", "{}"),
    "steps": ("Steps", "{:,}"),
    "warmup_steps": ("Warm-up", "{:,}"),
    "tokens": ("Tokens", "{:,}"),
    "lr": ("Learning rate", "{}"),
    "seeds": ("Seeds", "{}"),
    "n_runs": ("Runs", "{}"),
}


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per suite, scale and group of designs; tokens are those of one run."""
    plans = pd.DataFrame([spec.plan(path) for path in spec.runs])
    plans["run_id"] = [f"{spec.study}/runs/{path}" for path in spec.runs]
    table = by_place(runs_frame(spec).merge(plans[["run_id", "steps", "warmup_steps", "tokens"]], on="run_id"))
    rows = []
    for (_, suite, _, scale), part in table.groupby(["place", "suite", "tokens", "scale"]):
        groups: dict[tuple, list[str]] = {}
        for design, own in part.groupby("design", sort=False):
            cells = own[["n_layers", "d_model", "seed"]].drop_duplicates()
            groups.setdefault(tuple(cells.itertuples(index=False)), []).append(str(design))
        rows += [_row(str(suite), str(scale), part[part["design"].isin(designs)]) for designs in groups.values()]
    return pd.DataFrame(rows, columns=COLUMNS)


def by_place(table: pd.DataFrame) -> pd.DataFrame:
    """Return runs once for each of their suites, named in `suite`; `place` is where it stands among the suites."""
    table = table.assign(suite=table["suites"].str.split(", ")).explode("suite")
    place = [ORDER.index(suite) if suite in ORDER else len(ORDER) for suite in table["suite"]]
    return table.assign(place=place).sort_values(["place", "suite"], kind="stable", ignore_index=True)


def _row(suite: str, scale: str, part: pd.DataFrame) -> dict:
    shapes = dict.fromkeys(zip(part["n_layers"], part["d_model"], strict=True))
    return {
        "suite": suite,
        "scale": scale,
        "fixed": FIXED.get(suite, ""),
        "designs": ", ".join(part["label"].unique()),
        "shapes": ", ".join(f"({depth}, {width})" for depth, width in shapes),
        "steps": part["steps"].iloc[0],
        "warmup_steps": part["warmup_steps"].iloc[0],
        "tokens": part["tokens"].iloc[0],
        "lr": rates(part),
        "seeds": ", ".join(map(str, sorted(part["seed"].unique()))),
        "n_runs": len(part),
    }


def rates(part: pd.DataFrame) -> str:
    """Return the rates of some runs: `2e-3`, or where designs differ `2e-3 (Pre-LN, HC); 1e-2 (LNS)`."""
    groups = part.groupby("label", sort=False)["lr"]
    return shared({str(label): ", ".join(sorted(set(tags), key=float)) for label, tags in groups})


def shared(own: dict[str, str]) -> str:
    """Return what each of some names has: `2e-3`, or where they differ `2e-3 (400m, 500m); 5e-4 (1600m)`."""
    names = {text: [name for name in own if own[name] == text] for text in dict.fromkeys(own.values())}
    if len(names) == 1:
        return next(iter(names))
    return "; ".join(f"{text} ({', '.join(having)})" for text, having in names.items())

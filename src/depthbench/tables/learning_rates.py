"""The declared learning rate of each design and scale, and what the sweep says of it (paper Table 4).

Where the sweep has several shapes, `best_lr` lists the best rates of all of them; `lr_audit` has them one by
one. A best rate at the edge of its grid is no optimum: a better one may lie beyond. `published` is the paper's
rate where the study shows published values (`reference`); most are inferred from its text, since its table is lost.
"""

import pandas as pd

from depthbench import reference
from depthbench.artifacts import ArtifactSpec
from depthbench.tables._measured import measured, yes_no
from depthbench.tables.lr_audit import audit, swept

FILES = ("validation.csv",)
COLUMNS = [
    *("design", "label", "scale", "declared_lr", "grid", "best_lr", "declared_is_best", "at_edge"),
    *("n_shapes", "diverged", "missing", "published"),
]
PRINTED = {
    "label": ("Design", "{}"),
    "scale": ("Scale", "{}"),
    "declared_lr": ("Declared", "{}"),
    "grid": ("Grid", "{}"),
    "best_lr": ("Best", "{}"),
    "declared_is_best": ("Declared is best", "{}"),
    "at_edge": ("At edge", "{}"),
    "n_shapes": ("Shapes", "{}"),
    "diverged": ("Diverged", "{}"),
    "missing": ("Missing", "{}"),
    "published": ("Published", "{:g}"),
}


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per design and scale; columns of the sweep are empty where there is none."""
    rows = audit(swept(measured(frames, spec), spec), noise={})
    found = {key: _summary(part) for key, part in rows.groupby(["design", "scale"])}
    scales = sorted({(plan["tokens"], plan["scale"]) for plan in spec.plans.values()})
    declared = {(plan["design"], plan["scale"]): plan["declared_lr"] for plan in spec.plans.values()}
    table = [
        {"design": design, "label": spec.labels[design][0], "scale": scale, "declared_lr": declared[design, scale]}
        | found.get((design, scale), {})
        for design in spec.designs
        for _, scale in scales
        if (design, scale) in declared
    ]
    told = [reference.published(frames, *key) for key in (("optimal_lr", "main"), ("lr", "large"))]
    theirs = pd.concat(told).set_index(["design", "scale"])["value"].to_dict()
    for row in table:
        row["published"] = theirs.get((row["design"], row["scale"]), theirs.get(("all", row["scale"])))
    return pd.DataFrame(table, columns=COLUMNS).astype({"n_shapes": "Int64", "published": "float64"})


def _summary(rows: pd.DataFrame) -> dict:
    """Return what the audits of one design and scale, a row per shape, have in common."""
    best = sorted(rows["best_lr"].dropna().unique(), key=float)
    edges = [edge for edge in rows["at_edge"].dropna().unique() if edge != "no"]
    return {
        "grid": rows["grid"].iloc[0],
        "best_lr": ", ".join(best) or None,
        "declared_is_best": yes_no(best == [rows["declared_lr"].iloc[0]] if best else None),
        "at_edge": (", ".join(edges) or "no") if best else None,
        "n_shapes": rows["best_lr"].count(),
        "diverged": _named(rows, "diverged"),
        "missing": _named(rows, "missing"),
    }


def _named(rows: pd.DataFrame, status: str) -> str:
    cells = zip(rows["n_layers"], rows["d_model"], rows[status], strict=True)
    return "; ".join(f"L{depth} d{width}: {rates}" for depth, width, rates in cells if rates)

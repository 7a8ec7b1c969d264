"""Is the declared learning rate the best of the sweep? One answer per design and shape.

best_lr has the smallest held-out loss of the rates that were measured (of equal ones the smaller rate);
a diverged run is never it. It is at the edge if no run, diverged or not, stands beyond it on that side: a
missing run closes no bracket. The margin to the second best counts as more than noise if it exceeds what
`seed_noise` can resolve with one seed at that scale; without repeated seeds this is unknown.
"""

from collections.abc import Mapping

import pandas as pd

from depthbench.artifacts import ArtifactSpec, run_id
from depthbench.tables._measured import measured, yes_no
from depthbench.tables.seed_noise import Noise, pooled

FILES = ("validation.csv",)
KEYS = ["design", "label", "scale", "n_layers", "d_model", "seed"]
COLUMNS = [
    *(*KEYS, "grid", "declared_lr", "best_lr", "best_loss", "at_edge", "margin_to_second", "margin_exceeds_noise"),
    *("n_diverged", "n_missing", "diverged", "missing", "same_best_across_shapes"),
]
PRINTED = {
    "label": ("Design", "{}"),
    "scale": ("Scale", "{}"),
    "n_layers": ("L", "{}"),
    "d_model": ("d", "{}"),
    "grid": ("Grid", "{}"),
    "declared_lr": ("Declared", "{}"),
    "best_lr": ("Best", "{}"),
    "best_loss": ("Loss [nats/token]", "{:.4f}"),
    "at_edge": ("At edge", "{}"),
    "margin_to_second": ("Margin", "{:.4f}"),
    "margin_exceeds_noise": ("Above noise", "{}"),
    "diverged": ("Diverged", "{}"),
    "missing": ("Missing", "{}"),
    "same_best_across_shapes": ("Same for all shapes", "{}"),
}


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per design, scale and shape of the suite `sweep`; noise comes from the suite `seeds`."""
    table = measured(frames, spec)
    return audit(swept(table, spec), pooled(members(table, "seeds")))


def members(table: pd.DataFrame, suite: str) -> pd.DataFrame:
    """Return the runs of a suite."""
    return table[table["suites"].map(lambda names: suite in names.split(", ")).astype("bool")]


def swept(table: pd.DataFrame, spec: ArtifactSpec) -> pd.DataFrame:
    """Return the runs of the sweep with the rate that is declared for them, `declared_lr`."""
    declared = {run_id(spec, path): spec.plan(path)["declared_lr"] for path in spec.runs}
    sweep = members(table, "sweep")
    return sweep.assign(declared_lr=sweep["run_id"].map(declared))


def audit(sweep: pd.DataFrame, noise: Mapping[str, Noise]) -> pd.DataFrame:
    """Return the audit of runs with `status`, `loss` and `declared_lr`, given the noise of each scale."""
    rows = []
    for key, cell in sweep.groupby(KEYS, sort=False):
        row = dict(zip(KEYS, key, strict=True))
        rows.append(row | _audit_one(cell.sort_values("lr", key=lambda lr: lr.astype("float64")), noise))
    table = pd.DataFrame(rows, columns=COLUMNS[:-1])
    bests = table.groupby(["design", "scale", "seed"])["best_lr"]
    same = bests.transform("nunique").eq(1).map({True: "yes", False: "no"})
    # Of one shape there is nothing to compare.
    return table.assign(same_best_across_shapes=same.where(bests.transform("count") > 1))


def _audit_one(cell: pd.DataFrame, noise: Mapping[str, Noise]) -> dict:
    """Return the audit of one design at one shape, its runs given by rising rate."""
    rates = {status: cell.loc[cell["status"] == status, "lr"].tolist() for status in ("ok", "diverged", "missing")}
    losses = cell.loc[cell["status"] == "ok"].set_index("lr")["loss"]
    best = str(losses.idxmin()) if len(losses) else None
    margin = losses.nsmallest(2).diff().iloc[-1] if len(losses) > 1 else float("nan")
    known = noise.get(cell["scale"].iloc[0])
    exceeds = margin > known.resolvable() if known and len(losses) > 1 else None
    return {
        "grid": ", ".join(cell["lr"]),
        "declared_lr": cell["declared_lr"].iloc[0],
        "best_lr": best,
        "best_loss": losses.min(),
        "at_edge": None if best is None else edge(best, cell.loc[cell["status"] != "missing", "lr"].tolist()),
        "margin_to_second": margin,
        "margin_exceeds_noise": yes_no(exceeds) or "unknown",
        "n_diverged": len(rates["diverged"]),
        "n_missing": len(rates["missing"]),
        "diverged": ", ".join(rates["diverged"]),
        "missing": ", ".join(rates["missing"]),
    }


def edge(best: str, rates: list[str]) -> str:
    """Return where the best rate stands among the `rates` that were run, in rising order.

    low, high, no; of a single rate, which is both, `single`.
    """
    if len(rates) == 1:
        return "single"
    return {rates[0]: "low", rates[-1]: "high"}.get(best, "no")

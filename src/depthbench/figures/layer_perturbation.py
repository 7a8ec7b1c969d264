"""How many pairs of late layers depend on each other, over shapes and over thresholds (paper Fig. 6).

Panels: the share of late pairs above the paper's threshold over the aspect ratio, (a) of the causal score, (b) of the
permutation score; (c), (d) the share over all thresholds at one depth; below, maps of the scores of three designs
at that depth, as in `causal_maps` and `permutation_maps`. Hollow marks and thin lines are those of a released skip,
rings the paper's values where the study shows them (`reference`).
"""

import pandas as pd
import plotnine as p9
from plotnine.composition import Compose

from depthbench import reference
from depthbench.artifacts import ArtifactSpec
from depthbench.figures import _aspect, _curves, _layers, _maps, _theme, causal_maps, permutation_maps
from depthbench.tables import late_layers

FILES = (
    *("analysis/causal.csv", "analysis/causal_summary.csv"),
    *("analysis/permutation.csv", "analysis/permutation_summary.csv"),
)
MAPPED = ("preln", "attnres_full", "hc")
COLUMNS = [
    *("part", "measure", "panel", *_layers.RUN, "skip_mode", "tau", "fraction", "lo", "hi", "n_pairs", "n_undefined"),
    *("skipped", "layer", "layer_a", "layer_b", "score", "published"),
]
SHARE = "Share of late pairs"
TITLES = {"causal": "causal score > 0.45", "permutation": "permutation score > 0.15"}
PUBLISHED = {"causal": "r_causal", "permutation": "r_perm"}
CURVES = {"causal": "(c) causal score, {}", "permutation": "(d) permutation score, {}"}


def draw(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> tuple[p9.ggplot | Compose, pd.DataFrame]:
    """Return the plot and its frame, by `part`: shapes, thresholds, maps; runs without values included (`status`)."""
    joined = {name: _layers.joined(rows, spec) for name, rows in late_layers.curves(frames).items()}
    over_shapes, over_thresholds = at_paper(joined, frames), at_depth(joined, spec)
    maps = {name: mapped(_layers.joined(frames[name], spec), spec) for name in ("causal", "permutation")}
    note = _layers.note(spec, pd.concat(joined.values()), *sentences(over_shapes, spec))
    parts = {"shapes": over_shapes, "thresholds": over_thresholds}
    rows = [part.assign(part=name) for name, part in parts.items()]
    rows += [part.assign(part="maps", measure=name) for name, part in maps.items()]
    return compose(over_shapes, over_thresholds, maps, note, spec), pd.concat(rows, ignore_index=True)[COLUMNS]


def at_paper(joined: dict[str, pd.DataFrame], frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the shares at the paper's thresholds, a row per run, measure and way to skip, and the paper's shares."""
    parts = []
    for measure, table in joined.items():
        rows = table[table["is_paper"].fillna(False).astype(bool) | table["tau"].isna()]
        published = reference.beside(rows, frames, PUBLISHED[measure], "main")
        parts.append(rows.assign(measure=measure, panel=measure, published=published))
    return pd.concat(parts, ignore_index=True)


def at_depth(joined: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return the shares over all thresholds at the depth at which designs are compared."""
    parts = []
    for measure, table in joined.items():
        rows = _layers.at_one(table, spec)
        names = _layers.shapes(rows).map(CURVES[measure].format)
        parts.append(rows.assign(measure=measure, panel=names).dropna(subset=["tau"]))
    return pd.concat(parts, ignore_index=True)


def mapped(table: pd.DataFrame, spec: ArtifactSpec) -> pd.DataFrame:
    """Return the scores of the designs and the depth that have a map here, of a masked skip."""
    rows = _layers.by_shape(_layers.at_one(table[table["design"].isin(MAPPED)], spec))
    rows = rows[rows["skip_mode"] != "released"] if "skip_mode" in rows else rows
    return rows.assign(panel=(_layers.labels(rows) + " " + rows["panel"]).str.strip())


def sentences(over_shapes: pd.DataFrame, spec: ArtifactSpec) -> list[str]:
    """Return what the note says of the panels."""
    released = over_shapes["skip_mode"].eq("released").any()
    undefined = over_shapes["n_undefined"].fillna(0)
    some = over_shapes[undefined > 0].drop_duplicates("run_id")
    return [
        f"Late: layers of the last three quarters. (c), (d), maps: L={spec.depths.one}; dashed: the paper's threshold.",
        "Hollow, thin: released skip; all others are masked." if released else "",
        f"Rings: {reference.PAPER}." if over_shapes["published"].notna().any() else "",
        f"Pairs without a defined score are left out: {len(some)} runs." if len(some) else "",
    ]


def compose(
    over_shapes: pd.DataFrame,
    over_thresholds: pd.DataFrame,
    maps: dict[str, pd.DataFrame],
    note: str,
    spec: ArtifactSpec,
) -> p9.ggplot | Compose:
    """Return rows of panels of equal height: shapes, thresholds, maps; those that have something to draw."""
    rows: list[list[p9.ggplot]] = []
    if over_shapes["status"].isin(["ok", "diverged"]).any():
        rows.append([shape_panels(over_shapes, spec)])
    if len(over_thresholds):
        rows.append([threshold_panels(over_thresholds, spec)])
    rows.append([map_panels(table, name) for name, table in maps.items() if table["status"].eq("ok").any()])
    return _theme.compose(rows, 2.45, note)


def shape_panels(table: pd.DataFrame, spec: ArtifactSpec) -> p9.ggplot:
    """Return the shares over the aspect ratio."""
    # A value that is neither there nor diverged is named below, not drawn.
    status = table["status"].where(table["status"].isin(["ok", "diverged"]), "missing")
    shown = table.rename(columns={"fraction": "loss", "lo": "loss_lo", "hi": "loss_hi"})
    shown = shown.assign(status=status, hollow=table["skip_mode"].eq("released"))
    return _aspect.plot(reference.marks(shown, "ring"), TITLES, SHARE, "", spec)


def threshold_panels(table: pd.DataFrame, spec: ArtifactSpec) -> p9.ggplot:
    """Return the shares over the threshold; a dashed line at the paper's."""
    paper = table[table["is_paper"].fillna(False).astype(bool)][["panel", "tau"]].drop_duplicates()
    line = p9.geom_vline(p9.aes(xintercept="tau"), paper, linetype="dashed", size=0.4, color=_theme.INK)
    # intervals of all designs on top of each other cannot be told apart: they are in the CSV
    shown = table.rename(columns={"tau": "x", "fraction": "y"}).assign(lo=float("nan"), hi=float("nan"))
    shown["hollow"] = shown["skip_mode"].eq("released")
    return _curves.plot(shown, ("Threshold", SHARE), "", spec, [line], legend=False)


def map_panels(table: pd.DataFrame, measure: str) -> p9.ggplot:
    """Return the maps of one measure, in a row."""
    cells = (causal_maps if measure == "causal" else permutation_maps).cells(table)
    places = _maps.panels(table, measure)
    maps = _maps.plot(cells, places, measure, max(len(places), _maps.FEWEST), width=_theme.WIDTH / 2)
    return maps + p9.theme(aspect_ratio=1.3)

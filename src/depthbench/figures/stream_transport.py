"""How much of the streams of hyper-connections survives the depth (paper Fig. 10).

Of the product of the mixing matrices from the first sub-layer on: (a) effective rank of the whole product over the
aspect ratio; (b) mean absolute cosine between its columns and (c) its singular values, relative to the largest, over
the number of sub-layers at one depth. Rank 1 or cosine 1: the streams are copies of each other. Dotted lines are
the ends of the paper's ranges over its shapes, where the study shows published values (`reference`).
"""

import pandas as pd
import plotnine as p9
from plotnine.composition import Compose

from depthbench import reference
from depthbench.artifacts import ArtifactSpec
from depthbench.figures import _aspect, _curves, _layers, _theme

FILES = ("analysis/transport.csv",)
SIGMAS = [f"sigma_{i}" for i in range(2, 5)]
COLUMNS = [
    *("part", *_layers.RUN, "n_sublayers", "effective_rank", "effective_rank_lo", "effective_rank_hi"),
    *("cos_rows", "cos_cols", "sigma_1", *SIGMAS, "dist_uniform", "published_lo", "published_hi"),
]
RANGE = {"published_lo": "stream_effective_rank_min", "published_hi": "stream_effective_rank_max"}


def draw(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> tuple[p9.ggplot | Compose, pd.DataFrame]:
    """Return the plot and its frame, by `part`: shapes, depth; runs without values included (`status`)."""
    table = _layers.joined(frames["transport"], spec)
    whole = table[(table["n_sublayers"] == 2 * table["n_layers"]) | table["n_sublayers"].isna()]
    depth = _layers.at_one(table, spec).dropna(subset=["n_sublayers"])
    whole = with_range(whole, frames)
    below = [f"(b), (c): L={spec.depths.one}; (c): i = 2, 3, 4 from above."] if len(depth) else []
    if whole["published_lo"].notna().any():
        below.append(f"(a), dotted: ends of the range over all shapes, {reference.PAPER}.")
    note = _layers.note(spec, table, *below)
    frame = pd.concat([whole.assign(part="shapes"), depth.assign(part="depth")], ignore_index=True)
    return compose(whole, depth, note, spec), frame[COLUMNS]


def with_range(whole: pd.DataFrame, frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the rows with the ends of the paper's range of their design, which has no shape."""
    ends = {
        column: reference.published(frames, metric, "main").set_index("design")["value"]
        for column, metric in RANGE.items()
    }
    return whole.assign(**{column: whole["design"].map(values).astype("float64") for column, values in ends.items()})


def compose(whole: pd.DataFrame, depth: pd.DataFrame, note: str, spec: ArtifactSpec) -> p9.ggplot | Compose:
    """Return the panels that have something to draw, in a row."""
    parts = [ranks(whole, spec)] if whole["status"].isin(["ok", "diverged"]).any() else []
    parts += [cosines(depth, spec), sigmas(depth, spec)] if len(depth) else []
    return _theme.compose([parts], 2.6, note)


def ranks(table: pd.DataFrame, spec: ArtifactSpec) -> p9.ggplot:
    """Return the effective rank of the whole product over the aspect ratio."""
    named = {"effective_rank": "loss", "effective_rank_lo": "loss_lo", "effective_rank_hi": "loss_hi"}
    status = table["status"].where(table["status"].isin(["ok", "diverged"]), "missing")
    shown = table.rename(columns=named).assign(panel="rank", status=status)
    ends = table.drop_duplicates("design").melt(["design"], [*RANGE], value_name="end").dropna(subset=["end"])
    at = p9.aes(yintercept="end", color="design")
    lines = p9.geom_hline(at, ends, linetype="dotted", size=0.5, show_legend=False)
    return _aspect.plot(shown, {"rank": "whole product"}, "Effective rank", "", spec, _theme.WIDTH / 3) + lines


def cosines(table: pd.DataFrame, spec: ArtifactSpec) -> p9.ggplot:
    """Return the cosine between columns over the number of sub-layers."""
    shown = _layers.by_shape(table).rename(columns={"n_sublayers": "x", "cos_cols": "y"})
    shown = shown.assign(lo=float("nan"), hi=float("nan"), hollow=False)
    shown["panel"] = ("(b) columns " + shown["panel"]).str.strip()
    labels = ("Sub-layers", "Mean |cosine|")
    return _curves.plot(shown, labels, "", spec, [_curves.layer_axis()], legend=False)


def sigmas(table: pd.DataFrame, spec: ArtifactSpec) -> p9.ggplot:
    """Return the singular values over the number of sub-layers."""
    shown = _layers.by_shape(table).melt([*_layers.RUN, "panel", "n_sublayers"], SIGMAS, "sigma", "y")
    shown = shown.rename(columns={"n_sublayers": "x"}).assign(lo=float("nan"), hi=float("nan"), hollow=False)
    shown["line"] = shown["design"] + shown["sigma"]
    shown["panel"] = ("(c) singular values " + shown["panel"]).str.strip()
    labels = ("Sub-layers", "σ(i) / σ(1)")
    return _curves.plot(shown, labels, "", spec, [_curves.layer_axis()], legend=False)

"""How much the held-out loss changes with the seed, and which difference that lets one see.

    sd         = sqrt(sum over cells of (n_i - 1) s_i^2 / df),  df = sum over cells of (n_i - 1)
    resolvable = t_0.975(df) sd sqrt(2 / n)

A cell is a design at a shape and rate, s_i the standard deviation over its n_i seeds; cells of one scale with
at least two measured seeds are pooled, since two seeds alone would give df = 1. `resolvable` is the smallest
difference of two means over n seeds that is significant at 5 % (two-sided t). All seeds are measured on the
same documents, so this is noise of training.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t

from depthbench.artifacts import ArtifactSpec
from depthbench.tables._measured import measured

FILES = ("validation.csv",)
CELL = ["design", "label", "scale", "n_layers", "d_model", "lr"]
COLUMNS = [*CELL, "n_seeds", "loss_mean", "sd_cell", "sd", "df", "resolvable", "absent"]
PRINTED = {
    "label": ("Design", "{}"),
    "scale": ("Scale", "{}"),
    "n_layers": ("L", "{}"),
    "d_model": ("d", "{}"),
    "lr": ("Rate", "{}"),
    "n_seeds": ("Seeds", "{}"),
    "loss_mean": ("Mean loss [nats/token]", "{:.4f}"),
    "sd_cell": ("SD", "{:.4f}"),
    "sd": ("Pooled SD", "{:.4f}"),
    "df": ("df", "{}"),
    "resolvable": ("Resolvable", "{:.4f}"),
    "absent": ("Without a loss", "{}"),
}


class Noise(NamedTuple):
    """The pooled standard deviation [nats/token] of a scale and its degrees of freedom."""

    sd: float
    df: int

    def half_width(self, weights: np.ndarray) -> float:
        """Return the half of the 95 % interval of a sum of single losses with these weights [nats/token]."""
        return float(t.ppf(0.975, self.df) * self.sd * np.linalg.norm(weights))

    def resolvable(self, n_seeds: int = 1) -> float:
        """Return the smallest significant difference of two means over `n_seeds` seeds [nats/token]."""
        return self.half_width(np.full(2 * n_seeds, 1 / n_seeds))


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per cell; of one measured seed it has no spread. `absent` names seeds without a loss."""
    table = measured(frames, spec)
    noise = pooled(table)
    rows = []
    for key, cell in table.groupby(CELL, sort=False):
        row, ok = dict(zip(CELL, key, strict=True)), cell.loc[cell["status"] == "ok", "loss"]
        several = len(ok) > 1
        own = noise[str(row["scale"])] if several else Noise(np.nan, 0)
        absent = cell[cell["status"] != "ok"]
        row |= {
            "n_seeds": len(ok),
            "loss_mean": ok.mean(),
            "sd_cell": ok.std(),
            "sd": own.sd,
            "df": own.df if several else pd.NA,
            "resolvable": own.resolvable(len(ok)) if several else np.nan,
            "absent": ", ".join(f"seed {s} {w}" for s, w in zip(absent["seed"], absent["status"], strict=True)),
        }
        rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS).astype({"df": "Int64"})


def pooled(runs: pd.DataFrame) -> dict[str, Noise]:
    """Return the noise of each scale that has a cell with two measured seeds, from rows of `measured`."""
    cells = runs[runs["status"] == "ok"].groupby(CELL)["loss"].agg(["var", "count"]).query("count > 1")
    found = {}
    for scale, group in cells.groupby("scale"):
        df = group["count"] - 1
        found[str(scale)] = Noise(float(np.sqrt((df * group["var"]).sum() / df.sum())), int(df.sum()))
    return found

"""The shapes of a suite and their sizes, as the paper's Tables 3, 7, 8 and 9 print them.

    backbone = L (2 d H e + 2 d G e + 3 d f),  size = 2 V d + backbone

Both leave the norm gains out; the true size is that of Pre-LN with its (2 L + 1) d gains. A design's own
parameters are in none of them. Differences are in percent of the reference shape of the same scale: the
anchor (24, 1024) where the suite has it, else the shape of middle depth.
"""

import pandas as pd

from depthbench import runs
from depthbench.artifacts import ArtifactSpec
from depthbench.model.config import ModelConfig

ANCHOR = (24, 1024)  # n_layers, d_model
SHAPE_KEYS = ("d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size")
REFERENCE = {"large": 0}  # suite -> place of its reference shape in its scale, where the rule above is not used
COLUMNS = [
    *("scale", "tokens", *SHAPE_KEYS, "aspect_ratio", "backbone_params", "table_params", "true_params"),
    *("is_reference", "backbone_diff_percent", "table_diff_percent"),
]
BEGIN = {
    "n_layers": ("L", "{}"),
    "d_model": ("d", "{}"),
    "d_ff": ("FFN", "{}"),
    "head_dim": ("Head", "{}"),
    "aspect_ratio": ("d/L", "{:.2f}"),
}
SIZES = {"backbone_params": ("Backbone", "{:,}"), "table_params": ("Total", "{:,}")}
DIFFERENCES = {
    "backbone_diff_percent": ("Backbone diff. [%]", "{:+.2f}"),
    "table_diff_percent": ("Total diff. [%]", "{:+.2f}"),
}


def sizes(spec: ArtifactSpec, reference: int | None = None) -> pd.DataFrame:
    """Return one row per scale and shape of the artifact's runs, small scales and shallow shapes first.

    `reference` is one of `REFERENCE`.
    """
    rows = {}
    for path in spec.runs:
        run, plan = runs.parse(path), spec.plan(path)
        model = ModelConfig("preln", **{key: plan["model"][key] for key in SHAPE_KEYS if key in plan["model"]})
        rows[run.scale, run.n_layers, run.d_model] = {
            "scale": run.scale,
            "tokens": plan["tokens"],
            **{key: getattr(model, key) for key in SHAPE_KEYS},
            "aspect_ratio": model.d_model / model.n_layers,
            "backbone_params": model.backbone_params(),
            "table_params": model.table_params(),
            "true_params": model.count_params(),
        }
    table = pd.DataFrame(list(rows.values())).sort_values(["tokens", "scale", "n_layers", "d_model"])
    parts = [_compared(part, reference) for _, part in table.groupby("scale", sort=False)]
    return pd.concat(parts, ignore_index=True)[COLUMNS]


def _compared(table: pd.DataFrame, reference: int | None) -> pd.DataFrame:
    """Add the differences from the reference shape to the rows of one scale."""
    shapes = list(zip(table["n_layers"], table["d_model"], strict=True))
    place = shapes.index(ANCHOR) if ANCHOR in shapes else (len(shapes) - 1) // 2
    base = table.iloc[place if reference is None else reference]
    differences = {
        f"{kind}_diff_percent": 100 * (table[f"{kind}_params"] / base[f"{kind}_params"] - 1)
        for kind in ("backbone", "table")
    }
    return table.assign(is_reference=table.index == base.name, **differences)

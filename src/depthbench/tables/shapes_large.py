"""Shapes of the large suite (paper Table 9: 1.6B, grouped key/value heads). Reference: the shallowest."""

import pandas as pd

from depthbench.artifacts import ArtifactSpec
from depthbench.tables import _shapes
from depthbench.tables._shapes import BEGIN, DIFFERENCES, REFERENCE, SIZES, sizes

FILES = ()
COLUMNS = _shapes.COLUMNS
PRINTED = {
    **BEGIN,
    "n_heads": ("Heads", "{}"),
    "n_kv_heads": ("KV heads", "{}"),
    **SIZES,
    "table_diff_percent": DIFFERENCES["table_diff_percent"],
}


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per shape, shallow first; sizes in parameters."""
    return sizes(spec, REFERENCE["large"])

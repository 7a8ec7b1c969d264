"""Shapes of the iso-backbone suite (paper Table 7). Reference: (24, 1024), else the middle."""

import pandas as pd

from depthbench.artifacts import ArtifactSpec
from depthbench.tables import _shapes
from depthbench.tables._shapes import BEGIN, DIFFERENCES, SIZES, sizes

FILES = ()
COLUMNS = _shapes.COLUMNS
PRINTED = {
    **BEGIN,
    "backbone_params": SIZES["backbone_params"],
    "backbone_diff_percent": DIFFERENCES["backbone_diff_percent"],
    "table_params": SIZES["table_params"],
}


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per shape, shallow first; sizes in parameters."""
    return sizes(spec)

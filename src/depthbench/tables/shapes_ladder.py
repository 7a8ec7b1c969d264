"""Shapes of the scale ladder, three a scale (paper Table 8). Reference: the middle one of each scale."""

import pandas as pd

from depthbench.artifacts import ArtifactSpec
from depthbench.tables import _shapes
from depthbench.tables._shapes import BEGIN, DIFFERENCES, SIZES, sizes

FILES = ()
COLUMNS = _shapes.COLUMNS
PRINTED = {"scale": ("Scale", "{}"), **BEGIN, **SIZES, "table_diff_percent": DIFFERENCES["table_diff_percent"]}


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per scale and shape, small scales and shallow shapes first; sizes in parameters."""
    return sizes(spec)

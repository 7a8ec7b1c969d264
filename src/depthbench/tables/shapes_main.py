"""Shapes of the main suite, of about equal size (paper Table 3). Reference: (24, 1024), else the middle."""

import pandas as pd

from depthbench.artifacts import ArtifactSpec
from depthbench.tables import _shapes
from depthbench.tables._shapes import BEGIN, DIFFERENCES, SIZES, sizes

FILES = ()
COLUMNS = _shapes.COLUMNS
PRINTED = BEGIN | SIZES | DIFFERENCES | {"true_params": ("True total", "{:,}")}


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per shape, shallow first; sizes in parameters."""
    return sizes(spec)

"""MoDA with Pre-LN and with Post-LN: held-out loss by learning rate and shape (paper Table 5).

Rows are the runs of the suite `moda_norms`, and those of MoDA in the suite `main` at the same shapes. Loss and
interval are those of `losses`, as is the paper's loss, `published`, where the study shows published values.
"""

import pandas as pd

from depthbench.artifacts import ArtifactSpec
from depthbench.tables import losses

FILES = ("validation.csv", "validation_docs.parquet")
COLUMNS = [
    *("design", "label", "scale", "n_layers", "d_model", "lr", "seed", "status"),
    *("loss", "loss_lo", "loss_hi", "published", "published_difference", "run_id"),
]
PRINTED = {column: losses.PRINTED[column] for column in COLUMNS if column in losses.PRINTED}


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per run in display order; diverged and missing runs are kept with empty values."""
    return losses.with_published(losses.losses(frames, spec), frames)[COLUMNS]

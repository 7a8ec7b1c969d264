"""MoDA with Pre-LN and with Post-LN: held-out loss by learning rate and shape (paper Table 5).

Rows are the runs of the suite `moda_norms`, and those of MoDA in the suite `main` at the same shapes. Loss and
interval are those of `losses`.
"""

import pandas as pd

from depthbench.artifacts import ArtifactSpec
from depthbench.tables.losses import losses

FILES = ("validation.csv", "validation_docs.parquet")
COLUMNS = [
    *("design", "label", "scale", "n_layers", "d_model", "lr", "seed", "status"),
    *("loss", "loss_lo", "loss_hi", "run_id"),
]
PRINTED = {
    "label": ("Design", "{}"),
    "scale": ("Scale", "{}"),
    "n_layers": ("L", "{}"),
    "d_model": ("d", "{}"),
    "lr": ("Rate", "{}"),
    "seed": ("Seed", "{}"),
    "status": ("Status", "{}"),
    "loss": ("Loss [nats/token]", "{:.4f}"),
    "loss_lo": ("2.5 %", "{:.4f}"),
    "loss_hi": ("97.5 %", "{:.4f}"),
}


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per run in display order; diverged and missing runs are kept with empty values."""
    return losses(frames, spec)[COLUMNS]

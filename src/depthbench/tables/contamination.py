"""How many items of the evaluation tasks occur in the training text, and what was done about it.

An item is hit if a training document shares 13 words in a row with its question and gold answer; items of
fewer words cannot be found (`n_items_short`). The action is that of the corpus: `drop` leaves the documents
out of training, `count` keeps them, `off` did not look. Source: the manifest of the prepared data.
"""

import pandas as pd

from depthbench.artifacts import ArtifactSpec

FILES = ("manifest.json",)
COLUMNS = ["task", "n_items", "n_items_short", "n_items_hit", "n_docs_hit", "action"]
PRINTED = {
    "task": ("Task", "{}"),
    "n_items": ("Items", "{:,}"),
    "n_items_short": ("Too short", "{:,}"),
    "n_items_hit": ("Items hit", "{:,}"),
    "n_docs_hit": ("Documents hit", "{:,}"),
    "action": ("Action", "{}"),
}


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per task; counts are empty where nobody looked."""
    return frames["manifest"][COLUMNS]

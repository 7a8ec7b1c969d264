"""A local folder with the layout of a data set on the hub: a card, and parquet files of a configuration."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

CARD = """---
license: odc-by
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*/*
- config_name: small
  data_files:
  - split: train
    path: sample/small/*
---
# A data set
"""


def write(root: Path, files: dict[str, list], card: str = CARD, folder: str = "sample/small", **columns: list) -> Path:
    """Write each file with the columns id, text and a score that nobody asks for; texts may be None."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "README.md").write_text(card)
    for name, texts in files.items():
        rows = {"id": [f"{name[:-8]}-{n}" for n in range(len(texts))], "text": texts, "score": [1.0] * len(texts)}
        pq.write_table(pa.table(rows | columns), root / folder / name, row_group_size=10)
    return root


def corpus(root: Path, files: list[str], **keys) -> dict:
    """The configuration of a corpus of such a folder."""
    return {"source": "hub", "path": str(root), "name": "small", "files": files, **keys}

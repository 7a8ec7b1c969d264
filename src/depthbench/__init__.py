"""DepthBench measures which residual connections turn more layers into more computation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from depthbench.loading import Loaded


def load(folder: str | Path, data: str | Path | None = None) -> Loaded:
    """Load a run: its model, configuration, tokenizer and record; see `depthbench.loading.load`.

    `data`: prepared data with its tokenizer, for a run that has none of its own.
    """
    from depthbench import loading  # brings torch, which a dry-run must not

    return loading.load(folder, data)

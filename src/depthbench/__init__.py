"""DepthBench measures which residual connections turn more layers into more computation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from depthbench.loading import Loaded


def load(folder: str | Path) -> Loaded:
    """Load a trained run: its model, configuration, tokenizer and record; see `depthbench.loading.load`."""
    from depthbench import loading  # brings torch, which a dry-run must not

    return loading.load(folder)

"""Figures: each module has `FILES` (what it reads of a run) and `draw(frames, spec) -> (plot, frame)`."""

from collections.abc import Iterable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # before the first plotting import: compute nodes have no display

from depthbench import artifacts
from depthbench.artifacts import ArtifactSpec
from depthbench.figures import _theme
from depthbench.figures._one_model import of_one as of_one


def write(name: str, files: Iterable[Path], spec: ArtifactSpec, out: Path) -> None:
    """Write figure `name` as SVG, PDF and PNG, and as CSV the exact frame that it draws.

    Raises:
        UserError: E-ARTIFACT, E-SPEC or E-RUN; then none of the four files is left.
    """
    with artifacts.published(out, _theme.SUFFIXES) as parts:
        module = artifacts.load(__name__, name, spec)
        plot, frame = module.draw(artifacts.read(files, spec), spec)
        _theme.save(plot, frame, parts)

"""The designs of the study: their update rules, readouts, sources and declared learning rates (paper Table 1).

The words come from the file of each design (`depthbench.designs.words`), a user's own included; where a file
says nothing the cell is empty. F is the branch (attention or FFN) of sub-layer k of 2 L, l its block, x0 the
embedding, h or H the state, f a branch output; norms are RMSNorms unless named. The readout is what the norm
of the head reads.
"""

import pandas as pd

from depthbench import runs
from depthbench.artifacts import ArtifactSpec
from depthbench.designs import words
from depthbench.tables.suites import shared

FILES = ()
COLUMNS = ["design", "label", "family", "residual", "rule", "readout", "source", "declared_lr"]
PRINTED = {
    "label": ("Design", "{}"),
    "family": ("Family", "{}"),
    "rule": ("Rule", "{}"),
    "readout": ("Readout", "{}"),
    "source": ("Source", "{}"),
    "declared_lr": ("Learning rate", "{}"),
}


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per design in display order; `residual` is its file, `declared_lr` names scales that differ.

    Raises:
        UserError: E-CONFIG for a design's file that cannot be read.
    """
    residual: dict[str, str] = {}
    rates: dict[str, dict[str, str]] = {}
    for path in sorted(spec.runs, key=lambda path: spec.plan(path)["tokens"]):  # small scales first
        run, plan = runs.parse(path), spec.plan(path)
        residual[run.design] = plan["model"]["design"]
        rates.setdefault(run.design, {})[run.scale] = plan["declared_lr"]
    rows = [
        {"design": design, "label": spec.labels[design][0], "family": spec.labels[design][1]}
        | {"residual": residual[design], **words(residual[design])._asdict(), "declared_lr": shared(rates[design])}
        for design in spec.designs
    ]
    return pd.DataFrame(rows, columns=COLUMNS)

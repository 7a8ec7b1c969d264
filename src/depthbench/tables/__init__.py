"""Tables: each module has `FILES` (what it reads of a run), `PRINTED` and `build(frames, spec) -> DataFrame`.

`PRINTED` chooses and names the columns of the LaTeX table: column -> (heading, format).
"""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from depthbench import artifacts
from depthbench.artifacts import ArtifactSpec


def write(name: str, files: Iterable[Path], spec: ArtifactSpec, out: Path) -> None:
    """Write table `name` as CSV in full precision and as LaTeX with rounded values.

    Raises:
        UserError: E-ARTIFACT, E-SPEC or E-RUN; then neither file is left.
    """
    with artifacts.published(out, (".csv", ".tex")) as parts:
        module = artifacts.load(__name__, name, spec)
        table = module.build(artifacts.read(files, spec), spec)
        table.to_csv(parts[".csv"], index=False, lineterminator="\n")
        parts[".tex"].write_text(latex(table, module.PRINTED), encoding="utf-8")


def latex(table: pd.DataFrame, printed: dict[str, tuple[str, str]]) -> str:
    """Return a booktabs table of the `printed` columns; what is missing is a dash."""
    shown = table[list(printed)].rename(columns={column: heading for column, (heading, _) in printed.items()})
    style = shown.style.hide(axis="index")
    style = style.format(dict(printed.values()), na_rep="---", escape="latex")
    text = style.format_index(axis="columns", escape="latex").to_latex(hrules=True)
    return text.replace("<", r"\textless{}")  # LaTeX's default encoding prints `<` as an inverted exclamation mark

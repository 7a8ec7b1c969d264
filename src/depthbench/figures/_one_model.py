"""The figures of layer analyses for one model: those of a study, drawn of a single run."""

import importlib
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from depthbench import runs
from depthbench.artifacts import ArtifactSpec, Depths, published, run_id
from depthbench.figures import _layers, _theme
from depthbench.readers import COLUMNS

FIGURES = (
    *("lr_effect", "causal_maps", "permutation_maps", "pathways", "block_mixing", "layer_pruning", "logit_lens"),
    "stream_transport",
)
# Of one model these are the maps of `angular_distance`.
NAMES = {"lr_effect": "angular_distance"}
SUFFIXES = (".svg", ".png")


def of_one(frames: Mapping[str, pd.DataFrame], folder: Path) -> list[str]:
    """Draw what the analyses of one model found, as SVG and PNG, and return the names of the figures.

    Args:
        frames: Tables of the analyses by name ("angular"), all of one run; what has no values is not drawn.
        folder: Where the files go.
    """
    measured = {name: rows for name, rows in frames.items() if rows["status"].isin(_layers.MEASURED).any()}
    if not measured:
        return []
    spec = spec_of(measured)
    [path] = spec.runs
    given = {name: typed(name, rows).assign(run_id=run_id(spec, path)) for name, rows in measured.items()}
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for figure in FIGURES:
        module = importlib.import_module(f"depthbench.figures.{figure}")
        names = [Path(file).stem for file in module.FILES]
        if names[0] not in given:
            continue
        plot, frame = module.draw({name: given.get(name, empty(name)) for name in names}, spec)
        drawn.append(NAMES.get(figure, figure))
        with published(folder / f"{drawn[-1]}.svg", SUFFIXES) as parts:
            _theme.save(plot, frame, parts)
    return drawn


def spec_of(measured: Mapping[str, pd.DataFrame]) -> ArtifactSpec:
    """Return the spec of figures of the one run; a model that is no run of a study is called `model`."""
    told = next(iter(measured.values())).iloc[0]
    try:
        run = runs.parse(str(told["run_id"]).partition("/runs/")[2])
    except ValueError:
        run = runs.Run("model", "any", int(told["d_model"]), int(told["n_layers"]), "1e0", 0)
    return ArtifactSpec(
        kind="figure",
        name="one",
        study="one",
        runs={run.path: ()},
        missing=(),
        files=(),
        bootstrap=1,
        labels={run.design: (run.design, "baseline")},
        depths=Depths(run.n_layers, (run.n_layers,)),
        common_lr=run.lr,
    )


def typed(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table as figures read it from its file: without the keys of its run, which they take from its path."""
    types = COLUMNS[f"analysis/{name}.csv"]
    return rows[list(types)].astype(types)


def empty(name: str) -> pd.DataFrame:
    """Return a table without rows."""
    return typed(name, pd.DataFrame(columns=list(COLUMNS[f"analysis/{name}.csv"])))

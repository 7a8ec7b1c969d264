"""What measurements of a trained run share: on which texts, on which device, and the files they leave in its folder."""

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from depthbench import device, files, formats, loading
from depthbench.data.loader import manifest
from depthbench.errors import UserError

RESAMPLES = 1000  # of the intervals in a run's own files
FIGURES = sorted(path.stem for path in (Path(__file__).parent / "figures").glob("[!_]*.py"))  # without their imports


class Texts(NamedTuple):
    """Prepared data that a run is measured on."""

    folder: Path
    keys: dict[str, Any]  # the columns that every table of a run starts with
    own: bool  # those of its training or import; results on others would compare what cannot be compared


def texts(folder: Path, record: dict[str, Any], data: Path | None) -> Texts:
    """Return the texts to measure a run on; none given: those that it was trained with, or imported for.

    To a run that was imported without data all texts are its own.

    Raises:
        UserError: E-SHARD if they are not there, E-RUN if its own have been replaced by others, or there are none.
    """
    named = None if data and record["data"] is None else loading.data_of(folder, record)
    chosen = data or named
    assert chosen
    keys = _keys(record) | {"data_id": manifest(chosen)["data_id"]}
    own = record["data_id"] in (None, keys["data_id"])
    if not own and chosen == named:
        raise UserError(
            "E-RUN", f"{folder}: belongs to other texts than {chosen} holds now; remove the folder and make it again"
        )
    return Texts(chosen, keys, own)


def load(folder: Path, data: Path) -> loading.Loaded:
    """Load a run onto the device that measures it."""
    loaded = loading.load(folder, data)
    loaded.model.to(device.choose(loaded.record["spec"].get("threads")))
    return loaded


def keyed(frame: pd.DataFrame, keys: dict[str, Any]) -> pd.DataFrame:
    """Return the frame with the keys as its first columns."""
    return frame.assign(**keys)[[*keys, *frame.columns]]


def write(folder: Path, name: str, table: pd.DataFrame) -> None:
    """Write a table as `name`, CSV or parquet by its ending: all of it or nothing."""
    path = folder / name
    if path.suffix == ".csv":
        files.write_text(path, table.to_csv(index=False))
        return
    with files.published(path) as part:
        table.to_parquet(part, index=False)


def remove(folder: Path) -> None:
    """Remove all that was measured of a model whose place another takes, and its figures."""
    for name in formats.RUN_FILES:
        if name.endswith((".csv", ".parquet")):
            (folder / name).unlink(missing_ok=True)
    for name in FIGURES:
        for ending in (".svg", ".png"):
            (folder / "analysis" / f"{name}{ending}").unlink(missing_ok=True)


def _keys(record: dict[str, Any]) -> dict[str, Any]:
    spec = record["spec"]
    model = spec["model"]
    return {
        "run_id": record["run_id"],
        "design": model["design"],
        "n_layers": model["n_layers"],
        "d_model": model["d_model"],
        "lr": spec.get("lr"),  # of an import perhaps nobody said
        "seed": spec.get("seed"),
        "tokenizer_vocab": model["vocab_size"],
        "data_id": record["data_id"],
    }

"""What a trained model can do: files with the run's keys, written into its folder."""

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from depthbench import device, files, loading, lock
from depthbench.data import tokenizer
from depthbench.data.loader import Heldout, manifest
from depthbench.errors import UserError
from depthbench.evaluate import tasks, validation
from depthbench.runs import EvaluationSpec

RESAMPLES = 1000  # of the interval in validation.csv; tables use the study's own number
LAYOUT = "document"  # every held-out document stands alone


def run_keys(record: dict[str, Any]) -> dict[str, Any]:
    """Return the columns that every table of a run starts with."""
    spec = record["spec"]
    model = spec["model"]
    return {
        "run_id": record["run_id"],
        "design": model["design"],
        "n_layers": model["n_layers"],
        "d_model": model["d_model"],
        "lr": spec["lr"],
        "seed": spec["seed"],
        "tokenizer_vocab": model["vocab_size"],
        "data_id": record["data_id"],
    }


class Result(NamedTuple):
    """What was measured of a run, as frames with the run's keys, and whether it was written into its folder."""

    validation: pd.DataFrame
    tasks: tasks.Frames | None  # None: nobody asked
    written: bool


def evaluate(folder: Path, data: Path | None = None, spec: EvaluationSpec | None = None) -> Result:
    """Measure the held-out loss of a run, and its scores on tasks if `spec` names some or says that there are none.

    `validation.csv`, `nll.csv`, `arc.csv` and their documents and items go into the run's folder, unless `data` holds
    other texts than those that the run was trained with: its tables would then compare what cannot be compared.
    Without a `spec` what there is of tasks stays as it is.

    Raises:
        UserError: E-RUN, E-SHARD, E-DISK, E-ITEM, E-HUB, E-WHEEL, E-MEMBER.
    """
    with files.disk_errors():
        record = loading.record(folder)
        print(f"{record['run_id']}: {lock.who()}", flush=True)
        own = loading.data_of(folder, record)
        data = data or own
        asked = tasks.prepare(spec) if spec else {}
        heldout = Heldout(data, record["spec"]["sequence_length"])
        keys = run_keys(record) | {"data_id": manifest(data)["data_id"]}
        written = keys["data_id"] == record["data_id"]
        if not written and data == own:
            raise UserError(
                "E-RUN", f"{folder}: trained on other texts than {own} holds now; remove the folder and train again"
            )
        loaded = _load(folder, data) if record["status"] == "ok" else None
        summary, documents = _validation(loaded, data, heldout)
        frames = None
        if spec:
            how = record["spec"]["sequence_length"], record["spec"]["precision"]["compute"]
            frames = tasks.measure(asked, spec, loaded and (loaded.model, loaded.tokenizer), *how, RESAMPLES)
            frames = tasks.Frames(*(_keyed(frame, keys) for frame in frames))
        summary, documents = _keyed(summary, keys), _keyed(documents, keys)
        if written:
            _write(folder, "validation", summary, "validation_docs", documents)
            if frames:
                _write(folder, "nll", frames.nll, "nll_items", frames.nll_items)
                _write(folder, "arc", frames.arc, "arc_items", frames.arc_items)
    return Result(summary, frames, written)


def _load(folder: Path, data: Path) -> loading.Loaded:
    """Load a run onto the device that evaluates it."""
    loaded = loading.load(folder, data)
    loaded.model.to(device.choose(loaded.record["spec"].get("threads")))
    return loaded


def _validation(loaded: loading.Loaded | None, data: Path, heldout: Heldout) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return `validation.csv` and the documents, without keys."""
    documents = _documents(loaded, heldout) if loaded else None
    found = {"status": "diverged"} if documents is None else validation.summary(documents, RESAMPLES)
    if documents is None or found["status"] == "diverged":
        documents = pd.DataFrame(columns=["doc_key", "origin", "n_tokens", "n_bytes", "nll_sum"])
    columns = ["status", "layout", "n_docs", "n_skipped", "n_tokens", "n_predictions", "loss", "loss_lo"]
    columns += ["loss_hi", "loss_upstream", "bits_per_byte", "unigram_entropy"]
    found |= {
        "layout": LAYOUT,
        "n_docs": heldout.n_documents,
        "n_skipped": heldout.n_skipped,
        "unigram_entropy": manifest(data)["heldout_unigram_entropy"],
    }
    return pd.DataFrame([{name: found.get(name) for name in columns}]), documents


def _documents(loaded: loading.Loaded, heldout: Heldout) -> pd.DataFrame:
    """Nll of each held-out document."""
    rows = list(heldout)
    sizes = tokenizer.byte_lengths(loaded.tokenizer)
    compute = loaded.record["spec"]["precision"]["compute"]
    nll = validation.document_nll(loaded.model, [row.tokens for row in rows], compute)
    return pd.DataFrame(
        {
            "doc_key": [row.doc_key for row in rows],
            "origin": [row.origin for row in rows],
            "n_tokens": [len(row.tokens) for row in rows],
            "n_bytes": [int(sizes[row.tokens].sum()) for row in rows],
            "nll_sum": nll,
        }
    )


def _keyed(frame: pd.DataFrame, keys: dict[str, Any]) -> pd.DataFrame:
    return frame.assign(**keys)[[*keys, *frame.columns]]


def _write(folder: Path, name: str, summary: pd.DataFrame, units_name: str, units: pd.DataFrame) -> None:
    with files.published(folder / f"{units_name}.parquet") as part:
        units.to_parquet(part, index=False)
    files.write_text(folder / f"{name}.csv", summary.to_csv(index=False))

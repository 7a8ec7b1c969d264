"""What a trained model can do: files with the run's keys, written into its folder."""

from pathlib import Path
from typing import Any

import pandas as pd

from depthbench import device, files, loading, lock
from depthbench.data import tokenizer
from depthbench.data.loader import Heldout, manifest
from depthbench.errors import UserError
from depthbench.evaluate import validation

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


def evaluate(folder: Path, data: Path | None = None) -> tuple[pd.DataFrame, bool]:
    """Measure the held-out loss of a run; return `validation.csv` as a frame and whether it was written.

    `validation.csv` and `validation_docs.parquet` go into the run's folder, unless `data` holds other texts than those
    that the run was trained with: its tables would then compare what cannot be compared.

    Raises:
        UserError: E-RUN, E-SHARD, E-DISK.
    """
    with files.disk_errors():
        record = loading.record(folder)
        print(f"{record['run_id']}: {lock.who()}", flush=True)
        own = loading.data_of(folder, record)
        data = data or own
        heldout = Heldout(data, record["spec"]["sequence_length"])
        keys = run_keys(record) | {"data_id": manifest(data)["data_id"]}
        documents = _documents(folder, data, heldout) if record["status"] == "ok" else None
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
        summary = pd.DataFrame([keys | {name: found.get(name) for name in columns}])
        written = keys["data_id"] == record["data_id"]
        if not written and data == own:
            raise UserError(
                "E-RUN", f"{folder}: trained on other texts than {own} holds now; remove the folder and train again"
            )
        if written:
            with files.published(folder / "validation_docs.parquet") as part:
                documents.assign(**keys)[[*keys, *documents.columns]].to_parquet(part)
            files.write_text(folder / "validation.csv", summary.to_csv(index=False))
    return summary, written


def _documents(folder: Path, data: Path, heldout: Heldout) -> pd.DataFrame:
    """Nll of each held-out document."""
    loaded = loading.load(folder, data)
    spec = loaded.record["spec"]
    rows = list(heldout)
    sizes = tokenizer.byte_lengths(loaded.tokenizer)
    model = loaded.model.to(device.choose(spec.get("threads")))
    nll = validation.document_nll(model, [row.tokens for row in rows], spec["precision"]["compute"])
    return pd.DataFrame(
        {
            "doc_key": [row.doc_key for row in rows],
            "origin": [row.origin for row in rows],
            "n_tokens": [len(row.tokens) for row in rows],
            "n_bytes": [int(sizes[row.tokens].sum()) for row in rows],
            "nll_sum": nll,
        }
    )

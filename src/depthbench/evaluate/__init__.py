"""What a trained model can do: files with the run's keys, written into its folder."""

from pathlib import Path
from typing import NamedTuple

import pandas as pd

from depthbench import files, loading, lock, runfiles
from depthbench.data import tokenizer
from depthbench.data.loader import Heldout, manifest
from depthbench.evaluate import tasks, validation
from depthbench.runfiles import RESAMPLES
from depthbench.specs import EvaluationSpec

LAYOUT = "document"  # every held-out document stands alone


class Result(NamedTuple):
    """What was measured of a run, and whether it was written into its folder."""

    validation: pd.DataFrame
    tasks: tasks.Frames | None  # without the run's keys; None: nobody asked
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
        lock.tell(record["run_id"])
        asked = tasks.prepare(spec) if spec else {}
        texts = runfiles.texts(folder, record, data)
        heldout = Heldout(texts.folder, record["spec"]["sequence_length"])
        loaded = runfiles.load(folder, texts.folder) if record["status"] != "diverged" else None
        summary, documents = _validation(loaded, texts.folder, heldout)
        # the units first: a table beside which they stand is whole
        found = {"validation_docs.parquet": documents, "validation.csv": summary}
        scores = None
        if spec:
            how = record["spec"]["sequence_length"], record["spec"]["precision"]["compute"]
            scores = tasks.measure(asked, spec, (loaded.model, loaded.tokenizer) if loaded else None, *how, RESAMPLES)
            found |= {"nll_items.parquet": scores.nll_items, "nll.csv": scores.nll}
            found |= {"arc_items.parquet": scores.arc_items, "arc.csv": scores.arc}
        found = {name: runfiles.keyed(frame, texts.keys) for name, frame in found.items()}
        if texts.own:
            for name, frame in found.items():
                runfiles.write(folder, name, frame)
    return Result(found["validation.csv"], scores, texts.own)


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

"""The layer analyses of one run: one load, one pass of the intact model over each batch, files in `analysis/`.

Each has `<name>.csv` and, by document or item, `<name>_docs.parquet`; some have `<name>_summary.csv`. Their status:
ok; approximate (pathway weights that leave out gains or centring); diverged; not_requested; not_applicable (to this
design); too_shallow (no pair of blocks).
"""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pandas as pd
import torch

from depthbench import files, loading, lock, progress, runfiles
from depthbench.analyses import angular, block_mix, causal, logitlens, pathway, permutation, prune, transport
from depthbench.analyses._baseline import Baseline, batches
from depthbench.data.calibration import Calibration, calibration
from depthbench.errors import UserError
from depthbench.evaluate.requests import questions
from depthbench.model.backbone import Model
from depthbench.runfiles import RESAMPLES
from depthbench.specs import AnalysisSpec

MODULES: dict[str, ModuleType] = {
    "angular": angular,
    "causal": causal,
    "permutation": permutation,
    "pathway": pathway,
    "block_mix": block_mix,
    "prune": prune,
    "logitlens": logitlens,
    "transport": transport,
}

PAIRS = ("causal", "permutation")  # they need two blocks


class Result(NamedTuple):
    """What was measured of a run: table by name, and whether it was written into its folder."""

    tables: dict[str, pd.DataFrame]
    written: bool


def analyze(folder: Path, spec: AnalysisSpec, data: Path | None = None, complete: bool = False) -> Result:
    """Analyse a run layer by layer; the files go into `analysis/` of its folder.

    Unless `data` holds other texts than those that the run was trained with: then nothing is written. With `complete`
    the files of analyses that are not asked for are written too, and say so; otherwise they stay as they are.

    Raises:
        UserError: E-RUN, E-SHARD, E-DISK, E-CALIB, E-BASE, E-PATH, E-ITEM, E-WHEEL, E-MEMBER.
    """
    with files.disk_errors(), torch.no_grad():
        record = loading.record(folder)
        print(f"{record['run_id']}: {lock.who()}", flush=True)
        texts = runfiles.texts(folder, record, data)
        sample = calibration(
            texts.folder, spec.calibration.documents, spec.calibration.tokens, record["spec"]["sequence_length"]
        )
        try:
            found = (
                _measured(runfiles.load(folder, texts.folder), spec, sample) if record["status"] != "diverged" else None
            )
        except UserError as error:
            raise UserError(error.code, f"{record['run_id']}: {str(error).removeprefix(error.code + ' ')}") from None
        frames: dict[str, pd.DataFrame] = {}
        for name in MODULES:
            if name in spec.names:
                frames |= found[name] if found else _without_rows(name, "diverged")
            elif complete:
                frames |= _without_rows(name, "not_requested")
        keys = texts.keys | {"calib_id": sample.calib_id}
        frames = {name: runfiles.keyed(frame, keys) for name, frame in frames.items()}
        if texts.own:
            for name, frame in frames.items():
                runfiles.write(folder / "analysis", name, frame)
    return Result({Path(name).stem: frame for name, frame in frames.items() if name.endswith(".csv")}, texts.own)


def _measured(
    loaded: loading.Loaded, spec: AnalysisSpec, sample: Calibration
) -> dict[str, dict[str, pd.DataFrame]] | None:
    """Return the files of each analysis, without the run's keys; None if the model's loss is not finite."""
    model, compute = loaded.model, loaded.record["spec"]["precision"]["compute"]
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in spec.names if name != "prune"}
    todo = list(batches(sample, model.embed.weight.device)) if parts else []

    def steps() -> Iterator[tuple[str, Baseline]]:
        for batch in todo:
            base = Baseline(model, batch, compute)
            for name in parts:
                yield name, base

    for name, base in progress.track(steps(), "analysis", len(todo) * len(parts)):
        if name == next(iter(parts)) and not base.loss.isfinite().all():
            return None
        parts[name].append(MODULES[name].measure(base))
    documents = {name: pd.concat(frames, ignore_index=True) for name, frames in parts.items()}
    if "prune" in spec.names:
        asked = questions("arc_easy", spec.arc_easy)
        length = loaded.record["spec"]["sequence_length"]
        documents["prune"] = prune.items(model, loaded.tokenizer, asked, length, compute)
    return {name: _files(name, documents[name], model) for name in spec.names}


def _files(name: str, documents: pd.DataFrame, model: Model) -> dict[str, pd.DataFrame]:
    """Return the files of one analysis; the documents first: a table beside which they stand is whole."""
    module = MODULES[name]
    table = module.table(documents, RESAMPLES)
    status = "ok" if name != "pathway" or model.residual.exact_pathway else "approximate"
    if table.empty:
        status = "too_shallow" if name in PAIRS else "not_applicable"
    found = {f"{name}_docs.parquet": documents, f"{name}.csv": _with_status(table, status)}
    if hasattr(module, "summary"):
        summary = module.summary(documents, RESAMPLES)
        if name in PAIRS and not summary["n_pairs"].any():
            status = "too_shallow"
        found[f"{name}_summary.csv"] = _with_status(summary, status)
    return found


def _without_rows(name: str, status: str) -> dict[str, pd.DataFrame]:
    """Return the files of an analysis that was not made."""
    module = MODULES[name]
    found = {f"{name}_docs.parquet": pd.DataFrame(columns=module.DOCUMENTS)}
    found[f"{name}.csv"] = _with_status(pd.DataFrame(columns=module.COLUMNS), status)
    if hasattr(module, "summary"):
        found[f"{name}_summary.csv"] = _with_status(pd.DataFrame(columns=module.SUMMARY), status)
    return found


def _with_status(table: pd.DataFrame, status: str) -> pd.DataFrame:
    """Return the table with its status in front; one without rows gets one that is empty."""
    rows = table if len(table) else table.reindex([0])
    return rows.assign(status=status)[["status", *table.columns]]

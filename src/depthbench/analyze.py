"""The layer analyses of one run: one load, one pass of the intact model over each batch, files in `analysis/`.

Each has `<name>.csv` and, by document or item, `<name>_docs.parquet`; some have `<name>_summary.csv`. Their status:
ok; approximate (pathway weights that leave out gains or centring); diverged; not_requested; not_applicable (to this
design); too_shallow (no pair of blocks that are late enough).
"""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pandas as pd
import torch

from depthbench import files, loading, lock, progress, runfiles
from depthbench.analyses import angular, batches, block_mix, causal, logitlens, pathway, permutation, prune, transport
from depthbench.analyses._baseline import Baseline
from depthbench.data.calibration import Calibration, calibration
from depthbench.errors import UserError
from depthbench.evaluate.requests import Question, questions
from depthbench.model.backbone import Model
from depthbench.readers import ANALYSIS_KEYS, COLUMNS
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
Frames = dict[str, pd.DataFrame]  # by file name


class Result(NamedTuple):
    """What was measured of a run, and whether it was written into its folder."""

    tables: Frames  # by name of the analysis or summary
    written: bool

    def lines(self) -> Iterator[str]:
        """Yield what to tell a person of each analysis."""
        for name, table in self.tables.items():
            if (status := table["status"].iloc[0]) not in ("ok", "approximate"):
                yield f"{name}: {status}"
            elif name.removesuffix("_summary") in PAIRS and name.endswith("_summary"):
                for row in table[table["is_paper"]].to_dict("records"):
                    mode = f" ({row['skip_mode']})" if "skip_mode" in row else ""
                    share = f"{row['fraction']:.1%} [{row['lo']:.1%}, {row['hi']:.1%}] of {row['n_pairs']} late pairs"
                    yield f"{name.removesuffix('_summary')}{mode}: {share} score above {row['tau']}"
            elif name == "block_mix_summary":
                yield f"block_mix: the first {table['dead_sublayers'].iloc[0]} sub-layers pass over the newest sum"
            elif name == "prune":
                row = table.loc[[table["drop"].idxmax()]].to_dict("records")[0]
                of = f"{row['acc_norm_full']:.1%} (chance {row['chance']:.1%}, {row['n_items']} items)"
                yield f"prune: largest drop {row['drop']:.1f} points of {of}, without block {row['skipped']}"
            elif name == "logitlens":
                yield f"logitlens: kl {', '.join(f'{kl:.3g}' for kl in table['kl'])} nats from the embedding on"
            elif name == "transport":
                row = table.to_dict("records")[-1]
                interval = f"[{row['effective_rank_lo']:.2f}, {row['effective_rank_hi']:.2f}]"
                yield f"transport: effective rank {row['effective_rank']:.2f} {interval} over the whole depth"


def analyze(folder: Path, spec: AnalysisSpec, data: Path | None = None, complete: bool = False) -> Result:
    """Analyse a run layer by layer; the files go into `analysis/` of its folder.

    Unless `data` holds other texts than those that the run was trained with: then nothing is written. With `complete`
    the files of analyses that are not asked for are written too, and say so; otherwise they stay as they are.

    Raises:
        UserError: E-RUN, E-SHARD, E-DISK, E-CALIB, E-BASE, E-PATH, E-ITEM, E-HUB, E-WHEEL, E-MEMBER.
    """
    with files.disk_errors(), torch.no_grad():
        record = loading.record(folder)
        lock.tell(record["run_id"])
        texts = runfiles.texts(folder, record, data)
        asked = questions("arc_easy", spec.arc_easy) if spec.arc_easy else []
        size = spec.calibration
        sample = calibration(texts.folder, size.documents, size.tokens, record["spec"]["sequence_length"])
        found = None
        if record["status"] != "diverged":
            try:
                found = _measured(runfiles.load(folder, texts.folder), spec, sample, asked)
            except UserError as error:
                told = str(error).removeprefix(f"{error.code} ")
                raise UserError(error.code, f"{record['run_id']}: {told}") from None
        frames: Frames = {}
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
    loaded: loading.Loaded, spec: AnalysisSpec, sample: Calibration, asked: list[Question]
) -> dict[str, Frames] | None:
    """Return the files of each analysis, without the run's keys; None if the model's loss is not finite."""
    model, compute = loaded.model, loaded.record["spec"]["precision"]["compute"]
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in spec.names if name != "prune"}
    todo = list(batches(sample, model.embed.weight.device))

    def steps() -> Iterator[tuple[str, Any]]:
        for batch in todo:
            base = Baseline(model, batch, compute)
            yield "finite", bool(base.document_nll(base.states[-1]).isfinite().all())
            for name in parts:
                yield name, MODULES[name].measure(base)
            del base  # before the next one is made

    for name, found in progress.track(steps(), "analysis", len(todo) * (1 + len(parts))):
        if name != "finite":
            parts[name].append(found)
        elif not found:
            return None
    documents = {name: pd.concat(frames, ignore_index=True) for name, frames in parts.items()}
    if "prune" in spec.names:
        length = loaded.record["spec"]["sequence_length"]
        documents["prune"] = prune.items(model, loaded.tokenizer, asked, length, compute)
    return {name: _files(name, documents[name], model) for name in documents}


def _files(name: str, documents: pd.DataFrame, model: Model) -> Frames:
    """Return the files of one analysis; the documents first: a table beside which they stand is whole."""
    module = MODULES[name]
    table = module.table(documents, RESAMPLES)
    status = "ok" if name != "pathway" or model.residual.exact_pathway else "approximate"
    if table.empty:
        status = "too_shallow" if name in PAIRS else "not_applicable"
    found = {f"{name}_docs.parquet": documents, f"{name}.csv": _with_status(table, status)}
    if f"analysis/{name}_summary.csv" in COLUMNS:
        summary = module.summary(documents, RESAMPLES)
        if name in PAIRS and (summary["reason"] == "too_shallow").all():
            status = "too_shallow"
        found[f"{name}_summary.csv"] = _with_status(summary, status)
    return found


def _without_rows(name: str, status: str) -> Frames:
    """Return the files of an analysis that was not made; they have the columns that artifacts use."""
    found = {f"{name}_docs.parquet": pd.DataFrame(columns=["doc_key", "origin"])}
    for file in (f"{name}.csv", f"{name}_summary.csv"):
        if columns := COLUMNS.get(f"analysis/{file}"):
            found[file] = _with_status(pd.DataFrame(columns=[c for c in columns if c not in ANALYSIS_KEYS]), status)
    return found


def _with_status(table: pd.DataFrame, status: str) -> pd.DataFrame:
    """Return the table with its status in front; one without rows gets one that is empty."""
    rows = table if len(table) else table.reindex([0])
    return rows.assign(status=status)[["status", *table.columns]]

"""Commands for people, which no rule calls: shapes, plan, status, mirror."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from depthbench.errors import UserError
from depthbench.peaks import SHORT

if TYPE_CHECKING:
    from depthbench.schema import Config
    from depthbench.specs import AnalysisSpec, EvaluationSpec


def shapes(
    depths: Annotated[str, typer.Option(help="Numbers of layers, e.g. 16,24,32.")],
    reference: Annotated[str | None, typer.Option(help="Shape whose size is the budget: layers,width.")] = None,
    params: Annotated[int | None, typer.Option(min=1, help="The budget itself: parameters.")] = None,
    backbone: Annotated[bool, typer.Option(help="Leave the embeddings out of the budget.")] = False,
    heads: Annotated[int, typer.Option(min=1, help="Attention heads.")] = 16,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Key/value heads; default: all heads.")] = None,
    ffn_ratio: Annotated[int | None, typer.Option(min=1, help="d_ff / d_model; default: 8/3, rounded up.")] = None,
    vocab_size: Annotated[int, typer.Option(min=1, help="Entries of the tokenizer.")] = 50280,
) -> None:
    """Find the width that each depth needs for one budget, by the paper's rule.

    Example: depthbench shapes --depths 16,20,24,28,32,42,70 --reference 24,1024

    Example: depthbench shapes --depths 4,8,16 --params 10000000 --heads 4 --vocab-size 4096
    """
    from depthbench import shapes as solver

    rule = solver.Rule(heads, vocab_size, kv_heads, ffn_ratio)
    if (reference is None) == (params is None):
        raise UserError("E-SPEC", "give the budget once: --reference LAYERS,WIDTH or --params N")
    anchor = rule.model(*numbers("--reference", reference, 2)) if reference else None
    budget = params or (anchor.backbone_params() if backbone else anchor.table_params())  # type: ignore[union-attr]
    found = solver.solve(rule, numbers("--depths", depths), budget, backbone)
    _print_table(
        ["L", "d", "d_ff", "head", "d/L", "backbone", "total", "of the budget"],
        [
            [
                m.n_layers, m.d_model, m.d_ff, m.head_dim, f"{m.d_model / m.n_layers:.2f}",
                f"{m.backbone_params():,}", f"{m.table_params():,}",
                f"{(m.backbone_params() if backbone else m.table_params()) / budget - 1:+.2%}",
            ]
            for m in found
        ],
    )  # fmt: skip


def plan(
    study: Annotated[str | None, typer.Option(help="Study of config.yaml; default: the one named there.")] = None,
    mfu: Annotated[float, typer.Option(min=0.001, max=1, help="Share of the peak that training reaches.")] = 0.4,
    device: Annotated[str, typer.Option(help="A100, H100 or H200.")] = "A100",
) -> None:
    """Tell what a study asks for: runs, tokens, passes over the text, FLOPs, GPU-hours and disk, by suite.

    Example: depthbench plan --study paper --mfu 0.35
    """
    from depthbench import plan as planner
    from depthbench import runs

    if device not in SHORT:
        raise UserError("E-SPEC", f"--device {device}: its peak is not known; take {', '.join(SHORT)}")
    config = configuration(study)
    chosen = config.studies[config.study]
    data = Path("results/data") / f"{chosen.corpus}-v{chosen.tokenizer.vocab_size}"
    rows = planner.plan(config, _train_tokens(data), mfu, device)
    _print_table(
        ["suite", "runs", "new", "tokens/run", "tokens", "epochs", "parameters", "FLOPs", f"{device}-hours", "GB"],
        [
            [
                r.suite, r.n_runs, r.n_new, _span(r.tokens_per_run), _short(r.tokens),
                "-" if r.epochs is None else f"{r.epochs:.2f}", _span(r.parameters), f"{r.flops:.2e}",
                f"{r.gpu_hours:,.1f}", f"{r.disk_bytes / 1e9:,.2f}",
            ]
            for r in rows
        ],
    )  # fmt: skip
    print(f"at {mfu:.0%} of the {device}'s bfloat16 peak; tokens, FLOPs, hours and GB are those of the new runs;")
    print("a run at work needs nine times its weights on disk beside the GB of weights that stay")
    if n := len(runs.parquet_files(config.corpora[chosen.corpus])):
        size = f"{2 * n} GB of cache until it is prepared, {1.4 * n:.0f} GB from then on"
        print(f"the text: {n} files, if each is as large as one of FineWeb-Edu {size}")
    if rows[0].epochs is None:
        print(f"epochs are not known before {data} is prepared: snakemake -c2 prepare --config study={config.study}")


def status(
    study: Annotated[str | None, typer.Option(help="Study of config.yaml; default: the one named there.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results"),
) -> None:
    """Tell which runs of a study are done, imported, running, diverged, stopped, stale or missing.

    It also tells which no single commit gives again: they ran code of several, or code that was edited since.

    Example: depthbench status --study tiny
    """
    from depthbench import runs
    from depthbench import status as reader

    config = configuration(study)
    folder = results / config.study / "runs"
    views = {config.study: runs.suites(config), f"{config.study} controls": runs.controls(config)}
    found = {name: reader.status(config, runs.union(view), folder) for name, view in views.items() if view}
    open_ends = [s for members in found.values() for s in members if s.state not in ("done", "imported") or s.mixed]
    _print_table(
        ["run", "state", "step", "remark"],
        [
            [s.run.path, s.state, f"{s.step}/{s.steps}", s.holder or (f"commits {', '.join(s.commits)}" * s.mixed)]
            for s in open_ends
        ],
    )
    for name, members in found.items():
        counts = [f"{sum(s.state == state for s in members)} {state}" for state in reader.STATES]
        mixed = sum(s.mixed for s in members)
        print(f"{name}: {len(members)} runs: {', '.join(counts)}; {mixed} not of one clean commit")


def mirror(
    runs: Annotated[Path, typer.Argument(help="Folder with runs below it.")],
    out: Annotated[Path, typer.Option(help="Folder of the event files.")],
) -> None:
    """Copy the metrics of runs, finished or not, into TensorBoard event files.

    Example: depthbench mirror results/tiny/runs --out events && tensorboard --logdir events
    """
    from depthbench import mirror as writer

    print(f"{len(writer.mirror(runs, out))} runs in {out}")


def tasks(names: str, run: Path) -> EvaluationSpec:
    """Return how the named tasks are scored by the checkout one stands in, with the limits of the run's study."""
    from depthbench import runs
    from depthbench.schema import TASK_FIELDS

    chosen = names_of("--tasks", "task", names, TASK_FIELDS)
    return runs.task_spec(configuration(None), chosen, _study_of(run))


def analyses(names: str, run: Path) -> AnalysisSpec:
    """Return the named layer analyses with the calibration set of the run's study; if unknown of ours, and told."""
    from depthbench import runs
    from depthbench.schema import AnalysisName
    from depthbench.specs import AnalysisSpec

    chosen = names_of("--only", "analysis", names, get_args(AnalysisName))
    config, study = configuration(None), _study_of(run)
    declared = config.studies[study if study in config.studies else config.study]
    if study not in config.studies:
        size = f"{declared.calibration.documents} documents of {declared.calibration.tokens} tokens"
        print(f"no study {study!r} in config.yaml: calibration set of {config.study}, {size}", file=sys.stderr)
    scored = runs.task_spec(config, ["arc_easy"], study).tasks["arc_easy"] if "prune" in chosen else None
    return AnalysisSpec.model_validate({"names": chosen, "calibration": declared.calibration, "arc_easy": scored})


def names_of(option: str, what: str, names: str, known: Iterable[str]) -> list[Any]:
    """Return the names that an option lists with commas between, `all` for all that are known."""
    known = [*known]
    chosen = known if names == "all" else list(dict.fromkeys(names.split(",")))
    if strangers := [name for name in chosen if name not in known]:
        raise UserError("E-SPEC", f"{option} {strangers[0]!r}: no such {what}; known: {', '.join(known)}")
    return chosen


def use_kernels(name: str) -> None:
    """Choose the backend of the fused operations."""
    from depthbench_kernels import BackendError, use

    try:
        use(name)
    except BackendError as error:
        raise UserError("E-KERNEL", str(error)) from None


def _study_of(run: Path) -> str:
    from depthbench import loading

    return str(loading.record(run)["run_id"]).partition("/")[0]


def configuration(study: str | None) -> Config:
    """Return the configuration of the checkout one stands in, for a study of it."""
    import yaml

    from depthbench import config

    try:
        raw = yaml.safe_load(Path("config.yaml").read_text())
    except (OSError, yaml.YAMLError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise UserError("E-CONFIG", f"config.yaml: {reason}; stand in the root of the checkout") from None
    if not isinstance(raw, dict):
        raise UserError("E-CONFIG", "config.yaml: not a mapping of keys; restore it")
    return config.load({**raw, "study": study} if study else raw)


def _train_tokens(data: Path) -> int | None:
    from depthbench.data.loader import manifest

    try:
        return manifest(data)["splits"]["train"]["n_tokens"]
    except UserError:
        return None


def numbers(option: str, text: str, count: int | None = None) -> list[int]:
    """Return the whole numbers that an option lists with commas between."""
    parts = text.split(",")
    if not all(p.strip().isdecimal() and int(p) > 0 for p in parts) or count not in (None, len(parts)):
        wanted = "whole numbers" if count is None else f"{count} whole numbers"
        raise UserError("E-SPEC", f"{option} {text!r}: give {wanted} above 0, with commas between")
    return [int(p) for p in parts]


def _short(number: float) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def _span(ends: tuple[int, int]) -> str:
    return "-".join(dict.fromkeys(map(_short, ends)))


def _print_table(columns: list[str], rows: Sequence[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=None, header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*map(str, row))
    # in a log or a pipe the lines are not cut to a terminal's width
    Console(width=None if sys.stdout.isatty() else 200).print(table)

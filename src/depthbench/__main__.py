"""`depthbench COMMAND`: one command per rule of the workflow, usable by hand, and some for people only."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from depthbench.errors import UserError

if TYPE_CHECKING:
    from depthbench.config import Config

STOPPED = 75  # exit status of a training that saved and left on a signal
show_tracebacks = False
app = typer.Typer(
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
    help="Does a residual connection turn more layers into more computation?",
)
Spec = Annotated[str, typer.Option(help="Resolved slice of the configuration, JSON.")]
Files = Annotated[list[Path] | None, typer.Argument(help="Files of the runs.")]
Kernels = Annotated[str, typer.Option(help="auto, reference, eager, triton or liger.")]


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(version("depthbench"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
    debug: Annotated[bool, typer.Option(help="Show the traceback of every error.")] = False,
) -> None:
    """Options that stand before the command."""
    global show_tracebacks
    show_tracebacks = debug


@app.command()
def fetch(spec: Spec, out: Annotated[Path, typer.Option(help="Record of the files to write.")]) -> None:
    """Fetch the pinned source files of a corpus into the cache, and check them; of a hub corpus, look its files up.

    Example: depthbench fetch --out sources.json --spec '{"corpus": "stdlib", "source": "stdlib",
    "val_fraction": 0.2, "tokenizer": {"vocab_size": 512}, "version": 1}'
    """
    from depthbench import files
    from depthbench.data import archives, corpus, hub
    from depthbench.runs import DataSpec

    parsed = DataSpec.read(spec)
    with files.disk_errors():
        record: dict[str, Any] = {"hub": hub.survey(parsed)} if parsed.source == "hub" else {}
        for name in corpus.archives_needed(parsed.as_dict()):
            record[name] = {"file": archives.fetch(name).name, "sha256": archives.ARCHIVES[name].sha256}
        files.write_text(out, json.dumps(record, indent=1, sort_keys=True) + "\n")


@app.command()
def fetch_file(
    spec: Spec,
    sources: Annotated[Path, typer.Option(help="Record that `fetch` has written.")],
    out: Annotated[Path, typer.Option(help="Record of the file to write.")],
) -> None:
    """Bring one parquet file of a hub corpus into the cache of huggingface_hub, and check it.

    Example: depthbench fetch-file --sources sources.json --out file.json --spec '{"file": "000_00000.parquet",
    "text_column": "text", "val_fraction": 0, "decontaminate": "off", "tokenizer": {"vocab_size": 512}, "version": 1}'
    """
    from depthbench import files
    from depthbench.data import hub
    from depthbench.runs import PartSpec

    parsed = PartSpec.read(spec)
    surveyed = files.read_record(sources, {"hub"}, "E-HUB", "depthbench fetch")["hub"]
    with files.disk_errors():
        files.write_text(out, json.dumps(hub.fetch(surveyed, parsed), indent=1, sort_keys=True) + "\n")


@app.command()
def prepare_file(
    spec: Spec,
    fetched: Annotated[Path, typer.Option(help="Record that `fetch-file` has written.")],
    out: Annotated[Path, typer.Option(help="Record of the part, FOLDER/parts/NAME.parquet.json.")],
) -> None:
    """Tokenize one fetched parquet file of a hub corpus into shards of its own; `prepare` joins them.

    Example: depthbench prepare-file --fetched file.json --out results/data/mine-v512/parts/000_00000.parquet.json
    --spec '{"file": "000_00000.parquet", "text_column": "text", "val_fraction": 0, "decontaminate": "off",
    "tokenizer": {"vocab_size": 512}, "version": 1}'
    """
    from depthbench import files
    from depthbench.data import parts
    from depthbench.runs import PartSpec

    parsed = PartSpec.read(spec)
    parts.prepare_file(
        parsed, files.read_record(fetched, {"file", "rows", "sha256"}, "E-HUB", "depthbench fetch-file"), out
    )


@app.command()
def prepare(spec: Spec, out: Annotated[Path, typer.Option(help="Folder of the prepared data.")]) -> None:
    """Split a corpus into training and held-out text, and tokenize it into shards; of a hub corpus, join its parts.

    Example: depthbench prepare --out results/data/stdlib-v512 --spec '{"corpus": "stdlib", "source": "stdlib",
    "val_fraction": 0.2, "tokenizer": {"vocab_size": 512}, "version": 1}'
    """
    from depthbench.data import join, shards
    from depthbench.data.loader import manifest
    from depthbench.runs import DataSpec

    parsed = DataSpec.read(spec)
    if parsed.source == "hub":
        join.join(parsed, out)
    else:
        shards.prepare(parsed.as_dict(), out)
    about = manifest(out)
    for name, split in about["splits"].items():
        print(f"{name}: {split['n_documents']:,} documents, {split['n_tokens']:,} tokens")
    print(f"left out or mended: {', '.join(f'{n} {kind}' for kind, n in about['rows'].items())}")
    for warning in about["warnings"]:
        print(f"warning: {warning}")


@app.command()
def train(
    spec: Spec,
    data: Annotated[Path, typer.Option(help="Folder of the prepared data.")],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    kernels: Kernels = "auto",
    micro_batch: Annotated[int, typer.Option(min=1, help="Sequences of one forward pass.")] = 8,
    checkpoint_seconds: Annotated[float, typer.Option(min=0, help="Time between checkpoints.")] = 600.0,
) -> None:
    """Train one run, or go on from its last checkpoint. A signal saves, and leaves with status 75.

    Example: depthbench train --spec "$(jq -c .spec run.json)" --data results/data/embedded_ci-v512 --out my-run
    """
    from depthbench import train as training
    from depthbench.runs import RunSpec

    parsed = RunSpec.read(spec)
    _use_kernels(kernels)
    if not training.train(parsed, data, out, micro_batch, checkpoint_seconds):
        raise typer.Exit(STOPPED)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    data: Annotated[Path | None, typer.Option(help="Prepared data; default: what the run was trained on.")] = None,
    kernels: Kernels = "auto",
) -> None:
    """Measure the held-out loss of one run; writes validation.csv and validation_docs.parquet into its folder.

    Example: depthbench evaluate results/tiny/runs/preln/t-d28-l16/lr1e-2-s0
    """
    from depthbench.evaluate import evaluate as measure

    _use_kernels(kernels)
    summary, written = measure(run, data)
    row = summary.iloc[0]
    if row.status == "ok":
        print(f"{row.run_id}: {row.loss:.4f} nats/token [{row.loss_lo:.4f}, {row.loss_hi:.4f}], {row.n_docs} documents")
    else:
        print(f"{row.run_id}: {row.status}")
    if not written:
        print(f"other texts than those of its training: nothing was written into {run}")


@app.command()
def table(
    spec: Spec, out: Annotated[Path, typer.Option(help="CSV; the LaTeX goes beside it.")], files: Files = None
) -> None:
    """Build one table from the files of its runs; the workflow gives files and spec.

    Example: snakemake -c1 losses
    """
    from depthbench import tables
    from depthbench.artifacts import ArtifactSpec

    parsed = ArtifactSpec.from_json(spec)
    tables.write(parsed.name, files or [], parsed, out)


@app.command()
def figure(
    spec: Spec,
    out: Annotated[Path, typer.Option(help="SVG; PDF, PNG, CSV go beside it.")],
    files: Files = None,
) -> None:
    """Draw one figure from the files of its runs; the workflow gives files and spec.

    Example: snakemake -c1 validation_loss
    """
    from depthbench import figures
    from depthbench.artifacts import ArtifactSpec

    parsed = ArtifactSpec.from_json(spec)
    figures.write(parsed.name, files or [], parsed, out)


@app.command()
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
    anchor = rule.model(*_numbers("--reference", reference, 2)) if reference else None
    budget = params or (anchor.backbone_params() if backbone else anchor.table_params())  # type: ignore[union-attr]
    found = solver.solve(rule, _numbers("--depths", depths), budget, backbone)
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


@app.command()
def plan(
    study: Annotated[str | None, typer.Option(help="Study of config.yaml; default: the one named there.")] = None,
    mfu: Annotated[float, typer.Option(min=0.001, max=1, help="Share of the peak that training reaches.")] = 0.4,
    device: Annotated[str, typer.Option(help="A100, H100 or H200.")] = "A100",
) -> None:
    """Tell what a study asks for: runs, tokens, passes over the text, FLOPs, GPU-hours and disk, by suite.

    Example: depthbench plan --study paper --mfu 0.35
    """
    from depthbench import plan as planner

    if device not in planner.PEAKS:
        raise UserError("E-SPEC", f"--device {device}: its peak is not known; take {', '.join(planner.PEAKS)}")
    config = _config(study)
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
    print("a run at work needs six times its weights on disk beside the GB of weights that stay")
    if rows[0].epochs is None:
        print(f"epochs are not known before {data} is prepared: snakemake prepare")


@app.command()
def status(
    study: Annotated[str | None, typer.Option(help="Study of config.yaml; default: the one named there.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results"),
) -> None:
    """Tell which runs of a study are done, running, diverged, stopped, stale or missing, and which mix commits.

    Example: depthbench status --study tiny
    """
    from depthbench import runs
    from depthbench import status as reader

    config = _config(study)
    found = reader.status(config, runs.union(runs.suites(config)), results / config.study / "runs")
    open_ends = [s for s in found if s.state != "done" or s.mixed]
    _print_table(
        ["run", "state", "step", "remark"],
        [
            [s.run.path, s.state, f"{s.step}/{s.steps}", s.holder or (f"commits {', '.join(s.commits)}" * s.mixed)]
            for s in open_ends
        ],
    )
    counts = [f"{sum(s.state == state for s in found)} {state}" for state in reader.STATES]
    print(f"{config.study}: {len(found)} runs: {', '.join(counts)}; {sum(s.mixed for s in found)} of mixed commits")


@app.command()
def mirror(
    runs: Annotated[Path, typer.Argument(help="Folder with runs below it.")],
    out: Annotated[Path, typer.Option(help="Folder of the event files.")],
) -> None:
    """Copy the metrics of runs, finished or not, into TensorBoard event files.

    Example: depthbench mirror results/tiny/runs --out /tmp/events && tensorboard --logdir /tmp/events
    """
    from depthbench import mirror as writer

    print(f"{len(writer.mirror(runs, out))} runs in {out}")


def _config(study: str | None) -> Config:
    """The configuration of the checkout one stands in."""
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


def _numbers(option: str, text: str, count: int | None = None) -> list[int]:
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


def _use_kernels(name: str) -> None:
    from depthbench_kernels import BackendError, use

    try:
        use(name)
    except BackendError as error:
        raise UserError("E-KERNEL", str(error)) from None


def main() -> None:
    """Run the command line; an error that is the user's to mend is one line and status 2."""
    try:
        app()
    except UserError as error:
        if show_tracebacks:
            raise
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    except Exception:
        from depthbench import lock

        print(
            f"{' '.join(sys.argv[:2])} failed on {lock.who()}", file=sys.stderr
        )  # the log has where, and the traceback
        raise


if __name__ == "__main__":
    main()

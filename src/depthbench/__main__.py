"""`depthbench COMMAND`: one command per rule of the workflow, usable by hand, and some for people only."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from depthbench import exchange, lock, people
from depthbench.bench import cli
from depthbench.errors import UserError

STOPPED = 75  # exit status of a training that saved and left on a signal
show_tracebacks = False
app = typer.Typer(
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
    help="Does a residual connection turn more layers into more computation?",
)
Spec = Annotated[str, typer.Option(help="Resolved slice of the configuration, JSON.")]
Slice = Annotated[
    str | None, typer.Option(help="The same as a resolved slice of the configuration, JSON; the workflow's.")
]
Data = Annotated[Path | None, typer.Option(help="Prepared data; default: what the run was trained on.")]
Files = Annotated[list[Path] | None, typer.Argument(help="Files that belong to no run, and of runs elsewhere.")]
Results = Annotated[Path | None, typer.Option(help="Folder of all studies, in which the files of the runs are found.")]
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
    from depthbench.specs import DataSpec

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
    from depthbench.specs import PartSpec

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
    from depthbench.specs import PartSpec

    parsed = PartSpec.read(spec)
    lock.tell(out)
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
    from depthbench.specs import DataSpec

    parsed = DataSpec.read(spec)
    lock.tell(out)
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

    On all GPUs of a machine or Slurm job: `python -m depthbench.launch train` with the same options.

    Example: depthbench train --spec "$(jq -c .spec run.json)" --data results/data/embedded_ci-v512 --out my-run
    """
    from depthbench import ranks
    from depthbench import train as training
    from depthbench.specs import RunSpec

    with ranks.joined():
        with ranks.together():
            parsed = RunSpec.read(spec)
            people.use_kernels(kernels)
        finished = training.train(parsed, data, out, micro_batch, checkpoint_seconds)
    if not finished:
        raise typer.Exit(STOPPED)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    data: Data = None,
    tasks: Annotated[
        str | None, typer.Option(help="Tasks to score, e.g. sciq,arc_easy, or all: worded by ./config.yaml.")
    ] = None,
    spec: Slice = None,
    kernels: Kernels = "auto",
) -> None:
    """Measure the held-out loss of one run, and its scores on tasks; writes them into its folder.

    Example: depthbench evaluate results/tiny/runs/preln/t-d28-l16/lr1e-2-s0 --tasks sciq,arc_easy

    The tasks named replace those in nll.csv and arc.csv; without --tasks these stay as they are. A run of a study of
    config.yaml is scored on as many items as there, any other on all.
    """
    from depthbench.evaluate import evaluate as measure
    from depthbench.specs import EvaluationSpec

    if tasks and spec:
        raise UserError("E-SPEC", "--tasks and --spec say the same; give one of them")
    parsed = people.tasks(tasks, run) if tasks else EvaluationSpec.read(spec) if spec else None
    people.use_kernels(kernels)
    found = measure(run, data, parsed)
    row = found.validation.iloc[0]
    if row.status == "ok":
        print(f"{row.run_id}: {row.loss:.4f} nats/token [{row.loss_lo:.4f}, {row.loss_hi:.4f}], {row.n_docs} documents")
    else:
        print(f"{row.run_id}: {row.status}")
    for line in found.tasks.lines() if found.tasks else ():
        print(line)
    if not found.written:
        print(f"other texts than those of its training: nothing was written into {run}")


@app.command()
def analyze(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    data: Data = None,
    only: Annotated[str, typer.Option(help="Analyses, e.g. causal,logitlens.")] = "all",
    spec: Slice = None,
    kernels: Kernels = "auto",
) -> None:
    """Measure what each layer of a run does: tables, and without --spec figures, in the folder `analysis` of the run.

    Example: depthbench analyze results/tiny/runs/hc/t-d28-l16/lr1e-2-s0 --only causal,logitlens

    The calibration set is as large as ./config.yaml says for the run's study, the folder below results/; it is that of
    the key `study` for any other run, which is told. Items of ARC-Easy are as many as there, else all.
    """
    from depthbench.analyze import analyze as measure
    from depthbench.specs import AnalysisSpec

    if only != "all" and spec:
        raise UserError("E-SPEC", "--only and --spec say the same; give one of them")
    parsed = AnalysisSpec.read(spec) if spec else people.analyses(only, run)
    people.use_kernels(kernels)
    found = measure(run, parsed, data, complete=spec is not None)
    for line in found.lines():
        print(line)
    if not found.written:
        print(f"other texts than those of its training: nothing was written into {run}")
    elif spec is None:
        from depthbench import figures

        for path in figures.of_one(found.tables, run / "analysis"):
            print(path)


@app.command()
def preflight(
    spec: Spec, out: Annotated[Path, typer.Option(help="CSV to write, a row per case.")], kernels: Kernels = "auto"
) -> None:
    """Take two steps of every design at every shape of a study, two blocks deep; a failure names its case.

    Example: snakemake -c2 preflight --config study=paper
    """
    from depthbench import files
    from depthbench import preflight as cases

    parsed = cases.PreflightSpec.read(spec)
    lock.tell(out)
    people.use_kernels(kernels)
    with files.disk_errors():
        files.write_text(out, cases.check(parsed, kernels))


@app.command()
def table(
    spec: Spec,
    out: Annotated[Path, typer.Option(help="CSV; the LaTeX goes beside it.")],
    files: Files = None,
    results: Results = None,
) -> None:
    """Build one table from the files of its runs; the workflow says where they are, and gives the spec.

    Example: snakemake -c1 losses
    """
    from depthbench import tables
    from depthbench.artifacts import ArtifactSpec

    parsed = ArtifactSpec.from_json(spec)
    tables.write(parsed.name, [*(files or []), *parsed.files_below(results)], parsed, out)


@app.command()
def figure(
    spec: Spec,
    out: Annotated[Path, typer.Option(help="SVG; PDF, PNG, CSV go beside it.")],
    files: Files = None,
    results: Results = None,
) -> None:
    """Draw one figure from the files of its runs; the workflow says where they are, and gives the spec.

    Example: snakemake -c1 validation_loss
    """
    from depthbench import figures
    from depthbench.artifacts import ArtifactSpec

    parsed = ArtifactSpec.from_json(spec)
    figures.write(parsed.name, [*(files or []), *parsed.files_below(results)], parsed, out)


@app.command()
def prefill(
    spec: Spec, out: Annotated[Path, typer.Option(help="CSV to write, a row per case.")], kernels: Kernels = "auto"
) -> None:
    """Measure what a prompt costs each of three designs at the shapes of a study, at once and in chunks.

    Example: snakemake -c1 prefill --config study=tiny
    """
    from depthbench.bench import prefill as benchmark

    parsed = benchmark.PrefillSpec.read(spec)
    lock.tell(out)
    people.use_kernels(kernels)
    benchmark.write(parsed, kernels, out)


app.command(name="import")(exchange.import_)
for command in (exchange.export, people.shapes, people.plan, people.status, people.mirror):
    app.command()(command)
app.add_typer(cli.app, name="bench")


def _run() -> None:
    try:
        app()
    except UserError as error:
        if show_tracebacks:
            raise
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


def main() -> None:
    """Run the command line; an error that is the user's to mend is one line and status 2."""
    try:
        _run()
    except SystemExit as end:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            # Threads of torch.distributed that outlive Python's own end can abort it, after all is written.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code if isinstance(end.code, int) else 1)
        raise
    except Exception:
        # the log of the job then holds where, and the traceback
        print(f"{' '.join(sys.argv[:2])} failed on {lock.who()}", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()

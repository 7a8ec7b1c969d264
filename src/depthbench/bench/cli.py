"""`depthbench bench ...`: benchmarks by hand. Results of a study are measured by its own rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from depthbench import people
from depthbench.errors import UserError

if TYPE_CHECKING:
    from depthbench.bench.train import Shape
    from depthbench.schema import Config

app = typer.Typer(no_args_is_help=True, help="Measure speed and memory; one JSON line per case.")
Out = Annotated[Path | None, typer.Option(help="File to append the lines to; default: standard output.")]
Rounds = Annotated[int, typer.Option(min=3, help="Timed rounds, after two that warm up.")]
Study = Annotated[str | None, typer.Option(help="Study of config.yaml; default: the one named there.")]
Shapes = Annotated[list[str] | None, typer.Option("--shape", help="layers,width; may be repeated; default: all.")]
Kernels = Annotated[str, typer.Option(help="Backend of the fused operations, e.g. auto or eager.")]


@app.command()
def kernels(
    only: Annotated[
        str, typer.Option(help="Operations, e.g. mixing,hc_boundary; ceilings: copy and matrix product.")
    ] = "all",
    compiled: Annotated[bool, typer.Option(help="Also what torch.compile makes of the eager path.")] = False,
    rounds: Rounds = 15,
    out: Out = None,
) -> None:
    """Time each implementation of each fused operation, at sizes of the device; wrong ones are not timed.

    Example: depthbench bench kernels --only ceilings,mixing,hc_boundary --out kernels.jsonl
    """
    from depthbench.bench import kernels as benchmark
    from depthbench.bench import protocol

    chosen = people.names_of("--only", "operation", only, benchmark.ALL)
    protocol.write(benchmark.lines(chosen, rounds, compiled), out)


@app.command()
def train(
    study: Study = None,
    shape: Shapes = None,
    designs: Annotated[str, typer.Option(help="Designs, e.g. hc,attnres_full.")] = "all",
    rounds: Rounds = 9,
    kernels: Kernels = "auto",
    out: Out = None,
) -> None:
    """Time a training step of each design beside Pre-LN's; batch and lengths are those of the study's main suite.

    Example: depthbench bench train --study paper --shape 24,1024 --designs hc,attnres_full
    """
    from depthbench import runs
    from depthbench.bench import protocol
    from depthbench.bench import train as benchmark

    config = people.configuration(study)
    known = list(dict.fromkeys(run.design for run in runs.suites(config).get("main", [])))
    known = [design for design in known if config.designs[design].residual is None]
    chosen = people.names_of("--designs", "design of the suite main", designs, known)
    people.use_kernels(kernels)
    protocol.write(benchmark.lines(chosen, _shapes(config, shape), rounds), out)


@app.command()
def prefill(study: Study = None, shape: Shapes = None, kernels: Kernels = "auto", out: Out = None) -> None:
    """Measure what a prompt costs: time, peak memory, FLOPs, cache, at once and in chunks.

    Example: depthbench bench prefill --study tiny --shape 16,28
    """
    from depthbench.bench import prefill as benchmark
    from depthbench.bench import protocol

    config = people.configuration(study)
    wanted = benchmark.spec(config)
    pairs = [tuple(people.numbers("--shape", text, 2)) for text in shape or ()]
    there = wanted.cases if wanted else []
    cases = [case for case in there if not pairs or (case.model["n_layers"], case.model["d_model"]) in pairs]
    if wanted is None or not cases:
        asked = ", ".join(benchmark.DESIGNS) + (f" at {' '.join(shape)}" if shape else "")
        raise UserError("E-STUDY", f"suite main of {config.study} has none of {asked}; take another study or shape")
    people.use_kernels(kernels)
    protocol.write(benchmark.rows(wanted.model_copy(update={"cases": cases}), kernels), out)


@app.command()
def cpu(rounds: Rounds = 15, out: Out = None) -> None:
    r"""Measure the ratios that a change must not lose, on two threads of an idle CPU.

    Those beside LlamaForCausalLM need transformers: pip install depthbench\[benchmark].

    Example: depthbench bench cpu --out cpu.jsonl
    """
    from depthbench.bench import cpu as benchmark
    from depthbench.bench import protocol

    protocol.write(benchmark.lines(rounds), out)


def _shapes(config: Config, asked: list[str] | None) -> list[Shape]:
    """Return the shapes asked for, or those of the suite main, with the settings of its runs."""
    from depthbench import runs
    from depthbench.bench.train import Shape

    members = runs.suites(config).get("main", [])
    if not members:
        raise UserError("E-STUDY", f"study {config.study} has no suite main; take another with --study")
    pairs = [people.numbers("--shape", text, 2) for text in asked or ()]
    pairs = pairs or [list(pair) for pair in dict.fromkeys((run.n_layers, run.d_model) for run in members)]
    found = []
    for n_layers, d_model in pairs:
        run = replace(members[0], n_layers=n_layers, d_model=d_model)
        full, batch = runs.spec(config, run), runs.request(config, run).micro_batch
        found.append(Shape(full.model, full.sequence_length, batch, full.precision))
    return found

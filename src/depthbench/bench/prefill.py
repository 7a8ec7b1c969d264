"""What a prompt costs (paper Fig. 11): seconds, peak memory, FLOPs and key/value cache of one prefill.

Each design runs the prompts at once and in chunks (`depthbench.prefill`), with weights in the type that it computes in.
Time: the cases of a shape take turns in one process. Peak memory: each case in a process of its own, on a GPU what was
allocated, on a CPU the resident size of the whole process, Python and libraries included. FLOPs (logits of the last
position only) and cache are closed forms, for one sequence. Device-hours are seconds / 3600 of the one device.

No torch here: a dry-run imports this module for `spec`.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from depthbench import files, runs
from depthbench.errors import UserError
from depthbench.isolated import isolated
from depthbench.schema import Config, PrefillSize, Threads
from depthbench.specs import Spec

DESIGNS = ("preln", "hc", "attnres_full")
MODES = ("unchunked", "chunked")
ROUNDS = 5
SHAPE = ("n_layers", "d_model", "n_heads", "n_kv_heads", "vocab_size")


class PrefillCase(Spec):
    """One design at one shape."""

    design: str
    model: dict[str, Any]  # arguments of `ModelConfig`


class PrefillSpec(Spec):
    """All cases of a study, those of a shape behind each other."""

    size: PrefillSize
    compute: str
    threads: Threads | None = None
    cases: list[PrefillCase] = Field(min_length=1)


def spec(config: Config) -> PrefillSpec | None:
    """Return the designs of the figure at the shapes that they have in the suite `main`; None where they have none."""
    study = config.studies[config.study]
    found: dict[str, PrefillCase] = {}
    for run in runs.suites(config).get("main", []):
        if run.design in DESIGNS:
            case = PrefillCase(design=run.design, model=runs.spec(config, run).model)
            found[runs.dumps(case.as_dict())] = case
    cases = sorted(found.values(), key=lambda c: (c.model["n_layers"], -c.model["d_model"], DESIGNS.index(c.design)))
    recipe = config.recipes[study.recipe]
    if not cases:
        return None
    return PrefillSpec(size=study.prefill, compute=recipe.precision.compute, threads=recipe.threads, cases=cases)


def rows(wanted: PrefillSpec, kernels: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each case and mode, shape by shape.

    Raises:
        UserError: E-PREFILL for a case that failed.
    """
    shapes: dict[tuple[Any, ...], list[PrefillCase]] = {}
    for case in wanted.cases:
        shapes.setdefault(tuple(case.model.get(key) for key in SHAPE), []).append(case)
    for cases in shapes.values():
        timed = _done(isolated(_times, cases, wanted, kernels), cases[0])
        for case in cases:
            for mode in MODES:
                peak = _done(isolated(_peak, case, mode, wanted, kernels), case)
                yield _about(case, mode, wanted) | timed[f"{case.design} {mode}"] | peak | timed["facts"]


def write(wanted: PrefillSpec, kernels: str, out: Path) -> None:
    """Write all rows as CSV, and tell of each as it is measured."""
    found = []
    for row in rows(wanted, kernels):
        found.append(row)
        told = f"{row['seconds']:.3g} s, {row['peak_bytes'] / 2**20:,.0f} MiB"
        print(f"{row['design']} L{row['n_layers']} d{row['d_model']} {row['mode']}: {told}", flush=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, found[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    with files.disk_errors():
        files.write_text(out, text.getvalue())


def _done(found: dict[str, Any] | str, case: PrefillCase) -> dict[str, Any]:
    if isinstance(found, str):
        shape = f"L{case.model['n_layers']} d{case.model['d_model']}"
        raise UserError("E-PREFILL", f"{case.design} {shape}: {found}; make `prefill` of the study smaller")
    return found


def _about(case: PrefillCase, mode: str, wanted: PrefillSpec) -> dict[str, Any]:
    """Return what is known of a case without running it."""
    from depthbench import cost
    from depthbench.model import ModelConfig
    from depthbench.prefill import chunk_tokens

    cfg, (tokens, batch) = ModelConfig.read(case.model), (wanted.size.tokens, wanted.size.batch)
    number = 2 if wanted.compute == "bfloat16" else 4
    return {
        "design": case.design,
        "n_layers": cfg.n_layers,
        "d_model": cfg.d_model,
        "mode": mode,
        "tokens": tokens,
        "batch": batch,
        "chunk": tokens if mode == MODES[0] else chunk_tokens(cfg, tokens, batch, number),
        "compute": wanted.compute,
        "flops": cost.forward_flops(cfg, tokens, last_only=True),
        "kv_bytes": cost.kv_cache_bytes(cfg, tokens, number),
    }


def _call(case: PrefillCase, mode: str, wanted: PrefillSpec) -> Any:
    """Return a function that runs one prefill."""
    import torch

    from depthbench import device
    from depthbench.bench.models import drawn
    from depthbench.model import ModelConfig
    from depthbench.prefill import prefill

    at = device.choose(wanted.threads)
    model = drawn(ModelConfig.read(case.model), at, bfloat16=wanted.compute == "bfloat16").requires_grad_(False)
    size = wanted.size.batch, wanted.size.tokens
    tokens = torch.randint(model.cfg.vocab_size, size, generator=torch.Generator().manual_seed(0)).to(at)
    chunk = _about(case, mode, wanted)["chunk"]

    def call() -> None:
        with device.compute_type(wanted.compute, at):
            found = prefill(model, tokens, chunk)
        assert found.logits.isfinite().all()

    return call


def _times(cases: list[PrefillCase], wanted: PrefillSpec, kernels: str) -> dict[str, Any]:
    """Return the times of the cases of a shape, which take turns, and what measured them."""
    import depthbench_kernels
    from depthbench import device
    from depthbench.bench import protocol

    depthbench_kernels.use(kernels)
    at = device.choose(wanted.threads)
    calls = {f"{case.design} {mode}": _call(case, mode, wanted) for case in cases for mode in MODES}
    seconds = protocol.interleaved(calls, ROUNDS, at)
    first = next(iter(calls))
    found: dict[str, Any] = {}
    for name in calls:
        measured = protocol.times(seconds, name, first)
        kept = {f"seconds{end}": measured[f"{key}_s"] for end, key in (("", "median"), ("_min", "min"))}
        hours = {"devices": 1, "device_hours": measured["median_s"] / 3600}
        found[name] = kept | {key: measured[key] for key in ("rounds", "ratio", "noisy")} | hours
        if cases[0].design != DESIGNS[0]:
            found[name]["ratio"] = None  # to Pre-LN, of which there is none
    return found | {"facts": {"kernels": depthbench_kernels.backend(), **protocol.facts(at)}}


def _peak(case: PrefillCase, mode: str, wanted: PrefillSpec, kernels: str) -> dict[str, Any]:
    """Return the peak memory of a process that runs one prefill."""
    import torch

    import depthbench_kernels
    from depthbench import device, provenance

    depthbench_kernels.use(kernels)
    at = device.choose(wanted.threads)
    call = _call(case, mode, wanted)
    if at.type == "cuda":
        torch.cuda.reset_peak_memory_stats(at)  # the weights were made in float32
    call()
    what = "allocated" if at.type == "cuda" else "resident size of the process"
    return {"peak_bytes": provenance.peak_memory(at), "memory": what}

"""Does every design run at every shape of a study? Two steps of each, two blocks deep, before anything is submitted.

A case is a design at a width; its depth does not matter at two blocks. On a GPU it takes a micro-batch of full windows,
so time and memory are what the widest tensors of a real step need; a CPU, which shows only that the case runs, takes
one window of at most 128 tokens. Each case has a process of its own: its peak memory is its own, and one that is
killed costs no other.

No torch here: a dry-run imports this module for `spec`.
"""

import csv
import io
import time
from typing import Any, Self

from pydantic import Field, model_validator

from depthbench import runs
from depthbench.errors import UserError
from depthbench.isolated import isolated
from depthbench.schema import Config, Count, Optimizer, Precision
from depthbench.specs import Spec

N_BLOCKS = 2
CPU_TOKENS = 128


class Recipe(Spec):
    """What the steps of some cases share."""

    sequence_length: Count
    optimizer: Optimizer
    precision: Precision
    threads: Count | None = None


class Case(Spec):
    """One design at one width; `shapes` are those of the study that it stands for."""

    design: str
    shapes: list[str]
    recipe: str
    model: dict[str, Any]  # arguments of `ModelConfig`
    micro_batch: Count


class PreflightSpec(Spec):
    """All cases of a study."""

    recipes: dict[str, Recipe]
    cases: list[Case] = Field(min_length=1)

    @model_validator(mode="after")
    def _known_recipes(self) -> Self:
        if strangers := sorted({case.recipe for case in self.cases} - set(self.recipes)):
            raise ValueError(f"recipes has no {strangers[0]!r}, which a case names")
        return self


def spec(config: Config) -> PreflightSpec:
    """Return the cases of all suites, control suites included, each once."""
    study = config.studies[config.study]
    recipes: dict[str, Recipe] = {}
    shapes: dict[str, dict[str, None]] = {}
    found: dict[str, Case] = {}
    for run in runs.union(runs.suites(config) | runs.controls(config)):
        full = runs.spec(config, run)
        name = run.recipe or study.recipe
        recipes[name] = Recipe(**{key: getattr(full, key) for key in Recipe.model_fields})
        model, micro_batch = full.model | {"n_layers": N_BLOCKS}, runs.request(config, run).micro_batch
        case = Case(design=run.design, shapes=[], recipe=name, model=model, micro_batch=micro_batch)
        key = runs.dumps(case.as_dict())
        found[key] = case
        shapes.setdefault(key, {})[f"L{run.n_layers} d{run.d_model}"] = None
    cases = [case.model_copy(update={"shapes": list(shapes[key])}) for key, case in found.items()]
    return PreflightSpec(recipes=recipes, cases=cases)


def check(wanted: PreflightSpec, kernels: str) -> str:
    """Run all cases, a line for each as they go; return one row per case as CSV.

    Raises:
        UserError: E-PREFLIGHT, a line for each case that failed, after all have run.
    """
    rows, problems = [], []
    for number, case in enumerate(wanted.cases, start=1):
        name = f"{case.design} {', '.join(case.shapes)}"
        done = isolated(_steps, case, wanted.recipes[case.recipe], kernels)
        if isinstance(done, str):
            problems.append(f"{name}: {done}")
            told = f"FAILED: {done}"
        else:
            rows.append(_keys(case, wanted.recipes[case.recipe]) | done)
            told = f"{done['n_params']:,} parameters, {done['seconds']:.3g} s, {done['peak_bytes'] / 2**20:,.0f} MiB"
        print(f"[{number}/{len(wanted.cases)}] {name}: {told}", flush=True)
    if problems:
        raise UserError("E-PREFLIGHT", *problems)
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _keys(case: Case, recipe: Recipe) -> dict[str, Any]:
    """Return the first columns of a row."""
    from depthbench.model import ModelConfig

    model = ModelConfig.read(case.model)
    return {
        "design": case.design,
        "shapes": ", ".join(case.shapes),
        **{key: getattr(model, key) for key in ("d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size")},
        "recipe": case.recipe,
        "n_blocks": N_BLOCKS,
        "master": recipe.precision.master or "float32",
        "compute": recipe.precision.compute,
    }


def _steps(case: Case, recipe: Recipe, kernels: str) -> dict[str, Any]:
    """Take two steps, the first to warm up, return what the second took; then one pass of the layer analyses.

    Raises:
        ValueError: if a parameter gets no gradient, or a loss, gradient, weight or that pass is not finite.
    """
    import torch

    import depthbench_kernels
    from depthbench import device, optim, provenance, train
    from depthbench.analyses import Batch
    from depthbench.analyses._baseline import Baseline
    from depthbench.model import ModelConfig
    from depthbench.model.backbone import build_model, store_bfloat16

    depthbench_kernels.use(kernels)
    at = device.choose(recipe.threads)
    model = build_model(ModelConfig.read(case.model)).to(at)
    if recipe.precision.master == "bfloat16":
        store_bfloat16(model)
    loss_of = train.Loss(model, recipe.precision.compute)
    optimizer = optim.AdamW(model, model.residual.no_decay, recipe.optimizer)
    on_cpu = at.type == "cpu"
    size = (1, min(recipe.sequence_length, CPU_TOKENS)) if on_cpu else (case.micro_batch, recipe.sequence_length)
    tokens = torch.randint(model.cfg.vocab_size, size, generator=torch.Generator().manual_seed(0)).to(at)
    for _ in range(2):
        started = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_of(tokens) / tokens.numel()
        loss.backward()
        optimizer.step(lr=1e-3)
        device.wait(at)
        seconds = time.perf_counter() - started
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                raise ValueError(f"{name} gets no gradient")
            if not (parameter.grad.isfinite().all() and parameter.isfinite().all()):
                raise ValueError(f"{name} is not finite after a step, or its gradient is not")
    if not loss.isfinite():
        raise ValueError(f"the loss is {loss.item()}")
    peak = provenance.peak_memory(at)
    with torch.no_grad():
        # What layer analyses begin with: its streams are float32, those of training may not be.
        base = Baseline(model.float().eval(), Batch(tokens[:1], ("",), ("",)), recipe.precision.compute)
        if not base.document_nll(base.states[-1]).isfinite().all():
            raise ValueError("the pass of the layer analyses is not finite")
    return {
        "sequences": size[0],
        "sequence_length": size[1],
        "n_params": model.cfg.count_params(),
        "seconds": round(seconds, 6),
        "peak_bytes": peak,
        "device": provenance.machine(at)["device"],
        "threads": torch.get_num_threads(),
        "kernels": depthbench_kernels.backend(),
        "commit": provenance.commit()["commit"],
    }

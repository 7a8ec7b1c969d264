"""A training step of each design beside Pre-LN's of the same shape: forward, backward, clipping, AdamW.

FLOPs are those of `cost.training_flops`; `flops_residual` is the part that the design adds. On a GPU the peak memory of
a case is that of its own steps, without what the other one keeps.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

import depthbench_kernels
from depthbench import cost, device, optim, train
from depthbench.bench import protocol
from depthbench.bench.ceilings import gemm_flops_per_s
from depthbench.bench.models import drawn
from depthbench.model import ModelConfig
from depthbench.schema import Optimizer, Precision

SETTINGS = Optimizer(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0)
BASELINE = "preln"


class Shape(NamedTuple):
    """What the steps of the designs at one shape share; `model` are arguments of `ModelConfig`, its design aside."""

    model: dict[str, Any]
    tokens: int
    batch: int
    precision: Precision


def training_step(
    cfg: ModelConfig, tokens: torch.Tensor, precision: Precision, settings: Optimizer = SETTINGS
) -> Callable[[], None]:
    """Return a function that takes one training step on (B, T) tokens, on their device."""
    model = drawn(cfg, tokens.device, bfloat16=precision.master == "bfloat16")
    loss = train.Loss(model, precision.compute)
    optimizer = optim.AdamW(model, model.residual.no_decay, settings)
    predictions = tokens.shape[0] * (tokens.shape[1] - 1)

    def step() -> None:
        optimizer.zero_grad()
        (loss(tokens) / predictions).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step(lr=0.0)

    return step


def batch(vocab_size: int, size: tuple[int, int], at: torch.device) -> torch.Tensor:
    """Return the tokens of every step, (B, T)."""
    return torch.randint(vocab_size, size, generator=torch.Generator().manual_seed(0)).to(at)


def lines(designs: list[str], shapes: list[Shape], rounds: int) -> Iterator[dict[str, Any]]:
    """Measure every design at every shape; Pre-LN beside itself tells the noise."""
    at = protocol.choose()
    ceiling = gemm_flops_per_s(at) if at.type == "cuda" else None
    for shape in shapes:
        for design in designs:
            yield line(design, shape, rounds, at, ceiling)


def line(design: str, shape: Shape, rounds: int, at: torch.device, ceiling: float | None = None) -> dict[str, Any]:
    """Return the line of a case; a batch that does not fit into the GPU's memory is halved."""
    sequences, about = shape.batch, {"case": f"train_step {design}", "baseline": BASELINE}
    while sequences:
        try:
            found = _steps(design, shape._replace(batch=sequences), rounds, at, ceiling)
            return about | found | ({"batch_wanted": shape.batch} if sequences < shape.batch else {})
        except torch.OutOfMemoryError:
            sequences //= 2
        torch.cuda.empty_cache()  # out here: the error would keep the tensors
    sizes = {key: shape.model[key] for key in ("n_layers", "d_model")}
    return {**about, **sizes, "batch": 1, "tokens": shape.tokens, "error": "out of memory", **protocol.facts(at)}


def _steps(design: str, shape: Shape, rounds: int, at: torch.device, ceiling: float | None) -> dict[str, Any]:
    cfg, base = (ModelConfig.read(shape.model | {"design": name}) for name in (design, BASELINE))
    tokens = batch(cfg.vocab_size, (shape.batch, shape.tokens), at)
    cases, peaks = {}, {}
    for name, model in (("baseline", base), ("case", cfg)):
        before = torch.cuda.memory_allocated(at) if at.type == "cuda" else 0
        cases[name] = training_step(model, tokens, shape.precision)
        peaks[name] = _peak_bytes(cases[name], before, at)
    found = protocol.times(protocol.interleaved(cases, rounds, at), "case", "baseline")
    known = protocol.facts(at)
    flops = cost.training_flops(cfg, shape.tokens) * shape.batch
    low = shape.precision.compute == "bfloat16"  # the type that peak and ceiling are of
    speed = protocol.speed(flops, found["median_s"], known["device"] if low else "")
    return {
        **{key: getattr(cfg, key) for key in ("n_layers", "d_model", "n_heads", "vocab_size")},
        "batch": shape.batch,
        "tokens": shape.tokens,
        "compute": shape.precision.compute,
        "kernels": depthbench_kernels.backend(),
        **found,
        "extra_ms_per_sublayer": 1e3 * (found["median_s"] - found["baseline_median_s"]) / (2 * cfg.n_layers),
        "flops": flops,
        "flops_residual": 3 * cost.residual_flops(cfg, shape.tokens) * shape.batch,
        **speed,
        "share_of_gemm": speed["flops_per_s"] / ceiling if ceiling and low and speed["flops_per_s"] else None,
        "peak_bytes": peaks["case"],
        "baseline_peak_bytes": peaks["baseline"],
        **known,
    }


def _peak_bytes(step: Callable[[], None], before: int, at: torch.device) -> int | None:
    """Return what two steps, the second with moments, take on a GPU beyond what was there before the model."""
    if at.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(at)
    step()
    step()
    device.wait(at)
    return torch.cuda.max_memory_allocated(at) - before

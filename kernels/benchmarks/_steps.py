"""What the benchmarks share: one training step, turns in one process, rows of `results.csv`.

A case is compared with its baseline in the same process, the two taking turns, so that what else the machine does
meets both. `ratio` is the median time of the case over that of the baseline; its quartiles are those of the rounds.
"""

import csv
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import torch

from depthbench import optim, provenance, train
from depthbench.model import ModelConfig, build_model
from depthbench.schema import Optimizer

RESULTS = Path(__file__).with_name("results.csv")
THREADS, BATCH, TOKENS, WARM_UPS = 2, 8, 128, 2
SETTINGS = Optimizer(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0)


def batch(vocab_size: int) -> torch.Tensor:
    """Return the tokens of every step, (BATCH, TOKENS)."""
    return torch.randint(vocab_size, (BATCH, TOKENS), generator=torch.Generator().manual_seed(0))


def training_step(cfg: ModelConfig, tokens: torch.Tensor) -> Callable[[], None]:
    """Return a function that takes one training step: forward, backward, clipping, AdamW."""
    model = build_model(cfg)
    loss = train.Loss(model, "float32")
    optimizer = optim.build(model, model.residual.no_decay, SETTINGS)
    predictions = tokens.shape[0] * (tokens.shape[1] - 1)

    def step() -> None:
        optimizer.zero_grad()
        (loss(tokens) / predictions).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.clip)
        optimizer.step()

    return step


def interleaved(cases: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each call, the cases taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(WARM_UPS + rounds):
        for name, step in cases.items():
            started = time.perf_counter()
            step()
            if turn >= WARM_UPS:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def record(
    case: str, baseline: str, shape: dict[str, int], seconds: dict[str, list[float]], what: str = "train_step"
) -> None:
    """Append the row of a case to `results.csv`, and print it."""
    ratios = [a / b for a, b in zip(seconds[case], seconds[baseline], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    ratio = statistics.median(seconds[case]) / statistics.median(seconds[baseline])
    row = {
        "case": f"{what} {case}",
        "baseline": baseline,
        **shape,
        "batch": shape.get("batch", BATCH),
        "tokens": TOKENS,
        "median_s": f"{statistics.median(seconds[case]):.5f}",
        "baseline_median_s": f"{statistics.median(seconds[baseline]):.5f}",
        "ratio": f"{ratio:.3f}",
        "ratio_q25": f"{low:.3f}",
        "ratio_q75": f"{high:.3f}",
        "noisy": high - low > 0.1 * middle,
        "rounds": len(ratios),
        "threads": torch.get_num_threads(),
        "load": f"{os.getloadavg()[0]:.1f}",
        "machine": platform.machine(),
        "torch": version("torch"),
        "commit": (provenance.commit()["commit"] or "unknown")[:12],
        "date": time.strftime("%Y-%m-%d"),
    }
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, row, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
    where = ", ".join(f"{key} {value}" for key, value in shape.items())
    print(f"{what} {case} ({where}): {ratio:.2f} times the time of {baseline} ({low:.2f} to {high:.2f})", flush=True)

"""A training step of our Pre-LN beside transformers' LlamaForCausalLM of the same shape, on a CPU.

Forward, backward, clipping and AdamW, interleaved in one process (ours, theirs, ours, ...); the ratio is that of the
medians, and its spread that of the rounds. Appends to `results.csv`. Needs `pip install depthbench[benchmark]`.
Usage: python kernels/benchmarks/train_step.py [ROUNDS]
"""

import csv
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from depthbench import optim, provenance
from depthbench.config import Optimizer
from depthbench.model import ModelConfig, build_model
from depthbench_kernels.linear_cross_entropy import linear_cross_entropy

RESULTS = Path(__file__).with_name("results.csv")
THREADS, BATCH, TOKENS, WARM_UPS = 2, 8, 128, 2
SHAPES = [(16, 28, 2, 512), (8, 256, 4, 4096), (12, 512, 8, 4096)]  # n_layers, d_model, n_heads, vocab_size


def ours(cfg: ModelConfig, tokens: torch.Tensor) -> Callable[[], None]:
    """Return a function that takes one training step of our model."""
    model = build_model(cfg)
    optimizer = optim.build(model, (), Optimizer(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0))
    target = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100).flatten()
    predictions = tokens.shape[0] * (tokens.shape[1] - 1)

    def step() -> None:
        optimizer.zero_grad()
        nll = linear_cross_entropy(model.features(tokens).flatten(0, 1), model.lm_head.weight, target, -100)
        (nll / predictions).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def theirs(cfg: ModelConfig, tokens: torch.Tensor) -> Callable[[], None]:
    """Return a function that takes one training step of LlamaForCausalLM."""
    llama = transformers.LlamaConfig(
        vocab_size=cfg.vocab_size,
        hidden_size=cfg.d_model,
        intermediate_size=cfg.d_ff,
        num_hidden_layers=cfg.n_layers,
        num_attention_heads=cfg.n_heads,
        num_key_value_heads=cfg.n_kv_heads,
        head_dim=cfg.head_dim,
        rms_norm_eps=cfg.norm_eps,
        tie_word_embeddings=False,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = transformers.LlamaForCausalLM(llama)
    assert sum(p.numel() for p in model.parameters()) == cfg.count_params()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def interleaved(cases: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each call, the cases taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(WARM_UPS + rounds):
        for name, step in cases.items():
            started = time.perf_counter()
            step()
            if turn >= WARM_UPS:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def measure(shape: tuple[int, int, int, int], rounds: int) -> dict[str, object]:
    """Return one row of `results.csv`."""
    n_layers, d_model, n_heads, vocab_size = shape
    cfg = ModelConfig(design="preln", d_model=d_model, n_layers=n_layers, n_heads=n_heads, vocab_size=vocab_size)
    tokens = torch.randint(vocab_size, (BATCH, TOKENS), generator=torch.Generator().manual_seed(0))
    seconds = interleaved({"ours": ours(cfg, tokens), "llama": theirs(cfg, tokens)}, rounds)
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["llama"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    speed = statistics.median(seconds["llama"]) / statistics.median(seconds["ours"])
    return {
        "case": "train_step preln / LlamaForCausalLM",
        "n_layers": n_layers,
        "d_model": d_model,
        "n_heads": n_heads,
        "vocab_size": vocab_size,
        "batch": BATCH,
        "tokens": TOKENS,
        "ours_median_s": f"{statistics.median(seconds['ours']):.5f}",
        "llama_median_s": f"{statistics.median(seconds['llama']):.5f}",
        "speed_ratio": f"{speed:.3f}",
        "ratio_q25": f"{low:.3f}",
        "ratio_q75": f"{high:.3f}",
        "noisy": high - low > 0.1 * middle,
        "rounds": rounds,
        "threads": THREADS,
        "load": f"{os.getloadavg()[0]:.1f}",
        "machine": platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": (provenance.commit()["commit"] or "unknown")[:12],
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    """Measure every shape and append its row."""
    torch.set_num_threads(THREADS)
    for shape in SHAPES:
        row = measure(shape, int(sys.argv[1]) if len(sys.argv) > 1 else 30)
        new = not RESULTS.exists()
        with RESULTS.open("a", newline="") as file:
            writer = csv.DictWriter(file, row.keys())
            if new:
                writer.writeheader()
            writer.writerow(row)
        print(
            f"L={shape[0]} d={shape[1]}: {row['speed_ratio']} times as fast ({row['ratio_q25']} to {row['ratio_q75']})"
        )


if __name__ == "__main__":
    main()

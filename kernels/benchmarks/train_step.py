"""A training step of our Pre-LN beside transformers' LlamaForCausalLM of the same shape, on a CPU.

Appends to `results.csv`. Needs `pip install depthbench[benchmark]`.
Usage: python kernels/benchmarks/train_step.py [ROUNDS]
"""

import sys
from collections.abc import Callable
from importlib.metadata import version

import _steps
import torch
import transformers

from depthbench.model import ModelConfig

SHAPES = [(16, 28, 2, 512), (8, 256, 4, 4096), (12, 512, 8, 4096)]  # n_layers, d_model, n_heads, vocab_size


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
    settings = _steps.SETTINGS
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=settings.betas, weight_decay=settings.weight_decay, fused=True
    )

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()

    return step


def main() -> None:
    """Measure every shape."""
    torch.set_num_threads(_steps.THREADS)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    baseline = f"LlamaForCausalLM of transformers {version('transformers')}"
    for sizes in SHAPES:
        shape = dict(zip(("n_layers", "d_model", "n_heads", "vocab_size"), sizes, strict=True))
        tokens = _steps.batch(shape["vocab_size"])
        cfg = ModelConfig.read({"design": "preln", **shape})
        cases = {"preln": _steps.training_step(cfg, tokens), baseline: theirs(cfg, tokens)}
        _steps.record("preln", baseline, shape, _steps.interleaved(cases, rounds))


if __name__ == "__main__":
    main()

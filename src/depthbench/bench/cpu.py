"""The ratios that a CPU can hold: our code beside others' or beside the plain way to write it, on two threads.

Each line has a `gate`, the largest ratio that is let pass, and an `aim`. Speeds are those of training steps or of
forward and backward passes; the memory of mixing is counted in buffers that hold all sources once.
"""

import importlib.util
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import torch

from depthbench import provenance
from depthbench.bench import kernels, operations, protocol, train
from depthbench.errors import UserError
from depthbench.isolated import isolated
from depthbench.model import ModelConfig
from depthbench.schema import Precision

CPU = torch.device("cpu")
BATCH, TOKENS = 8, 128
FLOAT32 = Precision(master=None, compute="float32")
LLAMA = [(16, 28, 2, 512), (8, 256, 4, 4096), (12, 512, 8, 4096)]  # n_layers, d_model, n_heads, vocab_size
LLAMA_GATE = 1 / 0.9, 1.0
WHOLE = {(24, 128, 4, 512): (2.2, 1.5), (70, 64, 4, 512): (3.0, 2.0)}  # shape: gate, aim
MIXING = {(24, 256): (1 / 4, 1 / 7), (70, 160): (1 / 12, 1 / 25)}  # n_layers, d_model: gate, aim
HC_GATE = 1 / 1.1, 1 / 1.25
MEMORY_GATE = 8.0, 5.0
MIXED_TOKENS = 512


def lines(rounds: int) -> Iterator[dict[str, Any]]:
    """Measure all ratios; those beside LlamaForCausalLM need the extra `benchmark`."""
    torch.set_num_threads(protocol.THREADS)
    if importlib.util.find_spec("transformers"):
        yield from (_beside_llama(sizes, rounds) for sizes in LLAMA)
    for sizes, limits in WHOLE.items():
        shape = train.Shape(_model(sizes), TOKENS, BATCH, FLOAT32)
        yield {**train.line("attnres_full", shape, rounds, CPU), **_limits(limits)}
    for (n_layers, width), limits in MIXING.items():
        size = operations.Size(MIXED_TOKENS, width, 2 * n_layers + 1, CPU, torch.float32)
        yield {"n_layers": n_layers, **_beside_reference("mixing", size, rounds), **_limits(limits)}
    yield {"n_layers": n_layers, **_memory_of_mixing(n_layers, width), **_limits(MEMORY_GATE)}
    size = operations.Size(MIXED_TOKENS, 256, 0, CPU, torch.float32)
    yield {**_beside_reference("hc_boundary", size, rounds), **_limits(HC_GATE)}


def _limits(limits: tuple[float, float]) -> dict[str, float]:
    return dict(zip(("gate", "aim"), limits, strict=True))


def _model(sizes: tuple[int, int, int, int]) -> dict[str, Any]:
    return dict(zip(("n_layers", "d_model", "n_heads", "vocab_size"), sizes, strict=True))


def _beside_reference(name: str, size: operations.Size, rounds: int) -> dict[str, Any]:
    """Return the line of the eager path of an operation, forward and backward, beside its definition."""
    operation = operations.OPERATIONS[name](size)
    calls = {way: kernels.both(operation.functions[way], operation.inputs) for way in ("eager", "reference")}
    found = protocol.times(protocol.interleaved(calls, rounds, CPU), "eager", "reference")
    about = {"case": f"{name} eager", "baseline": "reference", "d_model": size.width, "tokens": size.tokens}
    return {**about, **found, **protocol.facts(CPU)}


def _memory_of_mixing(n_layers: int, width: int) -> dict[str, Any]:
    """Return the line of the peak memory of mixing, in buffers of all sources."""
    found = isolated(_mixing_peak, n_layers, width)
    if isinstance(found, str):
        raise UserError("E-BENCH", f"memory of mixing, {n_layers} layers: {found}; run on an idle machine")
    about = {"case": "memory of mixing", "baseline": "one buffer of all sources", "d_model": width}
    return {**about, "tokens": MIXED_TOKENS, **found, **protocol.facts(CPU)}


def _mixing_peak(n_layers: int, width: int) -> dict[str, Any]:
    torch.set_num_threads(protocol.THREADS)
    size = operations.Size(MIXED_TOKENS, width, 2 * n_layers + 1, CPU, torch.float32)
    small = operations.mixing(size._replace(tokens=1))
    kernels.both(small.functions["eager"], small.inputs)()  # what libraries take once is not counted
    operation = operations.mixing(size)
    before = provenance.peak_memory(CPU)
    kernels.both(operation.functions["eager"], operation.inputs)()
    buffer = (2 * n_layers + 1) * MIXED_TOKENS * width * 4
    return {
        "peak_bytes": provenance.peak_memory(CPU) - before,
        "ratio": (provenance.peak_memory(CPU) - before) / buffer,
    }


def _beside_llama(sizes: tuple[int, int, int, int], rounds: int) -> dict[str, Any]:
    cfg = ModelConfig.read({"design": "preln", **_model(sizes)})
    tokens = train.batch(cfg.vocab_size, (BATCH, TOKENS), CPU)
    baseline = f"LlamaForCausalLM of transformers {version('transformers')}"
    calls = {"preln": train.training_step(cfg, tokens, FLOAT32), baseline: _llama_step(cfg, tokens)}
    found = protocol.times(protocol.interleaved(calls, rounds, CPU), "preln", baseline)
    about = {"case": "train_step preln", "baseline": baseline, **_model(sizes), "batch": BATCH, "tokens": TOKENS}
    return {**about, **found, **_limits(LLAMA_GATE), **protocol.facts(CPU)}


def _llama_step(cfg: ModelConfig, tokens: torch.Tensor) -> Callable[[], None]:
    """Return a function that takes one training step of LlamaForCausalLM of the same shape."""
    import transformers

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
    settings = train.SETTINGS
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=settings.betas, weight_decay=settings.weight_decay, fused=True
    )

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()

    return step

"""The operations that `bench kernels` measures, and every implementation of them that this machine can run.

An operation is made for some number of tokens: its inputs, the functions of its implementations, and the fewest
numbers that it must move (kernels read inputs once and write outputs once). `mixing` is the whole depth of Full
AttnRes: n sources, n - 1 sites; a site's output, its channels scaled by fixed numbers, is the next source.
"""

import importlib
import importlib.util
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from depthbench_kernels.streams import HCRouting, MHCRouting

EPS = 1e-6
STREAMS = 4
VOCAB = {"cuda": 50280, "cpu": 4096}
HEADS = 16
WINDOW = 2048  # positions of a sequence, for attention
LIGER_SOURCES = 49  # its kernel is unrolled over sources, and compiles for minutes beyond
LIGER_LARGEST = 2**31  # elements; its offsets are 32-bit
Function = Callable[..., Any]


class Operation(NamedTuple):
    """One operation at one size; `least` are numbers of the activation type: forward, forward and backward."""

    inputs: list[Tensor]
    functions: dict[str, Function]  # implementation -> function of the inputs
    least: tuple[int, int] | None = None
    flops: int | None = None  # of the forward pass, where it is a matrix product that takes the time


class Size(NamedTuple):
    """What an operation is made for."""

    tokens: int
    width: int
    sources: int
    at: torch.device
    dtype: torch.dtype  # of activations; gains, queries and routing are float32
    compiled: bool = False  # also what torch.compile makes of the eager path

    def activation(self, *shape: int, seed: int = 0) -> Tensor:
        """Return normal numbers that want a gradient."""
        return self._normal(shape, seed).to(self.dtype).requires_grad_()

    def parameter(self, *shape: int, around: float = 0.0, seed: int = 1) -> Tensor:
        """Return float32 numbers about `around` that want a gradient."""
        return (around + 0.05 * self._normal(shape, seed)).requires_grad_()

    def _normal(self, shape: tuple[int, ...], seed: int) -> Tensor:
        return torch.randn(shape, generator=torch.Generator(self.at).manual_seed(seed), device=self.at)


def modules(operation: str, at: torch.device) -> dict[str, ModuleType]:
    """Return the implementations of an operation in this process; Triton's only on a GPU."""
    names = ["reference", "eager"]
    full = f"depthbench_kernels.{operation}"
    if at.type == "cuda" and importlib.util.find_spec("triton") and importlib.util.find_spec(f"{full}.triton"):
        names.append("triton")
    return {name: importlib.import_module(f"{full}.{name}") for name in names}


def functions(operation: str, size: Size, call: Callable[[ModuleType], Function]) -> dict[str, Function]:
    """Return what `call` makes of every implementation, and of the compiled eager one where it is asked for."""
    made = {name: call(module) for name, module in modules(operation, size.at).items()}
    return made | ({"compiled": torch.compile(made["eager"], dynamic=False)} if size.compiled else {})


def add_norm(size: Size, mode: str) -> Operation:
    """Return the sum with a branch output, and its norm."""
    shape = size.tokens, size.width
    inputs = [size.activation(*shape), size.activation(*shape, seed=2)]
    inputs += [size.parameter(size.width, around=1.0, seed=seed) for seed in (3, 4)]

    def call(module: ModuleType) -> Function:
        def run(x: Tensor, f: Tensor, gain: Tensor, gain2: Tensor) -> Any:
            found = module.add_norm(x, f, gain, eps=EPS, mode=mode, alpha=1.5, scale=1.0, gain2=gain2)
            return found[:1] if mode == "post" else found

        return run

    made = functions("norms", size, call)
    if mode == "pre" and (liger := _liger(size.at)):
        made["liger"] = lambda x, f, gain, gain2: liger.liger_fused_add_rms_norm(f, x, gain, EPS, in_place=False)[::-1]
    forward, backward = {"pre": (4, 4), "sandwich": (4, 6), "keel": (4, 4), "post": (3, 4)}[mode]
    return Operation(inputs, made, _numbers(size, forward, forward + backward))


def depth_mix(size: Size) -> Operation:
    """Return one site over a list of sources."""
    n = size.sources
    inputs = [size.parameter(size.width), size.parameter(size.width, around=1.0, seed=2)]
    inputs += [size.activation(size.tokens, size.width, seed=10 + i) for i in range(n)]

    def call(module: ModuleType) -> Function:
        return lambda weight, gain, *sources: module.depth_mix(sources, weight, gain, eps=EPS)

    made = functions("depth_mix", size, call)
    if n <= LIGER_SOURCES and (liger := _liger(size.at)):
        made["liger"] = lambda weight, gain, *sources: _liger_site(liger, sources, weight, gain)
    return Operation(inputs, made, _numbers(size, n + 1, n + 1 + 2 * n + 1))


def mixing(size: Size) -> Operation:
    """Return all sites of a depth."""
    sites = size.sources - 1
    # without scales all sources would be nearly equal, and the gradients of the queries rounding
    scales = size.activation(sites, size.width, seed=5).detach()
    inputs = [size.activation(size.tokens, size.width), size.parameter(sites, size.width)]
    inputs.append(size.parameter(size.width, around=1.0, seed=2))

    def call(module: ModuleType) -> Function:
        def run(embedding: Tensor, weights: Tensor, gain: Tensor) -> Tensor:
            workspace, newest = module.Workspace(embedding, weights, eps=EPS), embedding
            for scale in scales:
                newest = workspace.consume(newest, gain) * scale
            return newest

        return run

    made = functions("depth_mix", size, call)
    if size.sources <= LIGER_SOURCES and (liger := _liger(size.at)):

        def by_liger(embedding: Tensor, weights: Tensor, gain: Tensor) -> Tensor:
            sources = [embedding, embedding]
            for weight, scale in zip(weights, scales, strict=True):
                sources.append(_liger_site(liger, sources, weight, gain) * scale)
            return sources[-1]

        made["liger"] = by_liger
    return Operation(inputs, made)


def boundary(size: Size, design: str) -> Operation:
    """Return the write, routing, read and norm between two sub-layers of HC or mHC."""
    m, d = STREAMS, size.width
    inputs = [size.activation(size.tokens, m, d), size.activation(size.tokens, d, seed=2)]
    inputs += [size.parameter(size.tokens, m, around=1.0), size.parameter(d, around=1.0)]
    if design == "hc":
        inputs += [size.parameter(m, m + 1, around=0.5), size.parameter(m, around=1.0), size.parameter(d, m + 1)]
        inputs += [size.parameter(d), size.parameter(around=0.1), size.parameter(around=0.1, seed=2)]
    else:
        columns = m * m + 2 * m
        inputs += [size.parameter(m * d, columns), size.parameter(columns)]
        inputs += [size.parameter(around=0.1, seed=seed) for seed in range(3)]
    routing: Any = HCRouting if design == "hc" else MHCRouting
    more = {} if design == "hc" else {"iters": 20, "sinkhorn_eps": EPS}

    def call(module: ModuleType) -> Function:
        operation = getattr(module, f"{design}_boundary")
        return lambda H, f, w, gain, *own: operation(H, (f, w), routing(*own), gain, routing_eps=EPS, eps=EPS, **more)

    made = functions("streams", size, call)
    if design == "mhc" and _liger(size.at):
        made["liger"] = call(importlib.import_module("depthbench_kernels.streams.liger"))
    return Operation(inputs, made, _numbers(size, 10, 25))


def linear_cross_entropy(size: Size) -> Operation:
    """Return LM head and loss."""
    vocab = VOCAB[size.at.type]
    generator = torch.Generator().manual_seed(5)
    target = torch.randint(vocab, (size.tokens,), generator=generator).to(size.at)
    inputs = [size.activation(size.tokens, size.width), size.activation(vocab, size.width, seed=2)]

    def call(module: ModuleType) -> Function:
        return lambda x, weight: module.linear_cross_entropy(x, weight, target, -100)

    made = functions("linear_cross_entropy", size, call)
    if liger := _liger(size.at):
        made["liger"] = lambda x, w: liger.liger_fused_linear_cross_entropy(x, w, target, reduction="sum")
    return Operation(inputs, made, flops=2 * size.tokens * size.width * vocab)


def depth_attention(size: Size) -> Operation:
    """Return MoDA's attention over a sequence and n - 1 slots of each token."""
    positions = min(WINDOW, size.tokens)
    shape = size.tokens // positions, positions, HEADS, size.width // HEADS
    slots = size.sources - 1
    inputs = [size.activation(*shape, seed=i) for i in range(3 + 2 * slots)]

    def call(module: ModuleType) -> Function:
        return lambda q, k, v, *own: module.depth_attention(q, k, v, own[:slots], own[slots:])

    return Operation(inputs, functions("depth_attention", size, call))


OPERATIONS: dict[str, Callable[[Size], Operation]] = {
    **{f"add_norm {mode}": partial(add_norm, mode=mode) for mode in ("pre", "sandwich", "keel", "post")},
    "hc_boundary": partial(boundary, design="hc"),
    "mhc_boundary": partial(boundary, design="mhc"),
    "depth_mix": depth_mix,
    "mixing": mixing,
    "linear_cross_entropy": linear_cross_entropy,
    "depth_attention": depth_attention,
}
OF_SOURCES = ("depth_mix", "mixing", "depth_attention")  # measured for several numbers of sources


def _numbers(size: Size, forward: int, both: int) -> tuple[int, int]:
    return forward * size.tokens * size.width, both * size.tokens * size.width


def _liger(at: torch.device) -> Any:
    """Return Liger's functions, None where its kernels do not run."""
    if at.type != "cuda" or importlib.util.find_spec("liger_kernel") is None:
        return None
    return importlib.import_module("liger_kernel.transformers.functional")


def _liger_site(liger: Any, sources: Any, weight: Tensor, gain: Tensor) -> Tensor:
    """Return a normalised mixture; the stack belongs to what it costs."""
    stacked = torch.stack([*sources])
    if stacked.numel() >= LIGER_LARGEST:
        raise ValueError(f"{stacked.numel()} elements: Liger's offsets are 32-bit")
    h = liger.liger_attn_res(stacked[:, None], weight, torch.ones_like(weight), EPS)[0]
    return liger.liger_rms_norm(h, gain, EPS, in_place=False)

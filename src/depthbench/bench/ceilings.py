"""What the device itself reaches: bytes/s of a copy (read and written), FLOP/s of a square matrix product."""

import statistics
from collections.abc import Iterator
from typing import Any

import torch

from depthbench.bench import protocol

ROUNDS = 10
COPY_BYTES = {"cuda": 2**30, "cpu": 2**27}
GEMM_SIZE = {"cuda": 8192, "cpu": 1024}
GEMM_TYPE = {"cuda": torch.bfloat16, "cpu": torch.float32}


def copy_bytes_per_s(at: torch.device) -> float:
    """Return the speed of a copy, both its directions counted."""
    source = torch.zeros(COPY_BYTES[at.type], dtype=torch.int8, device=at)
    target = torch.empty_like(source)
    seconds = protocol.interleaved({"copy": lambda: target.copy_(source)}, ROUNDS, at)["copy"]
    return 2 * source.nbytes / statistics.median(seconds)


def gemm_flops_per_s(at: torch.device) -> float:
    """Return the speed of a matrix product: bfloat16 on a GPU, float32 on a CPU."""
    n = GEMM_SIZE[at.type]
    a, b = (torch.randn(n, n, device=at).to(GEMM_TYPE[at.type]) for _ in range(2))
    return 2 * n**3 / statistics.median(protocol.interleaved({"gemm": lambda: a @ b}, ROUNDS, at)["gemm"])


def lines() -> Iterator[dict[str, Any]]:
    """Measure both."""
    at = protocol.choose()
    yield {"case": "copy", "bytes": COPY_BYTES[at.type], "bytes_per_s": copy_bytes_per_s(at), **protocol.facts(at)}
    known, flops_per_s = protocol.facts(at), gemm_flops_per_s(at)
    dtype = str(GEMM_TYPE[at.type]).removeprefix("torch.")
    mfu = protocol.speed(flops_per_s, 1.0, known["device"])
    yield {"case": "gemm", "size": GEMM_SIZE[at.type], "dtype": dtype, **mfu, **known}

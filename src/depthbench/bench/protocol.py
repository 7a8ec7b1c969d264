"""How benchmarks measure: all implementations take turns in one process, so that what else the machine does meets all.

After WARM_UPS rounds the times of each round are kept. `ratio` is the median time of a case over that of its baseline;
its quartiles are those of the ratios of single rounds, and a case is `noisy` where they are more than 10 % apart. On a
GPU times are those of CUDA events, and a buffer larger than the L2 cache is written before each call.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from depthbench import files, provenance
from depthbench.peaks import peak

Call = Callable[[], Any]
THREADS = 2  # of a CPU
WARM_UPS = 2
NOISY = 0.1  # of the median ratio
FLUSH_BYTES = 2**28
OPTIONAL = ("triton", "liger_kernel")


def choose() -> torch.device:
    """Return the GPU if there is one, else the CPU with the threads that all its benchmarks take."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    torch.set_num_threads(THREADS)
    return torch.device("cpu")


def timer(at: torch.device) -> Callable[[Call], float]:
    """Return the clock of a device: a function that makes a call and returns its seconds."""

    def on_cpu(call: Call) -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    if at.type == "cpu":
        return on_cpu
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=at)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def on_gpu(call: Call) -> float:
        flush.zero_()
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    return on_gpu


def interleaved(cases: dict[str, Call], rounds: int, at: torch.device) -> dict[str, list[float]]:
    """Return the seconds of each call, the cases taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    clock = timer(at)
    for turn in range(WARM_UPS + rounds):
        for name, call in cases.items():
            taken = clock(call)
            if turn >= WARM_UPS:
                seconds[name].append(taken)
    return seconds


def times(seconds: dict[str, list[float]], case: str, baseline: str) -> dict[str, Any]:
    """Return the times of a case, and how they compare with those of its baseline; of three rounds at least."""
    own, other = seconds[case], seconds[baseline]
    low, middle, high = statistics.quantiles([a / b for a, b in zip(own, other, strict=True)], n=4)
    return {
        "median_s": statistics.median(own),
        "min_s": min(own),
        "baseline_median_s": statistics.median(other),
        "ratio": statistics.median(own) / statistics.median(other),
        "ratio_q25": low,
        "ratio_q75": high,
        "noisy": high - low > NOISY * middle,
        "rounds": len(own),
        "seconds": own,
    }


def speed(flops: float, seconds: float, device: str) -> dict[str, float | None]:
    """Return FLOP/s and the share of the device's bfloat16 peak (MFU), None where that is not known."""
    known = peak(device)
    return {"flops_per_s": flops / seconds, "mfu": flops / seconds / known if known else None}


def facts(at: torch.device) -> dict[str, Any]:
    """Return what computed: commit, device, versions, threads, load, and of a GPU driver and clocks."""
    commit = provenance.commit()
    found = {
        **{key: provenance.machine(at)[key] for key in ("device", "threads")},
        "machine": platform.machine(),
        "load": round(os.getloadavg()[0], 1),
        "torch": version("torch"),
        **{name: _version(name) for name in OPTIONAL},
        "commit": (commit["commit"] or "unknown")[:12] + "-dirty" * bool(commit["dirty"]),
        "date": time.strftime("%Y-%m-%d"),
    }
    return found | (_driver(at) if at.type == "cuda" else {})


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _driver(at: torch.device) -> dict[str, str | None]:
    keys = ("driver_version", "clocks.sm", "clocks.mem")
    card = f"--id=GPU-{torch.cuda.get_device_properties(at).uuid}"  # its number may be another one than ours
    asked = ["nvidia-smi", card, f"--query-gpu={','.join(keys)}", "--format=csv,noheader"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return dict.fromkeys(keys)
    return dict(zip(keys, told.splitlines()[0].split(", "), strict=False))


def write(lines: Iterable[dict[str, Any]], out: Path | None) -> None:
    """Print the lines as JSON, or append them to a file, each as soon as it is measured."""
    with files.disk_errors():
        for line in lines:
            text = json.dumps(line)
            if out is None:
                print(text, file=sys.stdout, flush=True)
                continue
            out.parent.mkdir(parents=True, exist_ok=True)
            with out.open("a", encoding="utf-8") as file:
                file.write(text + "\n")

"""Where a number comes from: commit, versions, machine."""

import os
import platform
import resource
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "tokenizers", "safetensors", "numpy")


def commit() -> dict[str, Any]:
    """Return the commit of the code that runs and whether it was edited since; None where git does not know."""
    folder = Path(__file__).parent
    try:
        head = _git(folder, "rev-parse", "HEAD")
        return {
            "commit": head,
            "dirty": bool(_git(folder, "status", "--porcelain", "--", ":/src", ":/kernels")),
        }
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}


def machine(device: torch.device) -> dict[str, Any]:
    """Return what computed: versions, host, device, cores and threads, and the Slurm job if there is one."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "python": platform.python_version(),
        "packages": {package: version(package) for package in PACKAGES},
        "host": socket.gethostname(),
        "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
        "device": f"{device.type}: {name}",
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def peak_memory(device: torch.device) -> int:
    """Return the largest memory in use so far [bytes]: of the GPU, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True, check=True)
    return done.stdout.strip()

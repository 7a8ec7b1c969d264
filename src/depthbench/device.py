"""The device of a process and the type that it computes in."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch

from depthbench.errors import UserError

REMEDY = "install a build of PyTorch for them, or take the CPU with SLURM_GPUS_ON_NODE=0"


def choose(threads: int | None) -> torch.device:
    """Return the GPU if there is one, else the CPU with `threads` threads.

    Raises:
        UserError: E-GPU if Slurm gave GPUs that PyTorch cannot use: hours would pass unnoticed on the CPU.
    """
    if torch.cuda.is_available():
        return torch.device("cuda")
    if given := int(os.environ.get("SLURM_GPUS_ON_NODE", "0")):
        raise UserError("E-GPU", f"Slurm gave {given} GPUs, PyTorch can use 0; {REMEDY}")
    if threads:
        torch.set_num_threads(threads)
    return torch.device("cpu")


def wait(device: torch.device) -> None:
    """Wait until the device has done what it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compute_type(name: str, device: torch.device) -> AbstractContextManager:
    """Return the context of forward passes: bfloat16 by autocast, float32 as it is."""
    return torch.autocast(device.type, torch.bfloat16) if name == "bfloat16" else nullcontext()

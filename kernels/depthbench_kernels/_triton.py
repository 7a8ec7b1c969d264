"""What the Triton kernels share: rounding, the check of their operands and the sizes of their launches.

Imported by the `triton` modules only, so that the package works where Triton is not installed.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from depthbench_kernels._select import BackendError

# Fixed when Triton is imported, by TRITON_INTERPRET=1: kernels run in numpy, on a CPU.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)

# Decorator of what kernels call. The interpreter runs it as plain Python: for a jit function it would patch the
# language anew at every call, which takes longer than the kernel.
device = (lambda function: function) if INTERPRETED.value else triton.jit


@device
def rounded(x, dtype: tl.constexpr):
    """Return x rounded to the nearest value of dtype; the interpreter's own conversion to bfloat16 cuts off."""
    if INTERPRETED and dtype == tl.bfloat16 and x.dtype == tl.float32:
        bits = x.to(tl.uint32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return x.to(dtype)


def check(operation: str, *tensors: Tensor) -> None:
    """Refuse tensors that a kernel cannot read: float64, or not on the device the kernels run on."""
    for t in tensors:
        if t.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise BackendError(
                f"{operation}: kernels=triton takes float32, bfloat16 and float16, not {str(t.dtype)[6:]}; "
                "choose kernels=reference"
            )
        if not (t.is_cuda or INTERPRETED.value):
            raise BackendError(f"{operation}: kernels=triton cannot read a tensor on {t.device}; choose kernels=eager")


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Start the programs of a grid on the device of the tensors, whatever the current one is."""
    if 0 in grid:
        return
    with torch.cuda.device_of(next(argument for argument in arguments if isinstance(argument, Tensor))):
        kernel[grid](*arguments, **options)


def block(d: int) -> int:
    """Return the size of the block that holds one row of d elements."""
    return triton.next_power_of_2(d)


def warps(elements: int) -> int:
    """Return the number of warps for that many elements a program."""
    return min(max(elements // 256, 4), 16)


def programs(rows: int, device: torch.device) -> int:
    """Return the number of programs that share the rows where each program sums over its own.

    Fixed for a device, so that sums have one order; under the interpreter few, so that each has several rows.
    """
    if device.type != "cuda":
        return min(rows, 3)
    return min(rows, 2 * torch.cuda.get_device_properties(device).multi_processor_count)

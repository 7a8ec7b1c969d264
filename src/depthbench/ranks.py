"""The processes that train one run together, numbered by rank; on a process of its own everything here is a no-op.

They find each other by the variables that `torchrun` sets too (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
MASTER_ADDR, MASTER_PORT). Every rank holds the same weights and takes its share of the same global batch, the
gradients are summed in float32 (Li et al., PyTorch Distributed, VLDB 2020), and rank 0 alone writes files.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from depthbench.errors import UserError

T = TypeVar("T")
# The others wait while rank 0 writes a checkpoint; a lost rank is noticed by the launcher, not by this.
PATIENCE = timedelta(minutes=30)


@contextmanager
def joined() -> Iterator[None]:
    """Meet the other ranks of this run, and part from them unless one broke down: parting may wait for it."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            device = torch.device("cuda", torch.cuda.current_device())
            dist.init_process_group("nccl", timeout=PATIENCE, device_id=device)
        else:
            dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield
    except (UserError, SystemExit):  # all ranks leave
        _part()
        raise
    _part()


def count() -> int:
    """Return the number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def nodes() -> int:
    """Return the number of machines that the ranks run on."""
    return count() // int(os.environ["LOCAL_WORLD_SIZE"]) if dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, 0 .. count() - 1."""
    return dist.get_rank() if dist.is_initialized() else 0


def first() -> bool:
    """Whether this is the one that writes."""
    return rank() == 0


def share(n: int) -> slice:
    """Return which of n sequences are this rank's: neighbours, numbers that differ by at most one."""
    return slice(rank() * n // count(), (rank() + 1) * n // count())


def largest(value: int) -> int:
    """Return the largest of the ranks' values, to all of them."""
    if count() == 1:
        return value
    found = torch.tensor(int(value), device=_device())
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found.item())


def add_up(total: Tensor) -> Tensor:
    """Return the sum of the ranks' values, to all of them, in place."""
    if count() > 1:
        dist.all_reduce(total)
    return total


def told(value: T) -> T:
    """Return the value that rank 0 has, to all of them."""
    if count() == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def tell_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that rank 0 has, to all of them."""
    if count() == 1:
        return tensors
    about = told({name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()})
    for name, (shape, dtype) in about.items():
        sent = tensors[name].to(_device()) if first() else torch.empty(shape, dtype=dtype, device=_device())
        dist.broadcast(sent, 0)
        tensors[name] = sent
    return tensors


@contextmanager
def together() -> Iterator[None]:
    """Go on where no rank failed inside: the lowest that did raises its error, the others leave without a word.

    Nothing inside may wait for another rank.
    """
    error = None
    try:
        yield
    except Exception as caught:
        error = caught
    lowest = count() - largest(0 if error is None else count() - rank())
    if error is not None and lowest == rank():
        raise error
    if lowest < count():
        raise SystemExit(2)


def by_first(work: Callable[[], None]) -> None:
    """Let rank 0 do it, and the others wait until it is done, or leave if it fails."""
    with together():
        if first():
            work()


def parallel(module: nn.Module) -> nn.Module:
    """Return the module with gradients that are sums over all ranks, its weights those of rank 0.

    Gradients are views of the buffers that are sent, or each would take 4 bytes a parameter more: zero them in place.
    """
    if count() == 1:
        return module
    # No search for unused parameters: there are none.
    wrapped = DistributedDataParallel(module, gradient_as_bucket_view=True)
    wrapped.register_comm_hook(None, _sum)
    return wrapped


def last_only(module: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Return the context of a micro-batch: gradients are sent with the `last` one of a step."""
    return nullcontext() if last or not isinstance(module, DistributedDataParallel) else module.no_sync()


def _sum(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Sum a bucket in float32; without a hook of its own DDP takes means."""
    buffer = bucket.buffer()
    done = dist.all_reduce(buffer.float(), async_op=True).get_future()
    return done.then(lambda future: buffer.copy_(future.value()[0]))


def _part() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _device() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"

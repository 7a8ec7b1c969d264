"""The boundary of mHC with the kernels of liger-kernel 0.8.5; that of HC, which Liger lacks, is our Triton kernel.

So is mHC's on streams that are neither bfloat16 nor float16, such as those of the layer analyses.

Not run on a device so far: on a machine with CUDA, `pytest -m gpu tests/kernels/test_liger.py` compares it with the
reference. By its source it is our formula with the same places of eps and order of Sinkhorn's steps, and differs in

    products     TF32, which is why others take Triton
    u, carried'  rounded to the type of the streams before the norm and before the write
    dphi         summed by atomic additions: not the same bits each time

Liger writes f when it forms the next streams; here the write comes first at the next boundary, as everywhere, so the
map is taken with a branch output of zeros.
"""

import torch
from liger_kernel.transformers.functional import liger_mhc_coeffs, liger_mhc_post_res, liger_mhc_pre
from torch import Tensor

from depthbench_kernels._select import BackendError
from depthbench_kernels.norms import rms_norm
from depthbench_kernels.streams import triton
from depthbench_kernels.streams.reference import MHCRouting, write_streams

hc_boundary = triton.hc_boundary

LARGEST = 2**31  # Liger's offsets are 32-bit


def mhc_boundary(
    carried: Tensor,
    pending: tuple[Tensor, Tensor] | None,
    routing: MHCRouting,
    gain: Tensor,
    *,
    routing_eps: float,
    eps: float,
    iters: int,
    sinkhorn_eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (carried', w', y)."""
    if carried.dtype not in (torch.bfloat16, torch.float16):
        numbers = {"routing_eps": routing_eps, "eps": eps, "sinkhorn_eps": sinkhorn_eps}
        return triton.mhc_boundary(carried, pending, routing, gain, iters=iters, **numbers)
    _check(carried)
    streams = write_streams(carried, pending)
    own = MHCRouting(*(t.float() for t in routing))
    read, w, R = liger_mhc_coeffs(
        streams, *own, tmax=iters, rms_eps=routing_eps, pre_eps=0.0, sinkhorn_eps=sinkhorn_eps, post_mult=2.0
    )
    mixed = liger_mhc_post_res(streams, torch.zeros_like(streams[..., 0, :]), w, R)
    return mixed, w, rms_norm(liger_mhc_pre(streams, read), gain, eps=eps)


def _check(carried: Tensor) -> None:
    """Refuse what Liger would do wrong or not at all."""
    m = carried.shape[-2]
    if m & (m - 1):
        raise BackendError(f"mHC: kernels=liger takes a power of two of streams, not {m}; choose kernels=eager")
    if carried.numel() >= LARGEST:
        raise BackendError(
            f"mHC: kernels=liger takes less than 2^31 elements, not {carried.numel()}; choose a smaller micro_batch"
        )

"""Fused operations of residual designs; each has a reference that defines it and faster paths that match it.

One folder per operation: `reference.py` is the definition in plain PyTorch, `eager.py` the efficient PyTorch
path. `use(name)` chooses the path once per process, `backend()` tells which one runs.
"""

from depthbench_kernels._select import BackendError, backend, use

__all__ = ["BackendError", "backend", "use"]

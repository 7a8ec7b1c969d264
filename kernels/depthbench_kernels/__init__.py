"""Fused operations of residual designs; each has a reference that defines it and faster paths that match it.

One folder per operation: `reference.py` is the definition in plain PyTorch, `eager.py` the efficient PyTorch
path, `triton.py` the kernels, where there are any. `use(name)` chooses the backend once per process, `backend()`
tells which one runs, and `paths()` which module each operation takes.
"""

from depthbench_kernels._select import BackendError, backend, paths, use

__all__ = ["BackendError", "backend", "paths", "use"]

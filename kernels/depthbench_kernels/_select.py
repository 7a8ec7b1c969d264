"""Which implementation of the operations runs: chosen once per process, by name, never changed silently.

A backend is a name for a choice of modules. An operation runs the first of them that it has:

    reference   reference
    eager       eager
    triton      triton, eager             needs CUDA, or a CPU with TRITON_INTERPRET=1 for tests
    liger       liger, triton, eager      needs CUDA
    auto        triton on CUDA where Triton is installed, else eager

Without a choice operations run eager, which works wherever a tensor is. `paths()` tells what a choice means for each
operation.
"""

import os
import pkgutil
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch

MODULES = {
    "reference": ("reference",),
    "eager": ("eager",),
    "triton": ("triton", "eager"),
    "liger": ("liger", "triton", "eager"),
}
NAMES = ("auto", *MODULES)
PACKAGE = __name__.rpartition(".")[0]

_chosen: str | None = None
_loaded: dict[tuple[str, str], ModuleType] = {}


class BackendError(RuntimeError):
    """The backend asked for is unknown, is not there, cannot do this, or another one is already in use."""


def use(name: str) -> str:
    """Choose the backend of this process and return its name; `auto` takes the fastest that is there.

    Raises BackendError for a name that is unknown or not available, and when another backend was chosen
    before (by this function or by the first operation that ran).
    """
    global _chosen
    if name not in NAMES:
        raise BackendError(f"kernels={name!r}: unknown backend; choose one of {', '.join(NAMES)}")
    resolved = name
    if name == "auto":
        resolved = "eager" if _missing("triton", interpreter=False) else "triton"
    elif reason := _missing(name):
        raise BackendError(f"kernels={name}: {reason}; choose auto, eager or reference")
    if _chosen not in (None, resolved):
        raise BackendError(f"kernels={name}: this process already uses {_chosen}; start a new process to change it")
    _chosen = resolved
    if resolved in ("triton", "liger"):  # now, not under a compiler that meets the first operation
        _load(resolved)
    return resolved


def backend() -> str:
    """Return the name of the backend in use; the first call without a choice means `eager`."""
    return _chosen or use("eager")


def paths() -> dict[str, str]:
    """Return the module that the backend in use means for each operation, such as {"norms": "triton"}."""
    operations = [m.name for m in pkgutil.iter_modules(import_module(PACKAGE).__path__) if m.ispkg]
    return {name: _path(f"{PACKAGE}.{name}", backend()) for name in operations}


def implementation(reference: ModuleType, eager: ModuleType) -> ModuleType:
    """Return the module of the backend in use; others than these two are imported by `use`."""
    name = backend()
    if name in ("reference", "eager"):
        return reference if name == "reference" else eager
    return _loaded[reference.__name__.rpartition(".")[0], name]


def _load(name: str) -> None:
    for operation, path in paths().items():
        _loaded[f"{PACKAGE}.{operation}", name] = import_module(f"{PACKAGE}.{operation}.{path}")


def _path(package: str, name: str) -> str:
    return next(module for module in MODULES[name] if find_spec(f"{package}.{module}"))


def _missing(name: str, interpreter: bool = True) -> str | None:
    """Return what a backend lacks on this machine."""
    if name not in ("triton", "liger"):
        return None
    library = {"triton": "triton", "liger": "liger_kernel"}[name]
    if not find_spec(library):
        return f"{library} is not installed"
    if torch.cuda.is_available() or (name == "triton" and interpreter and os.environ.get("TRITON_INTERPRET") == "1"):
        return None
    return "no CUDA device"

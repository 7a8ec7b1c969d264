"""Which implementation of the operations runs: chosen once per process, by name, never changed silently."""

from types import ModuleType

NAMES = ("auto", "reference", "eager", "triton", "liger")

_chosen: str | None = None


class BackendError(RuntimeError):
    """The backend asked for is unknown, is not there, or another one is already in use."""


def use(name: str) -> str:
    """Choose the backend of this process and return its name; `auto` takes the fastest that is there.

    Raises BackendError for a name that is unknown or not available, and when another backend was chosen
    before (by this function or by the first operation that ran).
    """
    global _chosen
    if name not in NAMES:
        raise BackendError(f"kernels={name!r}: unknown backend; choose one of {', '.join(NAMES)}")
    if name in ("triton", "liger"):
        raise BackendError(f"kernels={name}: this version has no {name} kernels; choose auto, eager or reference")
    resolved = "eager" if name == "auto" else name
    if _chosen not in (None, resolved):
        raise BackendError(f"kernels={name}: this process already uses {_chosen}; start a new process to change it")
    _chosen = resolved
    return resolved


def backend() -> str:
    """Return the name of the backend in use; the first call without a choice means `auto`."""
    return _chosen or use("auto")


def implementation(reference: ModuleType, eager: ModuleType) -> ModuleType:
    """Return the module of the backend in use."""
    return reference if backend() == "reference" else eager

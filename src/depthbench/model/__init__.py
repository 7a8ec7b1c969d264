"""Models: `ModelConfig` (no torch) and `build_model`."""

from typing import TYPE_CHECKING, Any

from depthbench.model.config import ModelConfig

if TYPE_CHECKING:
    from depthbench.model.backbone import build_model

__all__ = ["ModelConfig", "build_model"]


def __getattr__(name: str) -> Any:
    # Planning reads shapes and parameter counts; torch is imported only where a model is built.
    if name == "build_model":
        from depthbench.model.backbone import build_model

        return build_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

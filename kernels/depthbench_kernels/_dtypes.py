"""The arithmetic dtype of the operations: float32, or float64 where an operand is float64."""

import torch


def arithmetic(*tensors: torch.Tensor) -> torch.dtype:
    """Return float32, or float64 if any of the tensors is."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32

"""Definition of the depth mixture, in plain PyTorch: the sources are stacked wherever they are mixed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from depthbench_kernels._dtypes import arithmetic
from depthbench_kernels.norms.reference import rms_norm


def depth_weights(sources: Sequence[Tensor], weight: Tensor, *, eps: float) -> Tensor:
    """Return the mixture weights p, (..., S)."""
    return _weights(_stacked(sources), weight, eps)


def depth_mix(sources: Sequence[Tensor], weight: Tensor, gain: Tensor | None = None, *, eps: float) -> Tensor:
    """Return y, or the mixture h itself where no gain is given; (..., d)."""
    with torch.autocast(sources[0].device.type, enabled=False):  # or einsum rounds the states to bfloat16
        V = _stacked(sources)
        h = torch.einsum("...s,...sd->...d", _weights(V, weight, eps), V)
        y = h if gain is None else rms_norm(h, gain, eps=eps)
        return y.to(sources[0].dtype)


def _stacked(sources: Sequence[Tensor]) -> Tensor:
    return torch.stack([v.to(arithmetic(v)) for v in sources], -2)


def _weights(V: Tensor, weight: Tensor, eps: float) -> Tensor:
    unit = V * torch.rsqrt(V.square().mean(-1, keepdim=True) + eps)
    return (unit * weight.to(V.dtype)).sum(-1).softmax(-1)


class Workspace:
    """The sources of one forward pass as a list; autograd keeps a stack for every site."""

    def __init__(self, embedding: Tensor, weights: Tensor, *, eps: float):
        self.sources, self.weights, self.eps = [embedding], weights, eps

    def consume(self, newest: Tensor, gain: Tensor) -> Tensor:
        """Append a source and return the normalised mixture of the next site."""
        self.sources.append(newest)
        return depth_mix(self.sources, self.weights[len(self.sources) - 2], gain, eps=self.eps)

"""What the forward pass of a whole model keeps for backward: it grows with depth, not with its square."""

import pytest
import torch
from models import config

from depthbench.model import build_model


def kept_bytes(design, n_layers, tokens, monkeypatch):
    """Bytes of storage, each counted once, of saved tensors and workspace buffers; without parameters."""
    model = build_model(config(design, n_layers=n_layers))
    states, start = [], model.residual.start
    monkeypatch.setattr(model.residual, "start", lambda *args, **kw: states.append(start(*args, **kw)) or states[-1])
    storages = {}

    def keep(t):
        storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        logits = model(tokens)
    assert logits.requires_grad
    workspace = getattr(states[0], "workspace", None)
    assert (design == "attnres_full") == (workspace is not None)
    for value in vars(workspace).values() if workspace else ():
        if isinstance(value, torch.Tensor):
            keep(value)
    for parameter in model.parameters():
        storages.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(storages.values())


@pytest.mark.parametrize("design", ["attnres_full", "attnres_block", "hc", "mhc"])
def test_bytes_kept_at_most_double_with_the_depth(design, tokens, monkeypatch):
    """E02: 2.2 leaves room for the scores, which are numbers per source and site."""
    kept = [kept_bytes(design, n_layers, tokens, monkeypatch) for n_layers in (8, 16, 32)]
    assert kept[1] / kept[0] < 2.2
    assert kept[2] / kept[1] < 2.2


def test_stacked_sources_are_seen(tokens, monkeypatch):
    """The measure itself: autograd over stacks keeps the square."""
    monkeypatch.setattr("depthbench_kernels._select._chosen", "reference")
    kept = [kept_bytes("attnres_full", n_layers, tokens, monkeypatch) for n_layers in (16, 32)]
    assert kept[1] / kept[0] > 2.5

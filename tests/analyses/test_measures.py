"""What holds of every measure that reads the calibration set."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from models import config, generic
from toy import batch, documents

from depthbench.analyses import angular, block_mix, logitlens, pathway, transport

MODULES = (angular, block_mix, logitlens, pathway, transport)
CELLS = ["position", "layer", "n", "sublayer", "is_border", "n_sources", "source", "target", "n_sublayers"]
# one of each kind of state
KINDS = {"preln": {}, "hc": {}, "mhc": {}, "attnres_full": {}, "attnres_block": {"attnres_block_size": 2}, "moda": {}}
MEASURE = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])


def applies(module, design):
    needed = {block_mix: ("attnres_block",), transport: ("hc", "mhc")}
    return design in needed.get(module, KINDS)


def small(design, **changes):
    return generic(config(design, **KINDS[design], **changes), torch.float32).eval()


def equal(found, expected, rtol, atol):
    pd.testing.assert_frame_equal(found, expected, check_exact=False, rtol=rtol, atol=atol)


@MEASURE
@pytest.mark.parametrize("design", KINDS)
def test_order_and_batches_of_documents_change_nothing(module, design):
    """Eight documents at once, in four batches, and in another order; all that differs is the order of sums."""
    model, tokens = small(design), documents(8)
    expected = module.compute(model, [batch(tokens)], 20)
    parts = [batch(part, start) for part, start in zip(tokens.split(2), (0, 2, 4, 6), strict=True)]
    order = torch.tensor([5, 2, 7, 0, 1, 6, 3, 4])
    keys, origins = batch(tokens).doc_keys, batch(tokens).origins
    shuffled = batch(tokens[order])._replace(
        doc_keys=tuple(keys[i] for i in order), origins=tuple(origins[i] for i in order)
    )
    for batches in (parts[::-1], [shuffled]):
        equal(module.compute(model, batches, 20), expected, 1e-5, 1e-6)
    assert (len(expected) > 0) == applies(module, design)


@MEASURE
@pytest.mark.parametrize("design", KINDS)
def test_the_model_is_left_as_it_was(module, design):
    model = small(design)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    module.compute(model, [batch(documents())], 20)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("design", KINDS)
@pytest.mark.parametrize("n_layers", [1, 2])
def test_shallow_models(design, n_layers):
    model, two = small(design, n_layers=n_layers), 2 * n_layers
    rows = {
        angular: n_layers * (n_layers + 1) // 2,
        block_mix: two,
        logitlens: n_layers + 1,
        pathway: (two + 1) * (two + 2) // 2,
        transport: two,
    }
    for module in MODULES:
        found = module.compute(model, [batch(documents())], 20)
        assert len(found) == (rows[module] if applies(module, design) else 0)
        if len(found) and module not in (block_mix, transport):
            assert np.isfinite(found.drop(columns=found.columns.intersection(CELLS)).to_numpy(float)).all()


@MEASURE
@pytest.mark.parametrize("n_documents", [1, 4])
def test_few_documents_have_no_interval(module, n_documents):
    design = next(design for design in KINDS if applies(module, design))
    found = module.compute(small(design), [batch(documents(n_documents))], 20)
    bounds = [column for column in found if column.endswith(("lo", "hi"))]
    assert bounds
    assert found[bounds].isna().all(axis=None)


@MEASURE
@pytest.mark.parametrize("design", ["hc", "attnres_block"])
def test_bfloat16_is_close_to_float32(module, design):
    """Passes are rounded, statistics are not: within some rounding steps of 2^-8, and not equal."""
    if not applies(module, design):
        return
    model, parts = small(design), [batch(documents())]
    exact, rounded = (module.compute(model, parts, 20, kind) for kind in ("float32", "bfloat16"))
    columns = [c for c in exact.columns if c not in CELLS and not c.startswith("n_") and c not in ("top1", "top5")]
    equal(rounded[columns], exact[columns], 0.1, 0.1)
    assert not rounded[columns].equals(exact[columns])
    assert not math.isnan(exact[columns[0]].iloc[-1])

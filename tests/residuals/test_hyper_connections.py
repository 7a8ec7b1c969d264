"""HC beside the public package `hyper-connections`, which has the paper's form: tanh, a gain at 0, one fraction."""

import pytest
import torch
from hyper_connections.hyper_connections import HyperConnections, get_init_and_expand_reduce_stream_functions
from models import config, generic

from depthbench.model import build_model

NAMES = {
    "static_alpha": "static_alpha",
    "static_beta": "static_beta",
    "dynamic_alpha_proj": "dynamic_alpha_fn",
    "dynamic_beta_proj": "dynamic_beta_fn",
    "dynamic_alpha_scale": "dynamic_alpha_scale",
    "dynamic_beta_scale": "dynamic_beta_scale",
}
EPS = 1e-14  # theirs is none


@pytest.fixture
def pair():
    """Our model, and their connectors around our branches with our routing parameters."""
    model = generic(config("hc", n_heads=2, hc_rms_eps=EPS))
    connectors = []
    for k in range(6):
        block, side = model.blocks[k // 2], ("attn", "ffn")[k % 2]
        branch = torch.nn.Sequential(getattr(block, side + "_norm"), getattr(block, side))
        theirs = HyperConnections(4, dim=16, branch=branch, layer_index=k).double()
        own = getattr(block, side + "_hc")
        with torch.no_grad():
            for ours, name in NAMES.items():
                getattr(theirs, name).copy_(getattr(own, ours))
        connectors.append((theirs, own))
    return model, connectors


def their_logits(model, connectors, tokens):
    _, expand, reduce = get_init_and_expand_reduce_stream_functions(4)
    streams = expand(model.embed(tokens))
    for theirs, _ in connectors:
        streams = theirs(streams)
    return model.lm_head(model.norm(reduce(streams)))


def test_logits_and_gradients_are_theirs(pair, tokens):
    model, connectors = pair
    ours, theirs = model(tokens), their_logits(model, connectors, tokens)
    assert (ours - theirs).abs().max() < 1e-9 * theirs.abs().max()
    generator = torch.Generator().manual_seed(3)
    upstream = torch.randn(ours.shape, generator=generator, dtype=torch.float64)
    ours.backward(upstream)
    theirs.backward(upstream)
    for public, own in connectors:
        for name, their_name in NAMES.items():
            expected, found = getattr(public, their_name).grad, getattr(own, name).grad
            # all streams are equal at k = 0: their read column has no effect, its gradient is rounding
            assert (found - expected).norm() <= 1e-9 * max(expected.norm(), 1e-3), name


def test_connectors_start_as_theirs():
    model = build_model(config("hc"))
    for k in range(6):
        own = getattr(model.blocks[k // 2], ("attn_hc", "ffn_hc")[k % 2])
        theirs = HyperConnections(4, dim=16, layer_index=k)
        for ours, name in NAMES.items():
            assert torch.equal(getattr(own, ours), getattr(theirs, name)), (k, ours)

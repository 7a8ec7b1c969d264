"""The paper's rule gives the paper's shapes: Tables 3, 7, 8 and 9 of arXiv 2609.32534."""

import pytest

from depthbench.errors import UserError
from depthbench.shapes import Rule, solve

PAPER = Rule(n_heads=16, vocab_size=50280)
LARGE = Rule(n_heads=16, vocab_size=50280, n_kv_heads=8, ffn_ratio=3)


def found(rule, reference, depths, backbone=False):
    anchor = rule.model(*reference)
    budget = anchor.backbone_params() if backbone else anchor.table_params()
    return {m.n_layers: m.d_model for m in solve(rule, depths, budget, backbone)}


@pytest.mark.parametrize(
    ("reference", "shapes"),
    [
        ((24, 1024), {16: 1216, 20: 1120, 24: 1024, 28: 960, 32: 896, 42: 800, 70: 640}),  # Table 3
        ((18, 768), {12: 896, 18: 768, 24: 672}),  # Table 8
        ((21, 896), {14: 1056, 21: 896, 28: 800}),
        ((26, 1120), {17: 1344, 26: 1120, 34: 992}),
    ],
)
def test_shapes_of_equal_size(reference, shapes):
    assert found(PAPER, reference, shapes) == shapes


def test_shapes_of_equal_backbone():
    shapes = {16: 1248, 24: 1024, 32: 896, 42: 768, 70: 608, 84: 544}  # Table 7
    assert found(PAPER, (24, 1024), shapes, backbone=True) == shapes


def test_shapes_at_1_6_billion():
    shapes = {28: 2048, 40: 1728, 54: 1504}  # Table 9
    assert found(LARGE, (28, 2048), shapes) == shapes


def test_nothing_is_nearer_than_what_is_found():
    rule = Rule(n_heads=2, vocab_size=512)
    for model in solve(rule, [4, 8, 16], 186_368):
        off = abs(model.table_params() - 186_368)
        for step in (-4, 4):
            assert abs(rule.model(model.n_layers, model.d_model + step).table_params() - 186_368) >= off


def test_a_budget_that_no_width_meets():
    with pytest.raises(UserError, match=r"E-CONFIG budget 1,000: 2 layers of width 32 have"):
        solve(PAPER, [2], 1000)

import numpy as np
import pytest
import torch
from models import config, generic
from toy import batch, documents

from depthbench.analyses import transport
from depthbench.model import build_model


def measured(model, tokens=None):
    tokens = documents() if tokens is None else tokens
    return transport.compute(model.eval(), [batch(tokens)], 20).set_index("n_sublayers")


def of(matrix):
    return {name: value.item() for name, value in transport.of_products(torch.as_tensor(matrix)).items()}


@pytest.mark.parametrize("m", [2, 4])
def test_identity_and_uniform_maps(m):
    found = of(3 * torch.eye(m))
    assert (found["effective_rank"], found["cos_rows"], found["cos_cols"]) == pytest.approx((m, 0, 0))
    assert [found[f"sigma_{i}"] for i in range(1, m + 1)] == pytest.approx([1] * m)
    assert of(torch.eye(m))["dist_uniform"] == pytest.approx((m - 1) ** 0.5)
    found = of(torch.full((m, m), 1 / m))
    assert (found["effective_rank"], found["cos_rows"], found["cos_cols"]) == pytest.approx((1, 1, 1), abs=1e-6)
    assert found["dist_uniform"] == pytest.approx(0, abs=1e-7)
    assert found["sigma_2"] == pytest.approx(0, abs=1e-7)


def test_rows_and_columns_by_hand():
    """Equal rows: inputs go the same way; columns (1, 1) and (0, 0) have no angle. Of [[1, 1], [0, 1]]: 1 / sqrt 2."""
    found = of([[1.0, 0.0], [1.0, 0.0]])
    assert (found["cos_rows"], found["effective_rank"]) == pytest.approx((1, 1))
    assert np.isnan(found["cos_cols"])
    found = of([[1.0, 1.0], [0.0, 1.0]])
    assert (found["cos_rows"], found["cos_cols"]) == pytest.approx((0.5**0.5, 0.5**0.5))
    found = of([[3.0, 4.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, 1.0]])
    assert found["cos_rows"] == pytest.approx(4 / 5 / 3)
    assert found["cos_cols"] == pytest.approx(4 / 41**0.5 / 3)


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan])
def test_a_product_without_a_rank_is_nan(value):
    assert np.isnan(list(of([[value, 0.0], [0.0, 0.0]]).values())).all()


@pytest.mark.parametrize("design", ["hc", "mhc"])
def test_products_of_a_model_against_numpy(design):
    """Maps taken from the model block by block; tokens of a document first, then documents."""
    model, tokens = generic(config(design), torch.float32), documents()
    found = measured(model, tokens)
    with torch.no_grad():
        state, product = model.start(tokens), np.eye(4)
        for k in range(6):
            block = model.blocks[k // 2]
            carry, _, _ = model.residual.write_weights(state, k, block, model.embed(tokens))
            product = product @ carry.double().numpy()
            sigma = np.linalg.svd(product, compute_uv=False)
            shares = sigma / sigma.sum(-1, keepdims=True)
            row = found.loc[k + 1]
            rank = np.exp(-(shares * np.log(shares)).sum(-1))
            assert row["effective_rank"] == pytest.approx(rank.mean(), rel=1e-4)
            assert row["sigma_3"] == pytest.approx((sigma[..., 2] / sigma[..., 0]).mean(), rel=1e-4)
            distance = np.linalg.norm(product - 1 / 4, axis=(-2, -1))
            assert row["dist_uniform"] == pytest.approx(distance.mean(), rel=1e-4)
            for name, axis in (("max_row_sum_error", -1), ("max_col_sum_error", -2)):
                assert row[name] == pytest.approx((carry.sum(axis) - 1).abs().max().item(), rel=1e-5)
            assert row["effective_rank_lo"] <= row["effective_rank"] <= row["effective_rank_hi"]
            state = model.residual.settle(model.sublayer(k, state, block)[0])
    assert (found["n_docs"] == 6).all()
    assert (found["n_nan"] == 0).all()


def test_maps_at_the_start():
    """HC: the identity. mHC with a zero bias: uniform up to its projection, and doubly stochastic after 20 rounds."""
    found = measured(build_model(config("hc")))
    assert found["effective_rank"].tolist() == pytest.approx([4] * 6)
    assert found["max_row_sum_error"].tolist() == found["max_col_sum_error"].tolist() == [0] * 6
    model = build_model(config("mhc", init="legacy", sinkhorn_iters=20, sinkhorn_eps=1e-6))
    found = measured(model)
    assert found["effective_rank"].tolist() == pytest.approx([1] * 6, abs=0.05)
    assert (found["dist_uniform"] < 0.01).all()
    assert (found[["max_row_sum_error", "max_col_sum_error"]] < 1e-4).all(axis=None)


def test_tokens_without_a_product_are_counted():
    model = build_model(config("hc"))
    with torch.no_grad():
        model.blocks[1].attn_hc.static_alpha[:, 1:] = 0
    found = measured(model)
    assert found["n_docs"].tolist() == [6, 6, 0, 0, 0, 0]
    assert found["n_nan"].tolist() == [0, 0, 42, 42, 42, 42]
    assert found["effective_rank"].isna().tolist() == [False] * 2 + [True] * 4


def test_other_designs_have_no_rows():
    found = transport.compute(generic(config("preln"), torch.float32).eval(), [batch(documents())], 20)
    assert len(found) == 0
    assert {"n_sublayers", "effective_rank_lo", "sigma_4", "max_col_sum_error"} <= set(found.columns)

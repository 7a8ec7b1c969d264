import copy

import numpy as np
import pandas as pd
import pytest
import torch
from models import config, generic

from depthbench.analyses import prune
from depthbench.data import tokenizer
from depthbench.designs import DESIGNS
from depthbench.evaluate import tasks
from depthbench.evaluate.requests import Question
from depthbench.model.backbone import Model

V, T = 512, 32
WORDS = ("water", "the moon", "iron and oxygen", "a", "heat flows", "two plants", "cells", "gravity")
BOTH = [design for design in DESIGNS if "released" in Model(config(design)).residual.skip_modes]


@pytest.fixture(scope="module")
def tokens():
    return tokenizer.build(V)


@pytest.fixture(scope="module")
def asked():
    """Items of two to five choices of different lengths; the last is cut to T."""
    made = []
    for i in range(8):
        choices = [WORDS[(i + 3 * j) % 8] for j in range(2 + i % 4)]
        context = f"Question: what is {WORDS[i]}?\nAnswer:" if i < 7 else "no " * 60
        texts = tuple(f" {choice}" for choice in choices)
        made.append(Question(f"item-{i}", context, texts, i % 2, tuple(map(len, choices))))
    return made


def small(design, **changes):
    return generic(config(design, vocab_size=V, **changes), torch.float32).eval()


def without_output(model, *blocks):
    """A copy in which these blocks give zeros."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for l in blocks:
            model.blocks[l].attn.wo.weight.zero_()
            model.blocks[l].ffn.w_down.weight.zero_()
    return model


def credits_of(items, skipped, mode="mask"):
    rows = items[(items["skipped"] == skipped) & (items["skip_mode"] == mode)]
    return rows[["item_id", "credit", "credit_norm"]].to_numpy().tolist()


@pytest.mark.parametrize("design", ["preln", "hc"])
def test_a_skipped_block_is_one_that_writes_nothing(design, tokens, asked):
    """For HC with its maps at the identity, as they start."""
    model = small(design)
    if design == "hc":
        with torch.no_grad():
            for block in model.blocks:
                for connector in (block.attn_hc, block.ffn_hc):
                    connector.static_alpha[:, 1:] = torch.eye(4)
                    connector.dynamic_alpha_scale.zero_()
    found = prune.items(model, tokens, asked, T)
    intact = [credits_of(found, prune.INTACT, "")]
    for s in range(3):
        zeroed = prune.items(without_output(model, s), tokens, asked, T)
        assert credits_of(found, s) == credits_of(zeroed, prune.INTACT, "")
        intact.append(credits_of(found, s))
    assert len({str(row) for row in intact}) > 1


def test_the_intact_model_scores_as_in_arc_csv(tokens, asked):
    model = small("attnres_full")
    spec = {"arc_easy": tasks.Asked({"task": "arc_easy"}, asked)}
    wanted = type("Spec", (), {"max_truncated": None})
    arc = tasks.measure(spec, wanted, (model, tokens), T, "float32", 50)
    found = prune.compute(model, tokens, asked, T, resamples=50)
    for ours, theirs in (("acc_full", "acc"), ("acc_norm_full", "acc_norm"), ("chance", "chance")):
        assert set(found[ours]) == {arc.arc[theirs].item()}
    items = prune.items(model, tokens, asked, T)
    intact = items[items["skipped"] == prune.INTACT]
    for column in ("item_id", "credit", "credit_norm", "n_choices"):
        assert intact[column].tolist() == arc.arc_items[column].tolist()
    assert found["n_items"].tolist() == [8] * 6


@pytest.mark.parametrize("design", DESIGNS)
def test_prefixes_are_shared_without_a_difference(design):
    """Against whole runs, to the bit; in all modes of the design, one of them for most."""
    model, ids = small(design, n_layers=4), torch.randint(V, (3, 9), generator=torch.Generator().manual_seed(1))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with torch.no_grad():
        found = dict(prune.without_blocks(model, ids))
        modes = ["mask", "released"] if design in ("attnres_full", "attnres_block", "moda", "moda_postln") else ["mask"]
        assert set(found) == {(mode, s) for mode in modes for s in range(4)}
        for (mode, s), features in found.items():
            state = model.start(ids)
            for l in range(4):
                state = model.skip_block(l, state, mode) if l == s else model.apply_block(l, state)
            assert torch.equal(model.lm_head(features), model.readout(state)), (mode, s)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("design", BOTH)
def test_modes_differ_where_the_design_has_two(design):
    model, ids = small(design), torch.randint(V, (3, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = dict(prune.without_blocks(model, ids))
    assert any(not torch.allclose(found["mask", s], found["released", s]) for s in range(3))


def test_ties_share_their_credit(tokens, asked):
    """A head of zeros: all tokens alike, so choices of as many tokens tie."""
    model = small("preln")
    torch.nn.init.zeros_(model.lm_head.weight)
    equal = [
        question._replace(continuations=(" a",) * (2 + i % 4), n_chars=(1,) * (2 + i % 4))
        for i, question in enumerate(asked)
    ]
    found = prune.compute(model, tokens, equal, T, resamples=50)
    expected = np.mean([1 / len(question.continuations) for question in equal])
    for column in ("acc", "acc_norm", "acc_full", "acc_norm_full", "chance"):
        assert found[column].tolist() == pytest.approx([expected] * 3), column
    assert (found[["drop", "drop_raw", "drop_lo", "drop_hi"]] == 0).all(axis=None)


def test_blocks_that_do_nothing_are_not_missed(tokens, asked):
    found = prune.compute(without_output(small("preln"), 0, 1, 2), tokens, asked, T, resamples=50)
    assert (found[["drop", "drop_raw", "drop_lo", "drop_hi"]] == 0).all(axis=None)


def rows(skipped, norm, raw, mode="mask"):
    return [
        {"skip_mode": mode, "skipped": skipped, "item_id": f"i{i}", "n_choices": 4, "credit": b, "credit_norm": a}
        | {"items_id": "of all"}
        for i, (a, b) in enumerate(zip(norm, raw, strict=True))
    ]


def test_drops_by_hand():
    """6 of 8 right, then 2 of 8 (raw: 4, then 5): 50 and -12.5 points. A drop of every item has no spread."""
    full = [1, 1, 1, 1, 1, 1, 0, 0]
    items = rows(prune.INTACT, full, [1] * 4 + [0] * 4, "")
    items += rows(0, [0, 0, 0, 0, 1, 1, 0, 0], [1] * 5 + [0] * 3)
    items += rows(0, full, [1] * 4 + [0] * 4, "released")
    found = prune.table(pd.DataFrame(items), 200).set_index(["skip_mode", "skipped"])
    row = found.loc[("mask", 0)]
    assert (row["drop"], row["drop_raw"], row["acc_norm"], row["acc_norm_full"]) == (50, -12.5, 0.25, 0.75)
    assert (row["acc"], row["acc_full"], row["chance"], row["n_items"]) == (5 / 8, 0.5, 0.25, 8)
    # a paired difference of 4 ones and 4 zeros: the mean of 8 draws from it
    assert 0 < row["drop_lo"] < 50 < row["drop_hi"] < 100
    assert found.loc[("released", 0), ["drop", "drop_lo", "drop_hi"]].tolist() == [0, 0, 0]
    shuffled = prune.table(pd.DataFrame(items).sample(frac=1, random_state=0), 200)
    pd.testing.assert_frame_equal(shuffled, found.reset_index())
    whole = rows(prune.INTACT, [1] * 5, [1] * 5, "") + rows(0, [0] * 5, [0] * 5)
    assert prune.table(pd.DataFrame(whole), 50)[["drop", "drop_lo", "drop_hi"]].to_numpy().tolist() == [[100] * 3]


def test_few_items_have_no_interval(tokens, asked):
    found = prune.compute(small("preln", n_layers=1), tokens, asked[:4], T, resamples=50)
    assert (len(found), found["n_items"].item()) == (1, 4)
    assert found[["drop_lo", "drop_hi"]].isna().all(axis=None)
    assert found[["drop", "drop_raw"]].notna().all(axis=None)


def test_no_items_are_no_rows(tokens):
    found = prune.compute(small("preln"), tokens, [], T, resamples=50)
    assert len(found) == 0
    assert {"skip_mode", "skipped", "drop_lo", "chance", "n_items"} <= set(found.columns)

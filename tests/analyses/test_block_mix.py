import pytest
import torch
from models import config, generic
from toy import batch, documents

from depthbench.analyses import _documents, block_mix, pathway

COLUMNS = ["sublayer", "is_border", "n_sources", "alpha", "beta", "lo", "hi"]


def small(design="attnres_block", **changes):
    return generic(config(design, **changes), torch.float32).eval()


def measured(model):
    found = _documents.stream(model, [batch(documents())], block_mix.measure, "float32")
    return block_mix.table(found, 20), block_mix.summary(found, 20)


def test_newest_source_and_all_others():
    """Blocks of 3 outputs: at k = 3 the newest source is the sum of 0, 1, 2; alpha is the weight of k - 1."""
    model = small(attnres_block_size=3)
    table, _ = measured(model)
    assert list(table.columns) == COLUMNS
    assert table["sublayer"].tolist() == list(range(6))
    assert table["is_border"].tolist() == [True, False, False, True, False, False]
    assert table["n_sources"].tolist() == [1, 2, 2, 2, 3, 3]
    assert table["alpha"].isna().tolist() == [True] + [False] * 5
    assert table["beta"][0] == 1
    assert (table["alpha"] + table["beta"])[1:].tolist() == pytest.approx([1] * 5, abs=1e-6)
    paths = pathway.compute(model, [batch(documents())], 20).set_index(["source", "target"])
    assert table["alpha"][1:].tolist() == pytest.approx([paths["weight"][k - 1, k] for k in range(1, 6)], abs=1e-6)
    assert (table["lo"] < table["alpha"])[1:].all()
    assert (table["alpha"] < table["hi"])[1:].all()


@pytest.mark.parametrize(("dead", "layers"), [(0, 0), (3, 1), (4, 2), (7, 3)])
def test_dead_segment_of_constructed_weights(dead, layers):
    """Branches that give zeros, and queries of the first sites along the one embedding: e^-20 for all else."""
    model = small(n_layers=4, attnres_block_size=2)
    with torch.no_grad():
        model.embed.weight.copy_(torch.ones_like(model.embed.weight))
        for l, block in enumerate(model.blocks):
            block.attn.wo.weight.zero_()
            block.ffn.w_down.weight.zero_()
            for k, name in ((2 * l, "attn_res"), (2 * l + 1, "ffn_res")):
                if k > 0:
                    mixer = getattr(block, name)
                    mixer.key_norm.weight.fill_(1)
                    mixer.query.fill_(20 / 16 if k <= dead else 0)
    table, summary = measured(model)
    assert (table["alpha"][1 : dead + 1] < 1e-6).all()
    assert table["alpha"][dead + 1 :].tolist() == pytest.approx([1 / n for n in table["n_sources"][dead + 1 :]])
    assert summary.to_dict("records") == [{"dead_sublayers": dead, "dead_layers": layers}]


@pytest.mark.parametrize("model", [("attnres_full", {}), ("preln", {}), ("attnres_block", {"attnres_block_size": 1})])
def test_other_designs_have_no_rows(model):
    table, summary = measured(small(model[0], **model[1]))
    assert (len(table), list(table.columns)) == (0, COLUMNS)
    assert (len(summary), list(summary.columns)) == (0, ["dead_sublayers", "dead_layers"])

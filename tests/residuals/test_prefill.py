import pytest
import torch
from models import config, generic

from depthbench import prefill
from depthbench.cost import kv_cache_bytes
from depthbench.designs import DESIGNS
from depthbench.errors import UserError
from depthbench.model import ModelConfig
from depthbench.model.layers import rotate

OWN_BRANCH = ("moda", "moda_postln")
TOKENS = torch.randint(23, (2, 13), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("chunk", [None, 1, 4, 13, 50])
@pytest.mark.parametrize("design", [name for name in DESIGNS if name not in OWN_BRANCH])
def test_the_last_logits_are_those_of_the_whole_model(design, chunk):
    model = generic(config(design))
    found = prefill.prefill(model, TOKENS, chunk)
    expected = model(TOKENS)[:, -1].detach()
    assert (found.logits - expected).norm() <= 1e-10 * expected.norm()


@pytest.mark.parametrize("chunk", [None, 5])
def test_the_cache_holds_rotated_keys_and_values_of_every_layer(chunk):
    """Of block 0 they are those of the normalised embedding; its size is the closed form."""
    model = generic(config("preln"))
    found = prefill.prefill(model, TOKENS, chunk)
    block = model.blocks[0]
    _, key, value = block.attn.heads(block.attn_norm(model.embed(TOKENS)))
    torch.testing.assert_close(found.keys[0], rotate(key, model.cfg.rope_theta), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.values[0], value, rtol=1e-12, atol=1e-12)
    assert found.keys.nbytes + found.values.nbytes == 2 * kv_cache_bytes(model.cfg, 13, 8)


def test_under_autocast_the_cache_is_bfloat16_and_the_logits_agree():
    model = generic(config("attnres_full"), torch.float32)
    exact = model(TOKENS)[:, -1].detach()
    with torch.autocast("cpu", torch.bfloat16):
        whole, parts = (prefill.prefill(model, TOKENS, chunk) for chunk in (None, 4))
    assert {t.dtype for t in (whole.keys, parts.values)} == {torch.bfloat16}
    for found in (whole, parts):
        assert (found.logits - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("design", OWN_BRANCH)
def test_a_design_with_an_attention_of_its_own_is_refused_in_one_line(design):
    with pytest.raises(UserError, match=rf"^E-PREFILL {design}: .*; take another design$"):
        prefill.prefill(generic(config(design)), TOKENS)


@pytest.mark.parametrize(
    ("shape", "n_positions", "batch", "size", "expected"),
    [
        ((16, 1216), 4096, 8, 2, 2**29 // (8 * 33 * 1216 * 2)),  # 836
        ((70, 640), 4096, 8, 2, 2**29 // (8 * 141 * 640 * 2)),  # 371
        ((16, 28), 256, 2, 4, 64),  # a quarter: the buffer would hold all
        ((2, 16), 3, 2, 4, 1),
        ((1, 16), 10**7, 8, 4, 2**29 // (8 * 4 * 16 * 4)),  # 4 streams are wider than 3 sources
        ((70, 640), 4096, 10**6, 2, 1),
    ],
)
def test_a_chunk_is_a_quarter_of_the_prompt_within_half_a_gibibyte(shape, n_positions, batch, size, expected):
    cfg = ModelConfig("hc", d_model=shape[1], n_layers=shape[0], n_heads=2, vocab_size=512)
    assert prefill.chunk_tokens(cfg, n_positions, batch, size) == expected

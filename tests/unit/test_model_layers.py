"""Rotary tables and attention: all head sizes of the paper, grouped heads, casts, training after inference."""

import math

import pytest
import torch

from depthbench.model.config import ModelConfig
from depthbench.model.layers import Attention, rotary_tables, rotate

HEAD_SIZES = [34, 38, 40, 42, 48, 50, 56, 60, 62, 64, 66, 70, 76, 78, 84, 94, 108, 128]


def attention_layer(head_dim, n_heads, n_kv_heads, dtype=torch.float64):
    cfg = ModelConfig("preln", head_dim * n_heads, 1, n_heads, n_kv_heads=n_kv_heads, vocab_size=8)
    layer = Attention(cfg).to(dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * p.shape[1] ** -0.5)
    return layer, torch.randn(2, 5, cfg.d_model, generator=generator, dtype=torch.float64).to(dtype)


def written_out(layer, x, n_heads, n_kv_heads):
    e, T = layer.head_dim, x.shape[1]
    turn = torch.arange(T).double()[:, None] * 10000 ** (-torch.arange(0, e, 2).double() / e)
    phase = torch.polar(torch.ones_like(turn), turn)

    def rotated(y):  # as complex numbers: channel i is the real, i + e/2 the imaginary part
        z = torch.complex(y[..., : e // 2].contiguous(), y[..., e // 2 :].contiguous()) * phase
        return torch.cat([z.real, z.imag], -1)

    out = []
    for h in range(n_heads):
        g = h // (n_heads // n_kv_heads)
        q, k, v = (x @ w.weight[i * e : (i + 1) * e].T for w, i in ((layer.wq, h), (layer.wk, g), (layer.wv, g)))
        scores = rotated(q) @ rotated(k).transpose(1, 2) / math.sqrt(e)
        scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
        out.append(scores.softmax(-1) @ v)
    return torch.cat(out, -1) @ layer.wo.weight.T


@pytest.mark.parametrize("n_kv_heads", [2, 1])
@pytest.mark.parametrize("head_dim", HEAD_SIZES)
def test_attention_of_all_head_sizes(head_dim, n_kv_heads):
    """D15: forward and backward of sizes that are no multiples of 8; the scale is that of the true size."""
    layer, x = attention_layer(head_dim, 2, n_kv_heads)
    results = []
    for function in (layer, lambda x: written_out(layer, x, 2, n_kv_heads)):
        y = function(x.requires_grad_())
        weight = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape)
        results.append([y, *torch.autograd.grad((y * weight).sum(), [x, *layer.parameters()])])
    for got, expected in zip(*results, strict=True):
        assert torch.allclose(got, expected, rtol=0, atol=1e-11 * expected.detach().abs().max().item())


def test_rotary_tables_are_float32_in_a_bfloat16_model():
    """D08: bfloat16 frequencies would alias positions; tables at 2047 and 4095 against exact arithmetic."""
    layer, _ = attention_layer(64, 1, 1)
    layer.bfloat16()
    assert dict(layer.named_buffers()) == {}
    cos, sin = rotary_tables(4096, 64, 10000.0, torch.float32, torch.device("cpu"))
    assert cos.dtype == sin.dtype == torch.float32
    for t in (2047, 4095):
        for i in (0, 1, 17, 31):
            angle = t * 10000 ** (-2 * i / 64)
            assert cos[t, 0, i] == cos[t, 0, i + 32] == pytest.approx(math.cos(angle), abs=1e-7)
            assert sin[t, 0, i + 32] == -sin[t, 0, i] == pytest.approx(math.sin(angle), abs=1e-7)


def test_rotation_of_bfloat16_input_is_float32_inside():
    x = torch.randn(1, 2048, 1, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = rotate(x.double(), 10000.0)
    assert rotate(x, 10000.0).dtype == torch.bfloat16
    error = (rotate(x, 10000.0).double() - exact).abs()
    assert (error <= exact.abs() * 2**-8 + 1e-6).all()  # one rounding, at the end


def test_training_after_inference_mode():
    layer, x = attention_layer(34, 1, 1)
    with torch.inference_mode():
        layer(x)
    layer(x.requires_grad_()).sum().backward()
    assert x.grad.abs().max() > 0

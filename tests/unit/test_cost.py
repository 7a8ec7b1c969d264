"""FLOPs against the integers that Appendix D gives at the 400M shapes, T = 4096; no torch."""

import subprocess
import sys

import pytest

from depthbench import cost
from depthbench.model.config import ModelConfig

T = 4096
# L, d, Pre-LN with the last position's logits and with all, then what HC, mHC, Full AttnRes add
PREFILL = [
    (16, 1216, 2_981_232_237_568, 3_481_972_768_768, 15_300_820_992, 38_252_052_480, 11_156_848_640),
    (20, 1120, 3_220_918_668_800, 3_682_127_052_800, 17_616_076_800, 44_040_192_000, 15_781_068_800),
    (24, 1024, 3_301_859_082_240, 3_723_535_319_040, 19_327_352_832, 48_318_382_080, 20_535_312_384),
    (28, 960, 3_438_754_728_960, 3_834_076_200_960, 21_139_292_160, 52_848_230_400, 25_983_713_280),
    (32, 896, 3_495_119_738_880, 3_864_086_446_080, 22_548_578_304, 56_371_445_760, 31_474_057_216),
    (42, 800, 3_778_728_921_600, 4_108_163_481_600, 26_424_115_200, 66_060_288_000, 47_893_708_800),
    (70, 640, 4_327_747_225_600, 4_591_294_873_600, 35_232_153_600, 88_080_384_000, 104_962_457_600),
]
# L, d, b, Block AttnRes by the paper's formula and exactly, MoDA, cache in bytes (bfloat16)
DEPTH = [
    (16, 1216, 4, 3_645_898_752, 3_506_438_144, 368_176_005_120, 318_767_104),
    (20, 1120, 5, 4_165_468_160, 4_037_017_600, 397_462_732_800, 367_001_600),
    (24, 1024, 6, 4_546_625_536, 4_429_185_024, 404_398_014_464, 402_653_184),
    (28, 960, 7, 4_954_521_600, 4_844_421_120, 419_577_200_640, 440_401_920),
    (32, 896, 8, 5_270_142_976, 5_167_382_528, 422_316_081_152, 469_762_048),
    (42, 800, 11, 5_963_776_000, 5_872_025_600, 452_486_758_400, 550_502_400),
    (70, 640, 18, 8_000_634_880, 7_927_234_560, 513_697_382_400, 734_003_200),
]


def shape(design, L, d, **changes):
    return ModelConfig(design, d_model=d, n_layers=L, n_heads=16, **changes)


@pytest.mark.parametrize(("L", "d", "last", "everywhere", "hc", "mhc", "full"), PREFILL)
def test_prefill(L, d, last, everywhere, hc, mhc, full):
    assert cost.forward_flops(shape("preln", L, d), T, last_only=True) == last
    assert cost.forward_flops(shape("preln", L, d), T) == everywhere
    assert cost.training_flops(shape("preln", L, d), T) == 3 * everywhere
    for design, own in (("hc", hc), ("mhc", mhc), ("attnres_full", full)):
        assert cost.residual_flops(shape(design, L, d), T) == own
        assert cost.forward_flops(shape(design, L, d), T) == everywhere + own


@pytest.mark.parametrize(("L", "d", "b", "paper", "exact", "moda", "cache"), DEPTH)
def test_depth_mixing_and_cache(L, d, b, paper, exact, moda, cache):
    block = shape("attnres_block", L, d)
    assert block.attnres_block_size == b
    assert cost.residual_flops(block, T, paper=True) == paper
    assert cost.residual_flops(block, T) == exact
    assert cost.residual_flops(shape("moda", L, d), T) == cost.residual_flops(shape("moda_postln", L, d), T) == moda
    assert {cost.kv_cache_bytes(shape(design, L, d), T) for design in ("preln", "hc", "moda")} == {cache}


def test_block_attnres_of_one_output_is_full():
    one = shape("attnres_block", 20, 1120, attnres_block_size=1)
    assert cost.residual_flops(one, T) == cost.residual_flops(shape("attnres_full", 20, 1120), T)


@pytest.mark.parametrize("design", ["sandwich", "lns", "deepnorm", "keel", "denseformer"])
def test_norms_and_designs_outside_the_paper_add_nothing(design):
    assert cost.residual_flops(shape(design, 24, 1024), T) == 0


def test_grouped_heads():
    """8 T d^2 becomes 4 T d^2 + 4 T d d_kv; the paper's 1.6B model halves d_kv and its cache."""
    grouped, full = (shape("preln", 28, 2048, d_ff=6144, n_kv_heads=n) for n in (8, 16))
    assert cost.forward_flops(full, T) - cost.forward_flops(grouped, T) == 28 * 4 * T * 2048 * 1024
    assert 2 * cost.kv_cache_bytes(grouped, T) == cost.kv_cache_bytes(full, T)
    assert cost.kv_cache_bytes(full, T, 4) == 2 * cost.kv_cache_bytes(full, T)


def test_three_designs_span_3_to_4_teraflops():
    """Section 4.4: "roughly 3.0 to 4.4", with logits of the last position."""
    spans = {
        d: [cost.forward_flops(shape(d, *s), T, last_only=True) for s in ((16, 1216), (70, 640))]
        for d in ("preln", "hc", "attnres_full")
    }
    assert {d: [f"{n / 1e12:.2f}" for n in span] for d, span in spans.items()} == {
        "preln": ["2.98", "4.33"],
        "hc": ["3.00", "4.36"],
        "attnres_full": ["2.99", "4.43"],
    }


def test_planning_imports_no_torch():
    code = "import sys; from depthbench import cost; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"

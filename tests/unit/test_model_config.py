"""Configuration of a model: derived keys, refusals, parameter counts of the paper's tables; no torch."""

import subprocess
import sys

import pytest

from depthbench.designs import DESIGNS
from depthbench.errors import UserError
from depthbench.model.config import ModelConfig

# Table 8 as printed: L, d, d_ff, head width, backbone and total in millions, difference in percent
TABLE_8 = {
    "200M": """
        24  672 1792 42 130 198 -3.42
        18  768 2048 48 127 205 +0.00
        12  896 2400 56 116 206 +0.69""",
    "300M": """
        28  800 2144 50 216 296 +1.09
        21  896 2400 56 203 293 +0.00
        14 1056 2816 66 187 294 +0.18""",
    "400M": """
        32  896 2400 56 309 399 -1.49
        24 1024 2736 64 302 405 +0.00
        16 1216 3248 76 284 406 +0.28""",
    "500M": """
        34  992 2656 62 403 502 -0.42
        26 1120 2992 70 392 504 +0.00
        17 1344 3584 84 368 504 -0.16""",
}
# L, d, d_ff, head width, backbone, total (both without gains), true total
TABLE_3 = [
    (16, 1216, 3248, 76, 284_213_248, 406_494_208, 406_534_336),
    (20, 1120, 2992, 70, 301_414_400, 414_041_600, 414_087_520),
    (24, 1024, 2736, 64, 302_383_104, 405_356_544, 405_406_720),
    (28, 960, 2560, 60, 309_657_600, 406_195_200, 406_249_920),
    (32, 896, 2400, 56, 309_198_848, 399_300_608, 399_358_848),
    (42, 800, 2144, 50, 323_635_200, 404_083_200, 404_151_200),
    (70, 640, 1712, 40, 344_780_800, 409_139_200, 409_229_440),
]
# L, d, d_ff, head width, backbone, total
TABLE_7 = [
    (16, 1248, 3328, 78, 299_040_768, 424_539_648),
    (42, 768, 2048, 48, 297_271_296, 374_501_376),
    (70, 608, 1632, 38, 311_879_680, 373_020_160),
    (84, 544, 1456, 34, 299_034_624, 353_739_264),
]
TABLE_9 = [
    (28, 2048, 6144, 128, 1_409_286_144, 1_615_233_024),
    (40, 1728, 5184, 108, 1_433_272_320, 1_607_040_000),
    (54, 1504, 4512, 94, 1_465_786_368, 1_617_028_608),
]


def shape(L, d, **changes):
    return ModelConfig("preln", d_model=d, n_layers=L, n_heads=16, **changes)


@pytest.mark.parametrize("scale", TABLE_8)
def test_table_8(scale):
    rows = [line.split() for line in TABLE_8[scale].strip().splitlines()]
    middle = shape(int(rows[1][0]), int(rows[1][1])).table_params()
    for L, d, *printed in rows:
        cfg = shape(int(L), int(d))
        millions = [f"{n / 1e6:.0f}" for n in (cfg.backbone_params(), cfg.table_params())]
        difference = f"{100 * (cfg.table_params() / middle - 1):+.2f}"
        assert [str(cfg.d_ff), str(cfg.head_dim), *millions, difference] == printed


@pytest.mark.parametrize(("L", "d", "d_ff", "head_dim", "backbone", "total", "true"), TABLE_3)
def test_table_3(L, d, d_ff, head_dim, backbone, total, true):
    cfg = shape(L, d)
    assert (cfg.d_ff, cfg.head_dim) == (d_ff, head_dim)
    assert (cfg.backbone_params(), cfg.table_params(), cfg.count_params()) == (backbone, total, true)


@pytest.mark.parametrize(("L", "d", "d_ff", "head_dim", "backbone", "total"), TABLE_7)
def test_table_7(L, d, d_ff, head_dim, backbone, total):
    cfg = shape(L, d)
    assert (cfg.d_ff, cfg.head_dim) == (d_ff, head_dim)
    assert (cfg.backbone_params(), cfg.table_params()) == (backbone, total)


@pytest.mark.parametrize(("L", "d", "d_ff", "head_dim", "backbone", "total"), TABLE_9)
def test_table_9(L, d, d_ff, head_dim, backbone, total):
    cfg = shape(L, d, n_kv_heads=8, d_ff=d_ff)
    assert cfg.head_dim == head_dim
    assert (cfg.backbone_params(), cfg.table_params()) == (backbone, total)


# Design, true total at L = 24, d = 1024, overhead over Pre-LN in percent
TABLE_6 = [
    ("preln", 405_406_720, "0.0000"),
    ("lns", 405_406_720, "0.0000"),
    ("deepnorm", 405_406_720, "0.0000"),
    ("keel", 405_454_848, "0.0119"),
    ("sandwich", 405_455_872, "0.0121"),
    ("attnres_full", 405_505_024, "0.0242"),
    ("attnres_block", 405_505_024, "0.0242"),
    ("hc", 405_702_880, "0.0731"),
    ("mhc", 410_126_608, "1.1642"),
    ("moda", 453_641_216, "11.8978"),
    ("moda_postln", 453_641_216, "11.8978"),
]


@pytest.mark.parametrize(("design", "total", "overhead"), TABLE_6)
def test_table_6(design, total, overhead):
    cfg = ModelConfig(design, d_model=1024, n_layers=24, n_heads=16)
    assert cfg.count_params() == total
    assert f"{100 * (total / shape(24, 1024).count_params() - 1):.4f}" == overhead
    assert cfg.table_params() == 405_356_544  # the paper's tables show the backbone of all designs


def test_overheads_with_grouped_heads():
    """Section 3 of the specification: HC 2 L (6 d + 26), mHC 2 L (96 d + 27), MoDA 2 d d_kv (L - 1)."""
    keys = {"d_model": 64, "n_layers": 5, "n_heads": 4, "n_kv_heads": 2}
    plain = ModelConfig("preln", **keys).count_params()
    own = {"hc": 10 * (6 * 64 + 26), "mhc": 10 * (96 * 64 + 27), "moda": 2 * 64 * 32 * 4, "keel": 9 * 64}
    assert {design: ModelConfig(design, **keys).count_params() - plain for design in own} == own


@pytest.mark.parametrize(("L", "b"), [(1, 1), (4, 1), (5, 2), (16, 4), (20, 5), (28, 7), (32, 8), (42, 11), (70, 18)])
def test_block_size_of_attnres(L, b):
    assert ModelConfig("attnres_block", d_model=64, n_layers=L, n_heads=4).attnres_block_size == b


def test_derived_keys_and_defaults():
    cfg = ModelConfig("hc", d_model=64, n_layers=4, n_heads=4, norm_eps=1e-5)
    assert (cfg.n_kv_heads, cfg.head_dim, cfg.d_ff) == (4, 16, 176)
    assert (cfg.hc_rms_eps, cfg.mhc_rms_eps, cfg.attnres_eps) == (1e-5, 1e-5, 1e-5)
    assert (cfg.sinkhorn_iters, cfg.sinkhorn_eps, cfg.attnres_block_size, cfg.init) == (20, 1e-6, 1, "default")
    assert (cfg.vocab_size, cfg.rope_theta, cfg.init_std, cfg.n_streams) == (50280, 10000, 0.02, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"design": "resnet"}, "design='resnet': unknown; choose one of attnres_block, .*denseformer, .*sandwich"),
        ({"d_model": 65}, "d_model=65: not n_heads x head_dim = 4 x 16"),
        ({"head_dim": 8}, "d_model=64: not n_heads x head_dim = 4 x 8"),
        ({"d_model": 60}, "head_dim=15: odd"),
        ({"n_kv_heads": 3}, "n_kv_heads=3: does not divide n_heads=4"),
        ({"n_kv_heads": 8}, "n_kv_heads=8: does not divide n_heads=4"),
        ({"n_layers": 0}, "n_layers=0: not a whole number above 0"),
        ({"d_ff": 0}, "d_ff=0: not a whole number above 0"),
        ({"d_model": 64.0}, "d_model=64.0: not a whole number above 0"),
        ({"n_heads": True}, "n_heads=True: not a whole number above 0"),
        ({"vocab_size": "512"}, "vocab_size='512': not a whole number above 0"),
        ({"norm_eps": 0.0}, "norm_eps=0.0: not a number above 0"),
        ({"rope_theta": float("nan")}, "rope_theta=nan: not a number above 0"),
        ({"init_std": "0.02"}, "init_std='0.02': not a number above 0"),
        ({"sinkhorn_iters": 0}, "sinkhorn_iters=0: not a whole number above 0"),
        ({"sinkhorn_eps": -1e-6}, "sinkhorn_eps=-1e-06: not a number above 0"),
        ({"attnres_block_size": 1.5}, "attnres_block_size=1.5: not a whole number above 0"),
        ({"mhc_rms_eps": 0}, "mhc_rms_eps=0: not a number above 0"),
        ({"init": "zero"}, "init='zero': unknown; choose one of default, legacy"),
        ({"hc_readout": "mean"}, "hc_readout='mean': unknown; choose one of sum_then_norm, norm_then_sum"),
    ],
)
def test_bad_values_are_refused_in_one_line(changes, message):
    keys = {"design": "preln", "d_model": 64, "n_layers": 4, "n_heads": 4} | changes
    with pytest.raises(UserError, match=f"^E-CONFIG {message}[^\n]*$") as error:
        ModelConfig(**keys)
    assert error.value.code == "E-CONFIG"


def test_all_problems_are_told_at_once():
    with pytest.raises(UserError) as error:
        ModelConfig("resnet", d_model=-1, n_layers=0, n_heads=4)
    assert [line.split("=")[0] for line in str(error.value).splitlines()] == [
        "E-CONFIG design",
        "E-CONFIG d_model",
        "E-CONFIG n_layers",
    ]


def test_designs_are_the_files_of_the_folder():
    assert {design for design, *_ in TABLE_6} | {"denseformer"} == set(DESIGNS)


def test_planning_imports_no_torch():
    code = (
        "import sys; from depthbench.model import ModelConfig; "
        "print(ModelConfig('hc', 1024, 24, 16).count_params(), 'torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["405702880", "False"]

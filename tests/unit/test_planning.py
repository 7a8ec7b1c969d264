import pytest

from depthbench import config, plan

COUNTS = {
    "main": (56, 56), "backbone": (18, 12), "ladder": (36, 27), "large": (9, 9), "moda_norms": (2, 2),
    "sweep": (180, 140),
    "study": (246, 246), "control released": (4, 4), "control hc_readout": (1, 1),
}  # fmt: skip


def test_the_paper(raw):
    rows = {r.suite: r for r in plan.plan(config.load({**raw, "study": "paper"}), 32_000_000_000, 0.4, "A100")}
    assert {name: (row.n_runs, row.n_new) for name, row in rows.items()} == COUNTS
    step = 512 * 2048
    assert rows["main"].tokens_per_run == (7600 * step, 7600 * step)
    assert rows["ladder"].tokens_per_run == (3800 * step, 9500 * step)
    assert rows["large"].tokens == 9 * 30400 * step
    assert rows["large"].epochs == pytest.approx(30400 * step / 32e9)
    own = [row for name, row in rows.items() if name != "study" and not name.startswith("control")]
    assert rows["study"].tokens == sum(row.tokens for row in own)
    assert rows["study"].flops == pytest.approx(sum(row.flops for row in own))
    # Table 6: Pre-LN and LNS, HC, Full AttnRes, in two bytes
    assert rows["control released"].disk_bytes == 2 * (2 * 405_406_720 + 405_702_880 + 405_505_024)
    assert rows["moda_norms"].disk_bytes == 2 * 4 * 453_641_216  # Table 6
    # Appendix D for MoDA at (24, 1024): three forward passes of 512 x 7600 sequences of 2048, twice
    T, L, d, f, V = 2048, 24, 1024, 2736, 50280
    forward = L * (8 * T * d * d + 6 * T * d * f + 2 * T * T * d) + 2 * T * d * V
    forward += (L - 1) * 4 * T * d * d + 4 * T * d * L * (L - 1)
    assert rows["moda_norms"].flops == 2 * 3 * forward * 512 * 7600
    assert rows["moda_norms"].gpu_hours == pytest.approx(rows["moda_norms"].flops / (0.4 * 312e12) / 3600)


def test_text_that_is_not_prepared_has_no_epochs(raw):
    assert plan.plan(config.load({**raw, "study": "micro"}), None, 0.4, "A100")[0].epochs is None

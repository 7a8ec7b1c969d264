import json

import pytest
from synthetic import TINY, Study, path

from depthbench.artifacts import read
from depthbench.errors import UserError
from depthbench.tables import run_costs

FILES = ("run.json", "metrics.jsonl")
RUN = path("preln", TINY[0])


@pytest.fixture
def study(tmp_path):
    """Two legs on two machines, a diverged and a missing run."""
    study = Study(tmp_path)
    study.add(RUN, legs=(("a" * 40, False), ("a" * 40, False)))
    study.add(path("keel", TINY[0]), status="diverged")
    study.add(path("hc", TINY[0]), status="missing")
    change(study, "run.json", lambda record: record["legs"][1].update(host="node2", threads=4, seconds=1.25, ranks=2))
    return study


def change(study, name, edit):
    file = study.file(RUN, name)
    record = json.loads(file.read_text())
    edit(record)
    file.write_text(json.dumps(record))


def build(study):
    spec = study.spec(files=FILES)
    files = [study.file(run, name) for run in spec.present for name in FILES]
    return run_costs.build(read(files, spec), spec)


def steps(study, speeds, memory):
    """Steps 1 to 100 of 1024 tokens each; the first ones have the given speeds and memory."""
    rows = [{"step": i, "tokens": 1024 * i, "tokens_per_s": 2048.0, "memory_bytes": 1} for i in range(1, 101)]
    for row, speed in zip(rows, speeds, strict=False):
        row |= {"tokens_per_s": speed, "memory_bytes": memory}
    study.file(RUN, "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_costs_of_a_run(study):
    steps(study, [1.0] * 30, memory=7 * 10**11)  # a slow start does not move the median
    row = build(study).set_index("run_id").loc[f"tiny/runs/{RUN}"]
    assert (row["tokens_per_s"], row["step_seconds"], row["peak_bytes"]) == (2048, 0.5, 7 * 10**11)
    assert (row["n_legs"], row["seconds"]) == (2, 8.5 + 1.25)
    assert (row["host"], row["threads"], row["ranks"]) == ("vm, node2", "1, 4", "1, 2")
    assert (row["device"], row["kernels"]) == ("cpu: x86_64", "eager")
    assert (row["step"], row["tokens"], row["status"], row["commit"]) == (100, 102400, "ok", "aaaaaaa")


def test_every_run_has_a_row(study):
    table = build(study).set_index("status")
    assert table.index.tolist() == ["ok", "diverged", "missing"]
    assert table.loc["diverged", "tokens_per_s"] == 2048
    assert table.loc["missing", ["tokens_per_s", "seconds", "peak_bytes", "device", "mixed_commit"]].isna().all()


def test_flops_are_three_forward_passes_of_every_window(study):
    """Appendix D at L = 4, d = 52, d_ff = 144, V = 512: 800 windows of 128 tokens."""
    L, d, f, T, V = 4, 52, 144, 128, 512
    flops = 800 * 3 * (L * (8 * T * d * d + 6 * T * d * f + 2 * T * T * d) + 2 * T * d * V)
    row = build(study).set_index("run_id").loc[f"tiny/runs/{RUN}"]
    assert row["flops"] == flops
    assert row["flops_per_s"] == pytest.approx(flops / 102400 * 2048)


@pytest.mark.parametrize(
    ("device", "compute", "ranks", "peak"),
    [
        ("cuda: NVIDIA H200", "bfloat16", (2, 2), 2 * 989.5e12),
        ("cuda: NVIDIA A100-SXM4-40GB", "bfloat16", (1, 1), 312e12),
        ("cuda: NVIDIA H200", "float32", (1, 1), None),
        ("cuda: NVIDIA H200", "bfloat16", (1, 2), None),
        ("cuda: NVIDIA H200 NVL", "bfloat16", (1, 1), None),
        ("cpu: x86_64", "bfloat16", (1, 1), None),
    ],
)
def test_mfu_only_where_the_peak_is_known(study, device, compute, ranks, peak):
    def edit(record):
        record["spec"]["precision"]["compute"] = compute
        for leg, own in zip(record["legs"], ranks, strict=True):
            leg.update(device=device, ranks=own)

    change(study, "run.json", edit)
    row = build(study).set_index("run_id").loc[f"tiny/runs/{RUN}"]
    assert row["mfu"] == pytest.approx(row["flops_per_s"] / peak if peak else float("nan"), nan_ok=True)


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        (lambda text: text[: text.rindex("\n", 0, -1) + 1], "do not end at the same step"),  # a line is lost
        (lambda text: text[:-1], "cut short"),
        (lambda text: text[:-20] + "\n", ""),
        (lambda text: "", "cut short"),
        (lambda text: text.replace("memory_bytes", "memory"), "no column memory_bytes"),
        (lambda text: text.replace("2048.0", "null"), "empty values"),
        (lambda text: text.replace("2048.0", '"fast"'), "fast"),
    ],
)
def test_wrong_metrics(study, edit, word):
    file = study.file(RUN, "metrics.jsonl")
    file.write_text(edit(file.read_text()))
    with pytest.raises(UserError, match=f"E-RUN .*{RUN}.*{word}") as caught:
        build(study)
    assert "\n" not in str(caught.value)


def test_record_without_a_legs_time(study):
    change(study, "run.json", lambda record: record["legs"][0].pop("seconds"))
    with pytest.raises(UserError, match=r"E-RUN .*legs\.0\.seconds"):
        build(study)

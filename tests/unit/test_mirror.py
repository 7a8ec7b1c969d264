import json

import pytest

from depthbench import mirror
from depthbench.errors import UserError

pytest.importorskip("tensorboard")


def row(step, loss):
    return {
        "step": step,
        "loss": loss,
        "grad_norm": 1.0,
        "lr": 0.5,
        "tokens_per_s": 9.0,
        "memory_bytes": 8,
        "time": 100.0 + step,
    }


def test_events_are_the_metrics(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "runs/preln/u-d16-l2/lr1e-2-s0"
    (run / "resume").mkdir(parents=True)
    lines = [json.dumps(row(1, 2.5)), json.dumps(row(2, None)), json.dumps(row(3, 1.5))]
    (run / "resume/metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 4, ')
    for _ in range(2):  # the second time replaces the first
        assert mirror.mirror(tmp_path / "runs", tmp_path / "out") == ["preln/u-d16-l2/lr1e-2-s0"]
    events = EventAccumulator(str(tmp_path / "out/preln/u-d16-l2/lr1e-2-s0"))
    events.Reload()
    assert [(e.step, e.value, e.wall_time) for e in events.Scalars("loss")] == [(1, 2.5, 101.0), (3, 1.5, 103.0)]
    assert [e.step for e in events.Scalars("grad_norm")] == [1, 2, 3]


def test_events_beside_a_run_remove_nothing_of_it(tmp_path):
    run = tmp_path / "runs/preln/u-d16-l2/lr1e-2-s0"
    (run / "resume").mkdir(parents=True)
    for path in (run / "resume/metrics.jsonl", run / "model.safetensors"):
        path.write_text(json.dumps(row(1, 2.5)) + "\n")
    for runs in (tmp_path / "runs", run):
        for _ in range(2):
            mirror.mirror(runs, runs)
    assert (run / "resume/metrics.jsonl").exists()
    assert (run / "model.safetensors").exists()
    assert len(list(run.glob("events.out.tfevents.*"))) == 1


def test_no_run_is_told(tmp_path):
    with pytest.raises(UserError, match="E-MIRROR"):
        mirror.mirror(tmp_path, tmp_path / "out")

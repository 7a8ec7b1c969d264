import json

import pytest

from depthbench import config, lock, runs, status


@pytest.fixture
def micro(raw):
    loaded = config.load({**raw, "study": "micro"})
    return loaded, runs.union(runs.suites(loaded))


def record(folder, spec, status="ok", legs=(("aaaaaaaaaa", False),), step=4):
    folder.mkdir(parents=True)
    legs = [{"commit": commit, "dirty": dirty} for commit, dirty in legs]
    (folder / "run.json").write_text(json.dumps({"spec": spec, "status": status, "legs": legs, "step": step}))


def test_each_state(micro, tmp_path):
    loaded, (done, diverged, stale, stopped) = micro
    specs = {run: runs.spec(loaded, run).as_dict() for run in micro[1]}
    record(tmp_path / done.path, specs[done], legs=[("aaaaaaaaaa", False), ("bbbbbbbbbb", False)])
    record(tmp_path / diverged.path, specs[diverged], "diverged", step=2)
    record(tmp_path / stale.path, {**specs[stale], "steps": 5}, step=5)
    (tmp_path / stopped.path / "resume").mkdir(parents=True)
    (tmp_path / stopped.path / "resume" / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    found = {s.run: s for s in status.status(loaded, micro[1], tmp_path)}
    assert {run: (s.state, s.step, s.steps) for run, s in found.items()} == {
        done: ("done", 4, 4),
        diverged: ("diverged", 2, 4),
        stale: ("stale", 5, 4),
        stopped: ("stopped", 2, 4),
    }
    assert {run for run, s in found.items() if s.mixed} == {done}
    assert found[done].commits == ("aaaaaaa", "bbbbbbb")
    with lock.held(tmp_path / stopped.path, "it"):
        running = {s.run: s for s in status.status(loaded, micro[1], tmp_path)}[stopped]
    assert running.state == "running"
    assert running.holder.startswith("host ")


def test_a_broken_record_is_no_finished_run(micro, tmp_path):
    loaded, members = micro
    (tmp_path / members[0].path).mkdir(parents=True)
    (tmp_path / members[0].path / "run.json").write_text('{"spec"')
    assert {s.state for s in status.status(loaded, members, tmp_path)} == {"missing"}

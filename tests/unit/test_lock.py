import fcntl
import os
import subprocess
import sys
import threading

import pytest

from depthbench import lock
from depthbench.errors import UserError

HOLD = (
    "import sys; from pathlib import Path; from depthbench import lock\n"
    "with lock.held(Path(sys.argv[1]), 'the run'): print('held', flush=True); sys.stdin.read()"
)


def test_a_second_process_leaves_and_is_told_who_is_at_work(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert lock.holder(tmp_path) is None
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        words = rf"host {os.uname().nodename}, process {other.pid}, Slurm job 4711"
        assert lock.holder(tmp_path) == words
        with (
            pytest.raises(UserError, match=rf"E-LOCK the run: {words} is at work on it"),
            lock.held(tmp_path, "the run"),
        ):
            pass
        other.kill()
    assert lock.holder(tmp_path) is None
    with lock.held(tmp_path, "the run"):
        assert lock.holder(tmp_path).startswith("host ")


def test_who_looks_at_a_lock_stops_nobody(tmp_path):
    """`holder` has the lock for an instant: one that looks beside it and one that wants it wait that long."""
    with lock.held(tmp_path, "the run"):
        pass
    with (tmp_path / lock.NAME).open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert lock.holder(tmp_path) is None
        threading.Timer(0.05, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with lock.held(tmp_path, "the run"):
            assert lock.holder(tmp_path).startswith("host ")

import os
import resource
import signal
import subprocess
import sys
import time

import pytest
import torch

from depthbench import checkpoint, files
from depthbench.errors import UserError


def tensors(value):
    return {"model.a": torch.full((5, 3), float(value)), "step.a": torch.tensor(float(value))}


def test_two_are_kept_and_the_newest_is_read(tmp_path):
    checkpoint.save_tensors(tmp_path / "step-000000001.safetensors", tensors(1))  # killed before its record
    for step in (2, 3, 10):
        checkpoint.save(tmp_path, step, tensors(step), {"note": step})
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "step-000000003.json", "step-000000003.safetensors", "step-000000010.json", "step-000000010.safetensors",
    ]  # fmt: skip
    found, record = checkpoint.latest(tmp_path)
    assert (record["step"], record["note"]) == (10, 10)
    assert all(torch.equal(found[n], t) for n, t in tensors(10).items())


@pytest.mark.parametrize("harm", ["cut", "flip", "gone", "record"])
def test_a_broken_checkpoint_is_told_by_name_and_the_other_is_used(tmp_path, capsys, harm):
    for step in (1, 2):
        checkpoint.save(tmp_path, step, tensors(step), {})
    path = tmp_path / "step-000000002.safetensors"
    data = bytearray(path.read_bytes())
    if harm == "cut":
        path.write_bytes(data[:-1])
    elif harm == "flip":
        data[-1] ^= 1
        path.write_bytes(data)
    elif harm == "gone":
        path.unlink()
    else:
        path.with_suffix(".json").write_text('{"step": 2')
    assert checkpoint.latest(tmp_path)[1]["step"] == 1
    assert "step-000000002" in capsys.readouterr().out


def test_no_checkpoint(tmp_path):
    assert checkpoint.latest(tmp_path / "none") is None


def test_a_writer_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    code = (
        "import sys, torch; from pathlib import Path; from depthbench import checkpoint\n"
        "t = {'a': torch.zeros(200_000)}\n"
        "for step in range(1, 10_000):\n"
        "    checkpoint.save(Path(sys.argv[1]), step, {'a': t['a'] + step}, {}); print(step, flush=True)"
    )
    for moment in range(6):
        with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
            while writer.stdout and int(writer.stdout.readline()) < 3:
                pass
            time.sleep(0.002 * moment)
            os.kill(writer.pid, signal.SIGKILL)
        found, record = checkpoint.latest(tmp_path)
        assert torch.equal(found["a"], torch.zeros(200_000) + record["step"])
        checkpoint.remove(tmp_path)


def test_a_full_disk_is_one_line_and_spares_the_last_checkpoint(tmp_path):
    checkpoint.save(tmp_path, 1, tensors(1), {})
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old[1]))  # writes beyond 4 KiB fail, as on a full disk
    try:
        with pytest.raises(UserError, match=r"E-DISK .*step-000000002"), files.disk_errors():
            checkpoint.save(tmp_path, 2, {"a": torch.zeros(10_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert checkpoint.latest(tmp_path)[1]["step"] == 1
    assert {p.name for p in tmp_path.iterdir()} == {"step-000000001.json", "step-000000001.safetensors"}

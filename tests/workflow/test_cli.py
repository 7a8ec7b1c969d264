"""What a user sees who calls the commands by hand."""

import json
import subprocess
import sys

import pytest

from depthbench import __main__


def depthbench(*args):
    return subprocess.run([sys.executable, "-m", "depthbench", *args], capture_output=True, text=True)


@pytest.mark.parametrize(
    "command",
    [
        *("fetch", "fetch-file", "prepare-file", "prepare", "train", "evaluate", "analyze", "import", "export"),
        *("prefill", "table", "figure"),
    ],
)
def test_help_has_an_example(command):
    done = depthbench(command, "--help")
    assert done.returncode == 0
    assert "Example:" in done.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["evaluate", "no/such/run"], "E-RUN no/such/run/run.json: No such file or directory"),
        (["evaluate", "no/such/run", "--tasks", "boolq"], "E-SPEC --tasks 'boolq': no such task; known: mbpp, "),
        (["evaluate", "no/such/run", "--spec", "{"], "E-SPEC --spec: Invalid JSON"),
        (["analyze", "no/such/run"], "E-RUN no/such/run/run.json: No such file or directory"),
        (["analyze", "x", "--only", "causal,lens"], "E-SPEC --only 'lens': no such analysis; known: angular, causal, "),
        (["analyze", "x", "--spec", '{"names": ["prune"], "calibration": {"documents": 4, "tokens": 8}}'], "E-SPEC "),
        (["import", "no/such/folder", "--out", "x"], "E-CKPT no/such/folder: no such folder; name the"),
        (["import", "--out", "x"], "E-SPEC give the folder of a checkpoint, or --spec"),
        (["import", "--spec", "{}", "--out", "x"], "E-SPEC run_id: Field required"),
        (["export", "no/such/run", "--out", "x"], "E-RUN no/such/run/run.json: No such file or directory"),
        (["prepare", "--spec", "{", "--out", "x"], "E-SPEC --spec: Invalid JSON"),
        (["train", "--spec", "[]", "--data", "x", "--out", "y"], "E-SPEC --spec: "),
        (["figure", "--spec", "{}", "--out", "x.svg"], "E-"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_exit_2(args, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["depthbench", *args])
    with pytest.raises(SystemExit) as left:
        __main__.main()
    told = capsys.readouterr().err
    assert left.value.code == 2
    assert words in told
    assert "Traceback" not in told
    assert all(line.startswith("E-") for line in told.splitlines())


def test_a_traceback_is_there_for_those_who_ask_for_it():
    args = ("evaluate", "no/such/run")
    done = depthbench(*args)
    assert (done.returncode, done.stderr.startswith("E-RUN"), done.stderr.count("\n")) == (2, True, 1)
    assert "Traceback" in depthbench("--debug", *args).stderr


@pytest.mark.slow
def test_training_refuses_what_is_not_there(prepared, tmp_path):
    spec = json.dumps(prepared.spec(steps=2).as_dict())
    done = depthbench("train", "--spec", spec, "--data", str(tmp_path / "none"), "--out", str(tmp_path / "run"))
    assert (done.returncode, done.stderr.startswith("E-SHARD")) == (2, True)
    done = depthbench(
        "train",
        "--spec",
        spec,
        "--data",
        str(prepared.folder),
        "--out",
        str(tmp_path / "run"),
        "--kernels",
        "triton",
    )
    assert (done.returncode, done.stderr.startswith("E-KERNEL kernels=triton")) == (2, True)
    long = json.dumps(prepared.spec(steps=10_000).as_dict())
    done = depthbench("train", "--spec", long, "--data", str(prepared.folder), "--out", str(tmp_path / "run"))
    assert (done.returncode, done.stderr.startswith("E-BUDGET")) == (2, True)
    (tmp_path / "file").write_text("")
    done = depthbench("train", "--spec", spec, "--data", str(prepared.folder), "--out", str(tmp_path / "file" / "run"))
    assert (done.returncode, done.stderr.startswith("E-DISK")) == (2, True), done.stderr

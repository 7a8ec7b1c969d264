import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import one_machine
import pytest

BIN = Path(sys.executable).parent
SRC = Path(__file__).parents[2] / "src"
# Latency is none here; a real cluster's profile looks less often.
OPTIONS = (
    *("--executor", "submitit", "--jobs", "20", "--seconds-between-status-checks", "1", "--latency-wait", "3"),
    "--show-failed-logs",
)


@pytest.fixture(scope="session")
def cluster():
    """The cluster of this session; paths of sockets are short, hence its place."""
    if missing := one_machine.missing():
        pytest.skip(f"no Slurm on this machine: {', '.join(missing)} not found")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    made = one_machine.Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Workflow:
    """A folder with a Snakefile whose jobs go to the cluster."""

    python = BIN / "python"

    def __init__(self, folder, env):
        self.folder, self.env = folder, {**env, "PYTHONPATH": f"{SRC}:{os.environ.get('PYTHONPATH', '')}"}
        folder.mkdir(parents=True, exist_ok=True)
        self.main = None

    def write(self, text):
        (self.folder / "Snakefile").write_text(text)

    def start(self, *args, env=(), options=OPTIONS):
        """Start Snakemake; `python` of this environment, which is not on the caller's PATH."""
        with (self.folder / "main.log").open("a") as log:
            self.main = subprocess.Popen(
                [str(BIN / "snakemake"), *options, *args],
                cwd=self.folder,
                env={**self.env, **dict(env)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.main

    def run(self, *args, status=0, timeout=120, **options):
        """Run Snakemake to its end and return what it printed."""
        (self.folder / "main.log").write_text("")
        assert self.start(*args, **options).wait(timeout) == status, self.printed()
        return self.printed()

    def printed(self):
        return (self.folder / "main.log").read_text()

    def wait_for(self, condition, seconds=40):
        """Wait until `condition()` is true, and return its value."""
        end = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < end, self.printed()
            time.sleep(0.05)
        return value

    def has(self, name):
        return lambda: (self.folder / name).exists()

    def text(self, name):
        return (self.folder / name).read_text()

    def stop(self):
        if self.main is not None and self.main.poll() is None:
            os.killpg(self.main.pid, signal.SIGKILL)
            self.main.wait()


@pytest.fixture
def workflow(cluster, tmp_path):
    made = Workflow(tmp_path / "a flow", cluster.env)
    yield made
    made.stop()
    if left := cluster.queue():
        cluster.run("scancel", *left, check=False)
        cluster.wait_until_empty()

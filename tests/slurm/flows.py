"""A folder in which Snakemake sends its jobs to the cluster of the tests."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

BIN = Path(sys.executable).parent
SRC = Path(__file__).parents[2] / "src"
# Latency is none here; a real cluster's profile looks less often.
OPTIONS = (
    *("--executor", "submitit", "--jobs", "20", "--seconds-between-status-checks", "1", "--latency-wait", "3"),
    "--show-failed-logs",
)


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

    def logs(self):
        """Return what the jobs have printed."""
        return "\n".join(path.read_text() for path in self.folder.glob(".snakemake/submitit/**/*_log.out"))

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

"""A copy of the checkout in which Snakemake runs."""

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OF_THE_CODE = {"commit", "mixed_commit"}


class Checkout:
    """A copy of the checkout in which Snakemake runs; imports still come from the installed package."""

    def __init__(self, folder):
        self.folder = folder
        tracked = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z"]
        for name in filter(None, subprocess.check_output(tracked, text=True).split("\0")):
            if (ROOT / name).is_file():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)

    def call(self, *command, **options):
        """Run a command in the copy; `python` and `snakemake` are those of this environment."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, **options.pop("env", {})}
        env.pop("DISPLAY", None)
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, **options)

    def snakemake(self, *args):
        """Run Snakemake, which must succeed; return what it printed."""
        done = self.call("snakemake", *args)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def plan(self, *args):
        """Return how many jobs of each rule a dry-run lists, and the runs it would train."""
        text = self.snakemake("-n", *args)
        jobs = counted(text)
        trained = re.findall(r"^    log: results/\w+/logs/train/(\S+)\.log", text, re.MULTILINE)
        return jobs, sorted(set(trained))

    def edit(self, name, old, new):
        """Replace the only occurrence of `old` in a file."""
        path = self.folder / name
        text = path.read_text()
        assert text.count(old) == 1, (name, old)
        path.write_text(text.replace(old, new))


def counted(text):
    """Return how many jobs of each rule are listed in what a dry-run printed."""
    table = text.partition("Job stats")[2].partition("total")[0]
    return {rule: int(n) for rule, n in re.findall(r"^(\w+) +(\d+)$", table, re.MULTILINE)}


def compared(folder):
    """Return the micro study's tables, those of costs and columns that tell of the code aside, and its weights."""
    from safetensors.torch import load_file  # brings PyTorch, which takes seconds

    tables = {}
    for path in sorted((folder / "results/micro/tables").glob("*.csv")):
        if path.stem == "run_costs":
            continue
        with path.open() as file:
            tables[path.name] = [
                {key: value for key, value in row.items() if key not in OF_THE_CODE} for row in csv.DictReader(file)
            ]
    runs = folder / "results/micro/runs"
    weights = {str(path.relative_to(runs)): load_file(path) for path in sorted(runs.glob("*/*/*/model.safetensors"))}
    return tables, {f"{run}:{name}": t.tolist() for run, state in weights.items() for name, t in state.items()}

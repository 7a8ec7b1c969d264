"""Whole studies of DepthBench on a real Slurm, and `--profile slurm` on a machine without one."""

import csv
import json
import os
import re
import shutil

import pytest
from checkout import Checkout
from flows import BIN, Workflow

NOT_COMPARED = {"time", "host", "commit", "mixed_commit"}


def losses(folder, study):
    with (folder / f"results/{study}/tables/losses.csv").open() as file:
        return [{key: row[key] for key in row if key not in NOT_COMPARED} for row in csv.DictReader(file)]


def same_losses_on_slurm(cluster, tmp_path, study, seconds):
    local, remote = Checkout(tmp_path / "local"), Checkout(tmp_path / "on slurm")
    workflow = Workflow(remote.folder, cluster.env)
    printed = workflow.run("--jobs", "4", "--config", f"study={study}", "--", "losses", timeout=seconds)
    shutil.copytree(remote.folder / "results/data", local.folder / "results/data")
    local.snakemake("-c2", "--config", f"study={study}", "--", "losses")
    assert losses(remote.folder, study) == losses(local.folder, study) != []
    return workflow, printed


def test_the_micro_study_gives_the_same_losses(cluster, tmp_path):
    workflow, printed = same_losses_on_slurm(cluster, tmp_path, "micro", 300)
    ids = set(re.findall(r"Job \d+ is slurm job (\d+), log: ", printed))
    assert len(ids) == 9  # prepare, four trainings, four evaluations; fetching and the table stay here
    records = [json.loads(path.read_text()) for path in workflow.folder.glob("results/micro/runs/*/*/*/run.json")]
    assert {leg["slurm_job_id"] for record in records for leg in record["legs"]} < ids


@pytest.mark.slow
def test_the_tiny_study_gives_the_same_losses(cluster, tmp_path):
    same_losses_on_slurm(cluster, tmp_path, "tiny", 3000)


def snakemake(checkout, *args, path, **more):
    env = {"PATH": path, "SNAKEMAKE_PROFILE": "", "HOME": str(checkout.folder), **more}
    return checkout.call(str(BIN / "snakemake"), *args, env=env)


@pytest.fixture
def without_slurm(tmp_path):
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "env", "git", "python3"):
        (tmp_path / "bin" / tool).symlink_to(f"/usr/bin/{tool}")
    return f"{tmp_path / 'bin'}"


def test_the_profile_plans_the_paper_without_slurm(tmp_path, without_slurm):
    """From a clone, on any machine; also beside --config, and with a site's own file after it."""
    checkout = Checkout(tmp_path / "checkout")
    (checkout.folder / "site.yaml").write_text("default-resources: {slurm_partition: fast, gpu_model: h100}\n")
    for more in ((), ("--profile", "site.yaml", "--config", "kernels=reference")):
        done = snakemake(checkout, "--profile", "slurm", *more, "-n", path=without_slurm)
        assert done.returncode == 0, done.stderr
        text = done.stdout + done.stderr
        counts = dict(re.findall(r"^(\w+) +(\d+)$", text, re.MULTILINE))
        assert (counts["train"], counts["evaluate"]) == ("246", "246")
        large = re.search(r"wildcards: run=preln/1600m-d2048-l28/\S+\n(?:.*\n)*?    resources: (.*)", text)
        asked = dict(pair.split("=", 1) for pair in large[1].split(", "))
        assert re.search(r"^rule prepare:\n(?:.+\n)*?    resources: .*\bgpu=0\b", text, re.MULTILINE)
        assert {"gpu": "8", "nodes": "2", "mem_mb": "200000", "runtime": "5760"}.items() <= asked.items()
    assert (asked["slurm_partition"], asked["gpu_model"]) == ("fast", "h100")


def refused_before_any_job(checkout, reason, **where):
    done = snakemake(checkout, "--profile", "slurm", "--config", "study=micro", **where)
    assert done.returncode == 1
    assert [reason in line for line in done.stderr.splitlines()].count(True) == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert [path.name for path in (checkout.folder / "results").iterdir()] == ["README.md"]


def test_the_profile_without_slurm_trains_nothing_here(tmp_path, without_slurm):
    refused_before_any_job(Checkout(tmp_path / "checkout"), "no Slurm on this machine", path=without_slurm)


@pytest.mark.usefixtures("cluster")
def test_nor_where_slurms_commands_reach_no_cluster(tmp_path):
    (tmp_path / "slurm.conf").touch()
    checkout, reason = Checkout(tmp_path / "checkout"), "Slurm does not answer: squeue: "
    refused_before_any_job(checkout, reason, path=os.environ["PATH"], SLURM_CONF=str(tmp_path / "slurm.conf"))

"""DepthBench's own training under the plugin, on a real Slurm: saved, requeued, resumed to the bit; a whole study."""

import csv
import json
import re

import pytest
import torch
from checkout import Checkout
from flows import BIN, Workflow
from safetensors.torch import load_file

from depthbench import train
from depthbench.data.loader import Windows

STEPS = 60
ONE = """
rule train:
    output: "run/run.json"
    log: "train.log"
    shell: "python -m depthbench train --spec \\"$(cat spec.json)\\" --data {DATA} --out run --micro-batch 1"
        " --checkpoint-seconds 2 > {log} 2>&1"
"""
NOT_COMPARED = {"time", "host", "commit", "mixed_commit"}


def steps_taken(workflow):
    metrics = workflow.folder / "run/resume/metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def test_a_training_saved_on_a_signal_and_one_requeued_equal_the_undisturbed(workflow, cluster, prepared, tmp_path):
    model = {"design": "preln", "d_model": 32, "n_layers": 48, "n_heads": 2, "vocab_size": 512}
    spec = prepared.spec(steps=STEPS, model=model)
    workflow.write(ONE.replace("{DATA}", str(prepared.folder)))
    (workflow.folder / "spec.json").write_text(json.dumps(spec.as_dict()))
    workflow.start("--", "run/run.json")
    workflow.wait_for(lambda: steps_taken(workflow) > 5)
    (job_id,) = cluster.queue()
    cluster.run("scancel", "--signal=USR2", job_id)
    workflow.wait_for(lambda: cluster.show(job_id)["Restarts"] == "1")
    before = steps_taken(workflow)
    workflow.wait_for(lambda: steps_taken(workflow) > before + 5)
    cluster.run("scontrol", "requeue", job_id)
    assert workflow.main.wait(90) == 0, workflow.printed()

    record = json.loads(workflow.text("run/run.json"))
    legs = record["legs"]
    assert [leg["slurm_job_id"] for leg in legs] == [job_id] * 3
    assert 5 < legs[1]["from_step"] < legs[2]["from_step"] < STEPS
    assert "SIGUSR2: saved step" in workflow.text("run/resume/log.txt")
    undisturbed = train.Training(spec, Windows(prepared.folder, spec.sequence_length), tmp_path / "undisturbed", 1)
    for _ in range(STEPS):
        undisturbed.advance()
    weights = load_file(workflow.folder / "run/model.safetensors")
    assert all(torch.equal(weights[name], value) for name, value in undisturbed.model.state_dict().items())


def losses(folder, study):
    with (folder / f"results/{study}/tables/losses.csv").open() as file:
        return [{key: row[key] for key in row if key not in NOT_COMPARED} for row in csv.DictReader(file)]


def same_losses_on_slurm(cluster, tmp_path, study):
    local, remote = Checkout(tmp_path / "local"), Checkout(tmp_path / "on slurm")
    local.snakemake("-c2", "--config", f"study={study}", "--", "losses")
    workflow = Workflow(remote.folder, cluster.env)
    printed = workflow.run("--config", f"study={study}", "--", "losses", timeout=580)
    assert losses(remote.folder, study) == losses(local.folder, study) != []
    return workflow, printed


def test_the_micro_study_gives_the_same_losses(cluster, tmp_path):
    workflow, printed = same_losses_on_slurm(cluster, tmp_path, "micro")
    ids = set(re.findall(r"Job \d+ is slurm job (\d+), log: ", printed))
    assert len(ids) == 9  # prepare, four trainings, four evaluations; fetching and the table stay here
    records = [json.loads(path.read_text()) for path in workflow.folder.glob("results/micro/runs/*/*/*/run.json")]
    assert {leg["slurm_job_id"] for record in records for leg in record["legs"]} < ids


@pytest.mark.slow
def test_the_tiny_study_gives_the_same_losses(cluster, tmp_path):
    same_losses_on_slurm(cluster, tmp_path, "tiny")


def snakemake(checkout, *args, path):
    env = {"PATH": path, "SNAKEMAKE_PROFILE": "", "HOME": str(checkout.folder)}
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
    for more in ((), ("--config", "kernels=reference"), ("--profile", "site.yaml")):
        done = snakemake(checkout, "--profile", "slurm", *more, "-n", path=without_slurm)
        assert done.returncode == 0, done.stderr
        counts = dict(re.findall(r"^(\w+) +(\d+)$", done.stdout + done.stderr, re.MULTILINE))
        assert (counts["train"], counts["evaluate"]) == ("246", "246")
        ladder = re.search(
            r"wildcards: run=preln/1600m-d2048-l28/\S+\n(?:.*\n)*?    resources: (.*)", done.stdout + done.stderr
        )
        asked = dict(pair.split("=", 1) for pair in ladder[1].split(", "))
        assert {"gpu": "8", "nodes": "2", "mem_mb": "200000", "runtime": "5760"}.items() <= asked.items()
    assert (asked["slurm_partition"], asked["gpu_model"]) == ("fast", "h100")


def test_the_profile_without_slurm_trains_nothing_here(tmp_path, without_slurm):
    checkout = Checkout(tmp_path / "checkout")
    done = snakemake(checkout, "--profile", "slurm", "--config", "study=micro", path=without_slurm)
    assert done.returncode == 1
    assert "no Slurm on this machine" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert [path.name for path in (checkout.folder / "results").iterdir()] == ["README.md"]

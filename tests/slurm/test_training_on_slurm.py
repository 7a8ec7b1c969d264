"""DepthBench's own training under the plugin, on a real Slurm: saved, requeued, resumed to the bit."""

import json

import torch
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


def steps_taken(workflow):
    metrics = workflow.folder / "run/resume/metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def test_a_training_saved_on_a_signal_and_one_requeued_equal_the_undisturbed(workflow, cluster, prepared, tmp_path):
    model = {"design": "preln", "d_model": 32, "n_layers": 24, "n_heads": 2, "vocab_size": 512}
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

"""One training run per job. The spec is all that retrains; kernels and micro-batch are not in params."""


rule train:
    """Train one model, or go on from its last checkpoint."""
    input:
        untrained_needs_data,
    output:
        weights="<results>/runs/{run}/model.safetensors",
        metrics="<results>/runs/{run}/metrics.jsonl",
        run="<results>/runs/{run}/run.json",
    log:
        "<logs>/train/{run}.log",
    benchmark:
        "<benchmarks>/train/{run}.tsv"
    wildcard_constraints:
        run=(
            f"(?!(?:{'|'.join(IMPORTED)})/)(?:{runs.PATTERN})"
            if IMPORTED
            else runs.PATTERN
        ),
    conda:
        "../../envs/depthbench.yaml"
    threads: request("cpus")
    resources:
        gpu=request("gpu"),
        nodes=request("nodes"),
        mem_mb=request("mem_mb"),
        runtime=request("runtime"),
        micro_batch=request("micro_batch"),
        resumable=1,  # said, since a group has the sum
        kernels=CONFIG.kernels,
    params:
        spec=spec_of,
        data=DATA,
        folder=subpath(output.run, parent=True),
    shell:
        "python -m depthbench.launch --most {resources.gpu} train --spec {params.spec:q} --data {params.data:q} --out {params.folder:q}"
        " --kernels {resources.kernels} --micro-batch {resources.micro_batch} > {log:q} 2>&1"

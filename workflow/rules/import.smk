"""Released checkpoints in place of trainings: the runs that the study names under `imported`."""


rule import_run:
    """Make a run of a released checkpoint."""
    input:
        unimported_needs_checkpoint,
    output:
        weights="<results>/runs/{run}/model.safetensors",
        tokenizer="<results>/runs/{run}/tokenizer.json",
        run="<results>/runs/{run}/run.json",
    log:
        "<logs>/import/{run}.log",
    wildcard_constraints:
        run="|".join(map(re.escape, IMPORTED)) or "(?!)",
    conda:
        "../../envs/depthbench.yaml"
    threads: 1
    resources:
        gpu=one_gpu,
        mem_mb=32000,
        runtime=60,
        resumable=0,
    params:
        spec=spec_of,
        data=DATA,
        folder=subpath(output.run, parent=True),
    shell:
        "python -m depthbench import --spec {params.spec:q} --out {params.folder:q} --data {params.data:q}"
        " > {log:q} 2>&1"

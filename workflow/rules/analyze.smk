"""What each layer of a trained model does."""


rule analyze:
    """Layer analyses of one run, those that are asked for."""
    input:
        data_unless_made(ANALYZED),
        run="<results>/runs/{run}/run.json",
    output:
        expand("<results>/runs/{{run}}/{name}", name=ANALYZED),
    log:
        "<logs>/analyze/{run}.log",
    benchmark:
        "<benchmarks>/analyze/{run}.tsv"
    conda:
        "../../envs/depthbench.yaml"
    threads: 1
    resources:
        gpu=one_gpu,
        mem_mb=16000,
        runtime=240,
        resumable=0,
        kernels=CONFIG.kernels,
    params:
        version=runs.VERSION["analyze"],
        spec=analysis_spec_of,
        folder=subpath(input.run, parent=True),
    shell:
        "python -m depthbench analyze {params.folder:q} --spec {params.spec:q} --kernels {resources.kernels}"
        " > {log:q} 2>&1"

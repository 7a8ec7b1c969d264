"""Whether every case of the study runs, before anything is submitted. Not part of `all`."""


rule preflight:
    """Two steps of every design at every shape of the study, two blocks deep: time and memory of each case."""
    output:
        "<results>/preflight.csv",
    log:
        "<logs>/preflight.log",
    conda:
        "../../envs/depthbench.yaml"
    threads: 1
    resources:
        gpu=one_gpu_if_any(),
        mem_mb=16000,
        runtime=240,
        resumable=0,
        kernels=CONFIG.kernels,
    params:
        spec=runs.dumps(preflight.spec(CONFIG).as_dict()),
    shell:
        "python -m depthbench preflight --spec {params.spec:q} --out {output:q} --kernels {resources.kernels}"
        " > {log:q} 2>&1"

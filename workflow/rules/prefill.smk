"""What a prompt costs at the shapes of the study; needs no training."""


rule prefill:
    """Time and peak memory of a prefill of Pre-LN, HC and Full AttnRes at the shapes of the suite main."""
    output:
        "<results>/prefill.csv",
    log:
        "<logs>/prefill.log",
    benchmark:
        "<benchmarks>/prefill.tsv"
    conda:
        "../../envs/depthbench.yaml"
    threads: 1
    resources:
        gpu=one_gpu_if_any(),
        mem_mb=16000,
        runtime=60,
        resumable=0,
        kernels=CONFIG.kernels,
    params:
        version=runs.VERSION["prefill"],
        spec=prefill_spec(),
    shell:
        "python -m depthbench prefill --spec {params.spec:q} --out {output:q} --kernels {resources.kernels}"
        " > {log:q} 2>&1"

"""What each trained model can do."""


rule evaluate:
    """Held-out loss of one run, and its scores on tasks where they are asked for."""
    input:
        data_unless_made(MEASURED),
        run="<results>/runs/{run}/run.json",
    output:
        expand("<results>/runs/{{run}}/{name}", name=MEASURED),
    log:
        "<logs>/evaluate/{run}.log",
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
        version=runs.VERSION["evaluate"],
        spec=evaluation_spec_of,
        folder=subpath(input.run, parent=True),
    shell:
        "python -m depthbench evaluate {params.folder:q} --spec {params.spec:q} --kernels {resources.kernels}"
        " > {log:q} 2>&1"


rule controls:
    """The runs of the control suites, which `all` leaves out."""
    input:
        control_files(),

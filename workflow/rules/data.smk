"""Text to token shards. `prepare` replaces its whole folder, so its inputs and logs stand outside."""


rule fetch:
    """Fetch the pinned source files of the corpus and check their hashes."""
    output:
        SOURCES,
    log:
        f"results/data/logs/fetch-{CORPUS}.log",
    localrule: True
    conda:
        "../../envs/depthbench.yaml"
    params:
        spec=runs.dumps(runs.data_spec(CONFIG).as_dict()),
    shell:
        "python -m depthbench fetch --spec {params.spec:q} --out {output:q} > {log:q} 2>&1"


rule prepare:
    """Split, tokenize and pack the corpus."""
    input:
        SOURCES,
    output:
        f"{DATA}/manifest.json",
    log:
        f"results/data/logs/prepare-{CORPUS}.log",
    conda:
        "../../envs/depthbench.yaml"
    threads: 2
    params:
        spec=runs.dumps(runs.data_spec(CONFIG).as_dict()),
        folder=subpath(output[0], parent=True),
    shell:
        "python -m depthbench prepare --spec {params.spec:q} --out {params.folder:q} > {log:q} 2>&1"

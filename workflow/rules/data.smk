"""Text to token shards: in one job, or of a hub corpus in one job for each parquet file and one that joins.

`prepare` replaces what it has made as a whole, so its inputs (the parts of a hub corpus aside) and logs stand outside.
"""


rule fetch:
    """Fetch the pinned source files of the corpus and check their hashes; look up those of a hub corpus."""
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


rule fetch_file:
    """Bring one parquet file of a hub corpus into the cache and check it."""
    input:
        SOURCES,
    output:
        f"results/data/sources/{CORPUS}/{{parquet}}.json",
    log:
        f"results/data/logs/fetch-{CORPUS}/{{parquet}}.log",
    localrule: True
    conda:
        "../../envs/depthbench.yaml"
    params:
        spec=part_spec_of,
    shell:
        "python -m depthbench fetch-file --spec {params.spec:q} --sources {input:q} --out {output:q} > {log:q} 2>&1"


rule prepare_file:
    """Tokenize one parquet file of a hub corpus."""
    input:
        f"results/data/sources/{CORPUS}/{{parquet}}.json",
    output:
        f"{DATA}/parts/{{parquet}}.json",
    log:
        f"results/data/logs/prepare-{CORPUS}/{{parquet}}.log",
    conda:
        "../../envs/depthbench.yaml"
    threads: 2
    resources:
        gpu=0,
        mem_mb=16000,
        runtime=240,
        resumable=0,
    params:
        spec=part_spec_of,
    shell:
        "python -m depthbench prepare-file --spec {params.spec:q} --fetched {input:q} --out {output:q} > {log:q} 2>&1"


rule prepare:
    """Split, tokenize and pack the corpus; join the parts of a hub corpus."""
    input:
        SOURCES,
        expand(f"{DATA}/parts/{{parquet}}.json", parquet=PARQUET),
    output:
        f"{DATA}/manifest.json",
    log:
        f"results/data/logs/prepare-{CORPUS}.log",
    conda:
        "../../envs/depthbench.yaml"
    threads: 2
    resources:
        gpu=0,
        mem_mb=16000,
        runtime=240,
        resumable=0,
    params:
        spec=runs.dumps(runs.data_spec(CONFIG).as_dict()),
        folder=subpath(output[0], parent=True),
    shell:
        "python -m depthbench prepare --spec {params.spec:q} --out {params.folder:q} > {log:q} 2>&1"

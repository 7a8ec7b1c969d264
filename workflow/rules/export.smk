"""Runs as folders for others. Not part of `all`: ask for results/<study>/export/<run>/config.json."""


rule export:
    """One run as a folder in the style of Hugging Face, with a model card of what it scored."""
    input:
        data_unless_made(EXPORTED, "export"),
        "<results>/runs/{run}/validation.csv",
        "<results>/runs/{run}/nll.csv",
        "<results>/runs/{run}/arc.csv",
        run="<results>/runs/{run}/run.json",
    output:
        expand("<results>/export/{{run}}/{name}", name=EXPORTED),
    log:
        "<logs>/export/{run}.log",
    localrule: True
    conda:
        "../../envs/depthbench.yaml"
    params:
        run=subpath(input.run, parent=True),
        folder=subpath(output[0], parent=True),
    shell:
        "python -m depthbench export {params.run:q} --out {params.folder:q} > {log:q} 2>&1"

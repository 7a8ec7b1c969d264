"""Every table: name -> (what it shows, the run files it reads, the runs it needs)."""

TABLES = {
    "losses": (
        "Held-out loss of every run [nats/token], with 95 % intervals over documents: evaluation noise, not training noise.",
        ["run.json", "validation.csv", "validation_docs.parquet"],
        [Pick(suite) for suite in STUDY.suites],
    ),
}

for name, (text, _, _) in TABLES.items():

    rule:
        """One table."""
        name:
            name
        input:
            runs=artifact_input(TABLES, name),
            code=f"src/depthbench/tables/{name}.py",
        output:
            csv=report(
                f"<results>/tables/{name}.csv",
                caption="../report/artifact.rst",
                category="Tables",
                labels={"table": name},
            ),
            tex=f"<results>/tables/{name}.tex",
        log:
            f"<logs>/tables/{name}.log",
        localrule: True
        conda:
            "../../envs/depthbench.yaml"
        params:
            spec=artifact_spec(TABLES, "table", name),
            missing=artifact_missing(TABLES, name),
            text=text,
        shell:
            "python -m depthbench table {input.runs:q} --spec {params.spec:q} --out {output.csv:q} > {log:q} 2>&1"

    # A docstring is read as written (an f-string breaks under Python 3.12), so the registry's text is put in here.
    workflow.get_rule(name).docstring = text

"""Every table: name -> (what it shows, the run files it reads, the runs it needs)."""

# The sweep is audited against the noise of the seeds; seeds alone are no sweep.
SWEPT = [Pick("sweep"), Pick("seeds")] if "sweep" in STUDY.suites else [Pick("sweep")]
SHAPES = [Pick(suite) for suite in ("main", "backbone", "ladder", "large", "seeds")]

# What a table reads besides the files of runs.
READS = {
    "designs": [
        f"src/depthbench/residuals/{residual}.py"
        for residual in sorted({d.residual or n for n, d in CONFIG.designs.items()})
    ],
    "losses": ["src/depthbench/tables/_tasks.py", "src/depthbench/reference.py"],
    "moda_norms": ["src/depthbench/tables/losses.py", "src/depthbench/reference.py"],
    "learning_rates": [
        "src/depthbench/tables/lr_audit.py",
        "src/depthbench/reference.py",
    ],
    "claims": [
        "src/depthbench/reference.py",
        *(
            f"src/depthbench/tables/{name}.py"
            for name in (
                *("_claim_runs", "_claim_losses", "_claim_layers", "_claim_costs"),
                *("depth_trend", "seed_noise", "_measured"),
            )
        ),
    ],
}

TABLES = {
    "designs": (
        "Table 1: update rule, readout, source and declared learning rate of each design. F: attention or FFN, norm: RMSNorm, k: sub-layer, l: block, x0: embedding, h or H: state, f: output of F; the norm of the head reads the readout.",
        [],
        [Pick(suite) for suite in STUDY.suites],
    ),
    "suites": (
        "Table 2: designs, shapes, what they have in common, steps, tokens of a run and learning rates of each suite.",
        [],
        [Pick(suite) for suite in STUDY.suites],
    ),
    "shapes_main": (
        "Table 3: shapes of the main suite and their sizes [parameters, without norm gains], compared with (24, 1024) or the middle one; true total: Pre-LN with its gains.",
        [],
        [Pick("main")],
    ),
    "shapes_backbone": (
        "Table 7: shapes of the iso-backbone suite and their sizes [parameters, without norm gains], compared with (24, 1024) or the middle one.",
        [],
        [Pick("backbone")],
    ),
    "shapes_ladder": (
        "Table 8: shapes of the scale ladder and their sizes [parameters, without norm gains], compared with the middle one of each scale.",
        [],
        [Pick("ladder")],
    ),
    "shapes_large": (
        "Table 9: shapes of the large suite and their sizes [parameters, without norm gains], compared with the shallowest.",
        [],
        [Pick("large")],
    ),
    "parameters": (
        "Table 6: true size of each design at each shape [parameters], matrices alone as in the tables of shapes, what the design adds to Pre-LN of the same shape, and the difference from the budget: Pre-LN at the suite's reference shape, in the suite backbone without embeddings.",
        [],
        [Pick(suite) for suite in STUDY.suites],
    ),
    "learning_rates": (
        "Table 4: declared learning rate of each design and scale, and the best of the sweep where there is one (one seed); a best rate at the edge of its grid is no optimum.",
        ["validation.csv", *PUBLISHED],
        [Pick("sweep"), *(Pick(suite, files=False) for suite in STUDY.suites)],
    ),
    "losses": (
        "Held-out loss of every run [nats/token], with 95 % intervals over documents: evaluation noise, not training noise; runs of the main suite also by task: nll of the right answers [nats/token], accuracy on ARC-Easy. Published: arXiv 2609.32534, its text before its authors' project page; the difference is that of loss_upstream, which follows their rule.",
        ["run.json", "validation.csv", "validation_docs.parquet", "nll.csv", "arc.csv"]
        + PUBLISHED,
        [Pick(suite) for suite in STUDY.suites],
    ),
    "moda_norms": (
        "Table 5: held-out loss of MoDA with Pre-LN and with Post-LN [nats/token] by learning rate, one seed, with 95 % intervals over documents: evaluation noise, not training noise.",
        ["validation.csv", "validation_docs.parquet", *PUBLISHED],
        [Pick("moda_norms"), Pick("main", ("moda",), like="moda_norms")],
    ),
    "lr_audit": (
        "Is the declared learning rate the best of the sweep? Held-out loss [nats/token], one seed; the margin to the second best against the difference that one seed can resolve.",
        ["validation.csv"],
        SWEPT,
    ),
    "seed_noise": (
        "Standard deviation of the held-out loss [nats/token] over seeds, pooled over the cells of a scale, and the smallest significant difference of two means (5 %, two-sided t).",
        ["validation.csv"],
        [Pick("seeds")],
    ),
    "depth_trend": (
        "Slope of the held-out loss [nats/token per doubling of depth] at equal size, seed by seed, with 95 % intervals over documents: evaluation noise, not training noise. Designs that add parameters to Pre-LN: overhead_pct of the table losses.",
        ["validation.csv", "validation_docs.parquet"],
        SHAPES,
    ),
    "paired": (
        "Differences of held-out loss [nats/token] on the same documents, seed by seed, with 95 % intervals over documents: evaluation noise, not training noise. Designs that add parameters to Pre-LN: overhead_pct of the table losses.",
        ["validation.csv", "validation_docs.parquet"],
        SHAPES,
    ),
    "late_layers": (
        "Share of pairs of late layers (the last three quarters) whose causal score is above 0.45 or whose permutation score is above 0.15, with 95 % intervals over documents: evaluation noise, not training noise.",
        ["analysis/causal_summary.csv", "analysis/permutation_summary.csv"],
        [Pick("main")],
    ),
    "claims": (
        "What the paper (arXiv 2609.32534) claims against our 95 % intervals over documents; those of losses hold the noise of training too, where the study repeats seeds: agrees, disagrees, undecided, or not run where the study lacks the shape; and where the paper contradicts itself.",
        [
            *("validation.csv", "validation_docs.parquet"),
            *("analysis/causal_summary.csv", "analysis/permutation_summary.csv"),
            *("analysis/block_mix_summary.csv", "analysis/transport.csv"),
            "claims.csv",
        ],
        [*SHAPES, Pick("moda_norms")],
    ),
    "contamination": (
        "Items of the evaluation tasks that share 13 words in a row with a training document.",
        ["manifest.json"],
        [],
    ),
    "run_costs": (
        "What each training took: tokens per second and step time [s] (medians), total time [s], peak memory [bytes], FLOPs of the model (three forward passes), their speed, and its share of the device's bfloat16 peak (MFU) where that is known; machine.",
        ["run.json", "metrics.jsonl"],
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
            data=artifact_data(TABLES, name),
            code=[f"src/depthbench/tables/{name}.py", *READS.get(name, [])],
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
            spec=spec_of_artifact(TABLES, "table", name),
            missing=artifact_missing(TABLES, name),
            text=text,
        shell:
            "python -m depthbench table {input.data:q} --results results --spec {params.spec:q} --out {output.csv:q}"
            " > {log:q} 2>&1"

    # A docstring is read as written (an f-string breaks under Python 3.12), so the registry's text is put in here.
    workflow.get_rule(name).docstring = text


rule tables:
    """Every table of the study."""
    input:
        artifact_files(TABLES, "tables", TABLE_TYPES),

"""Every figure: name -> (what it shows, the run files it reads, the runs it needs)."""

# What a figure is made of besides its own file and the theme.
SHARED = {
    "validation_loss": ["figures/_aspect", "reference"],
    "scale_ladder": ["figures/_aspect", "figures/validation_loss"],
    "domain_nll": ["figures/_aspect", "tables/_tasks", "reference"],
}

# Three designs in the suites whose shapes have one total size; without any, the published models are shown alone.
SIZED = [
    pick
    for suite in ("main", "ladder", "large")
    for pick in [Pick(suite, ("preln", "hc", "attnres_full"))]
    if select(CONFIG, [pick])
]

FIGURES = {
    "validation_loss": (
        "Held-out loss [nats/token] over the aspect ratio (width / depth) of models of equal size, with and without"
        " their embeddings; one seed. Bars are 95 % intervals over documents: evaluation noise, not training noise."
        " Paper (arXiv 2609.32534): Fig. 1 left, 2.",
        [
            "run.json",
            "validation.csv",
            "validation_docs.parquet",
            *PUBLISHED,
            *OWN_LOSSES,
        ],
        [Pick("main"), Pick("backbone")],
    ),
    "industry_shapes": (
        "Fig. 1 right: parameters and aspect ratio (width / depth) of published Pre-LN models, and the aspect ratios that our own runs prefer at each budget: the lowest held-out loss, and what a 95 % interval over documents cannot tell from it; one seed.",
        [
            *("run.json", "validation.csv", "validation_docs.parquet"),
            "industry_shapes.csv",
        ],
        SIZED,
    ),
    "scale_ladder": (
        "Fig. 3: held-out loss [nats/token] over the aspect ratio (width / depth) at each budget of the ladder, and at the large one; one seed. Bars are 95 % intervals over documents: evaluation noise, not training noise.",
        ["run.json", "validation.csv", "validation_docs.parquet"],
        [Pick("ladder"), Pick("large")],
    ),
    "domain_nll": (
        "Fig. 4: nll of the right answers [nats/token] of coding, STEM and math tasks, each the mean of two, over the aspect ratio (width / depth); one seed; a heading or note names a task that is left out. Bars are 95 % intervals over items: evaluation noise, not training noise.",
        ["nll.csv", "nll_items.parquet", *PUBLISHED],
        [Pick("main", scored=True)],
    ),
    "lr_sweep": (
        "Fig. 12: held-out loss [nats/token] over the peak learning rate, a line per shape, one seed; ring: best rate, square: best at the edge of its grid, dotted: declared rate; bars are 95 % intervals over documents: evaluation noise, not training noise.",
        ["validation.csv", "validation_docs.parquet"],
        [Pick("sweep")],
    ),
}

for name, (text, _, _) in FIGURES.items():

    rule:
        """One figure."""
        name:
            name
        input:
            runs=artifact_input(FIGURES, name),
            data=artifact_data(FIGURES, name),
            code=[
                f"src/depthbench/{m}.py"
                for m in (f"figures/{name}", "figures/_theme", *SHARED.get(name, []))
            ],
        output:
            svg=report(
                f"<results>/figures/{name}.svg",
                caption="../report/artifact.rst",
                category="Figures",
                labels={"figure": name},
            ),
            pdf=f"<results>/figures/{name}.pdf",
            png=f"<results>/figures/{name}.png",
            csv=f"<results>/figures/{name}.csv",
        log:
            f"<logs>/figures/{name}.log",
        localrule: True
        conda:
            "../../envs/depthbench.yaml"
        params:
            spec=spec_of_artifact(FIGURES, "figure", name),
            missing=artifact_missing(FIGURES, name),
            text=text,
        shell:
            "python -m depthbench figure {input.runs:q} {input.data:q} --spec {params.spec:q} --out {output.svg:q} > {log:q} 2>&1"

    # A docstring is read as written (an f-string breaks under Python 3.12), so the registry's text is put in here.
    workflow.get_rule(name).docstring = text


rule figures:
    """Every figure of the study."""
    input:
        artifact_files(FIGURES, "figures", FIGURE_TYPES),

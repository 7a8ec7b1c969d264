"""Every figure: name -> (what it shows, the run files it reads, the runs it needs)."""

# Layer analyses compare designs at one depth, and show each at three; three designs stand for the paper's.
ONE, THREE = (STUDY.depths.one,), tuple(STUDY.depths.three)
STAND_FOR = (
    *("preln", "attnres_full", "hc"),
    *(name for name in CONFIG.designs if name not in ORDER),
)
COMPARED = tuple(runs.compared(CONFIG))
STREAMS = tuple(n for n, d in CONFIG.designs.items() if d.family == "multi-stream")
BLOCKS = tuple(
    n for n, d in CONFIG.designs.items() if (d.residual or n) == "attnres_block"
)

# What a figure is made of besides its own file and the theme.
MAPS = ["figures/_layers", "figures/_aspect", "figures/_maps"]
CURVES = [*MAPS, "figures/_curves"]
SHARED = {
    "validation_loss": ["figures/_aspect", "reference"],
    "industry_shapes": ["reference", "tables/losses", "tables/_measured"],
    "scale_ladder": ["figures/_aspect", "figures/validation_loss", "reference"],
    "domain_nll": [
        *("figures/_aspect", "figures/validation_loss", "reference"),
        *("tables/_tasks", "tables/parameters"),
    ],
    "angular_distance": MAPS,
    "causal_maps": MAPS,
    "permutation_maps": MAPS,
    "pathways": MAPS,
    "lr_effect": MAPS,
    "layer_pruning": CURVES,
    "logit_lens": CURVES,
    "block_mixing": [*MAPS, "reference"],
    "stream_transport": [*CURVES, "reference"],
    "layer_perturbation": [
        *(*CURVES, "tables/late_layers", "reference"),
        *("figures/causal_maps", "figures/permutation_maps"),
    ],
    "prefill_cost": ["figures/_aspect", "reference"],
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
        ["run.json", "validation.csv", "validation_docs.parquet", *PUBLISHED],
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
    "angular_distance": (
        "Fig. 5, 16: angular distance between the states in front of layers l and l + n, mean over tokens and documents; (a) designs at one depth and one learning rate, (b) each design at three depths at its own rate; one seed. 0.5 is a right angle.",
        ["analysis/angular.csv"],
        [
            Pick("main", depths=THREE),
            Pick("main", COMPARED, depths=ONE, lr=STUDY.common_lr),
            Pick("sweep", COMPARED, depths=ONE, lr=STUDY.common_lr),
        ],
    ),
    "layer_perturbation": (
        "Fig. 6: share of pairs of late layers whose causal score is above 0.45 or whose permutation score is above 0.15, over the aspect ratio (width / depth) and, at one depth, over all thresholds; maps of the scores of three designs; one seed. Bars are 95 % intervals over documents.",
        [
            *("analysis/causal.csv", "analysis/causal_summary.csv"),
            *("analysis/permutation.csv", "analysis/permutation_summary.csv"),
            *PUBLISHED,
        ],
        [Pick("main")],
    ),
    "causal_maps": (
        "Fig. 14: causal score of each pair of layers, how much of the update of a later layer changes when an earlier one is skipped, for each design at three depths; one seed.",
        ["analysis/causal.csv"],
        [Pick("main", depths=THREE)],
    ),
    "permutation_maps": (
        "Fig. 15: permutation score of each pair of layers, how much of the loss changes when the two are exchanged, for each design at three depths; one seed.",
        ["analysis/permutation.csv"],
        [Pick("main", depths=THREE)],
    ),
    "pathways": (
        "Fig. 7: weight of each earlier sub-layer and of the embedding in the input of each sub-layer, mean over tokens, for three designs at one depth; one seed.",
        ["analysis/pathway.csv"],
        [Pick("main", STAND_FOR, depths=ONE)],
    ),
    "layer_pruning": (
        "Fig. 8 left: accuracy on ARC-Easy (normalised by length) that a model loses without one of its layers [percentage points], for three designs at one depth; one seed. Bands are 95 % intervals over items.",
        ["analysis/prune.csv"],
        [Pick("main", STAND_FOR, depths=ONE)],
    ),
    "logit_lens": (
        "Fig. 8 right: KL divergence [nats] of what the head predicts from an earlier layer from the model's prediction, for three designs at one depth; one seed. Bands are 95 % intervals over documents.",
        ["analysis/logitlens.csv"],
        [Pick("main", STAND_FOR, depths=ONE)],
    ),
    "block_mixing": (
        "Fig. 9: share of the running sum in what each sub-layer of Block AttnRes reads, against earlier blocks and the embedding, at three depths; dashed: borders of blocks; one seed.",
        ["analysis/block_mix.csv", "analysis/block_mix_summary.csv", *PUBLISHED],
        [Pick("main", BLOCKS, depths=THREE)],
    ),
    "stream_transport": (
        "Fig. 10: product of the mixing matrices of hyper-connections: effective rank over the aspect ratio (width / depth), and at one depth the mean absolute cosine between its columns and its singular values over the number of sub-layers; one seed. Bars are 95 % intervals over documents.",
        ["analysis/transport.csv", *PUBLISHED],
        [Pick("main", STREAMS)],
    ),
    "lr_effect": (
        "Fig. 13: angular distance between the states in front of layers l and l + n of models that differ in their learning rate, at one depth; one seed.",
        ["analysis/angular.csv"],
        [Pick("sweep", runs.LR_EFFECT, depths=ONE)],
    ),
    "prefill_cost": (
        "Fig. 11: cost of a prefill over the aspect ratio (width / depth): FLOPs of a sequence [GFLOP or TFLOP], logits of the last position only, with the held-out loss [nats/token] beside them, which the paper draws dashed into the same panel; key/value cache of a sequence [MiB]; peak memory [GiB], all positions at once and in chunks; device-hours of the batch [1e-6 h]. FLOPs and cache are closed forms; one seed.",
        ["prefill.csv", "validation.csv", *PUBLISHED],
        [Pick("main", prefill.DESIGNS)],
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
            "python -m depthbench figure {input.data:q} --results results --spec {params.spec:q} --out {output.svg:q}"
            " > {log:q} 2>&1"

    # A docstring is read as written (an f-string breaks under Python 3.12), so the registry's text is put in here.
    workflow.get_rule(name).docstring = text


rule figures:
    """Every figure of the study."""
    input:
        artifact_files(FIGURES, "figures", FIGURE_TYPES),

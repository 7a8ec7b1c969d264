"""Each figure and table of the paper is a target of its study."""

import re

FIGURES = {
    1: ("validation_loss", "industry_shapes"),
    2: ("validation_loss",),
    3: ("scale_ladder",),
    4: ("domain_nll",),
    5: ("angular_distance",),
    6: ("layer_perturbation",),
    7: ("pathways",),
    8: ("layer_pruning", "logit_lens"),
    9: ("block_mixing",),
    10: ("stream_transport",),
    11: ("prefill_cost",),
    12: ("lr_sweep",),
    13: ("lr_effect",),
    14: ("causal_maps",),
    15: ("permutation_maps",),
    16: ("angular_distance",),
}
TABLES = {
    1: ("designs",),
    2: ("suites",),
    3: ("shapes_main",),
    4: ("learning_rates",),
    5: ("moda_norms",),
    6: ("parameters",),
    7: ("shapes_backbone",),
    8: ("shapes_ladder",),
    9: ("shapes_large",),
}


def test_each_figure_and_table_of_the_paper_is_a_target(checkout):
    """In the registry with its number, and in the plan of everything."""
    listed = checkout.snakemake("--list-rules", "--config", "study=paper")
    texts = dict(re.findall(r"^(\w+) \((.*)\)$", listed, re.MULTILINE))
    jobs, _ = checkout.plan("all", "--config", "study=paper")
    for word, numbered in (("Fig. ", FIGURES), ("Table ", TABLES)):
        for number, names in numbered.items():
            for name in names:
                assert jobs[name] == 1
                assert re.search(rf"{word}[^.:]*\b{number}\b", texts[name]), (name, number)

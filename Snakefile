"""DepthBench: config -> runs -> data -> train -> evaluate, analyze -> tables, figures -> report."""

import os

from snakemake.utils import min_version

min_version("9.27")


# A job on Slurm brings the file as it was: keys that were added since do not reach it.
if "SUBMITIT_FROZEN_CONFIG" not in os.environ:

    configfile: "config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/import.smk"
include: "workflow/rules/preflight.smk"
include: "workflow/rules/prefill.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/analyze.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/export.smk"


rule all:
    """Everything that the study declares: each run's results, every table, every figure."""
    default_target: True
    input:
        run_files(runs.suites(CONFIG)),
        artifact_files(TABLES, "tables", TABLE_TYPES),
        artifact_files(FIGURES, "figures", FIGURE_TYPES),

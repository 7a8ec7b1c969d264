"""What the rules share: the checked configuration, the runs, and the paths."""

import re
from functools import cache
from pathlib import Path
from typing import get_args

from depthbench import config as settings
from depthbench import files, preflight, runs
from depthbench.bench import prefill
from depthbench.designs import ORDER
from depthbench.errors import UserError
from depthbench.picks import Pick, artifact_spec, is_analyzed, select
from depthbench.schema import AnalysisName
from snakemake.io import IOFile

try:
    CONFIG = settings.load(config)
    IMPORTED = {
        run.path: folder for run, folder in sorted(runs.imported(CONFIG).items())
    }
except UserError as error:
    raise SystemExit(str(error))

STUDY = CONFIG.studies[CONFIG.study]
RESULTS = f"results/{CONFIG.study}"
CORPUS = f"{STUDY.corpus}-v{STUDY.tokenizer.vocab_size}"
DATA = f"results/data/{CORPUS}"
SOURCES = f"results/data/sources/{CORPUS}.json"
MEASURED = (
    *("validation.csv", "validation_docs.parquet"),
    *("nll.csv", "nll_items.parquet", "arc.csv", "arc_items.parquet"),
)
ANALYZED = [
    f"analysis/{name}{ending}"
    for name in get_args(AnalysisName)
    for ending in (".csv", "_docs.parquet")
] + [f"analysis/{name}_summary.csv" for name in ("causal", "permutation", "block_mix")]
# Published numbers, in studies of the paper's shapes.
PUBLISHED = ["paper_reported.csv"] if CONFIG.study == "paper" else []
OWN_LOSSES = ["compare.csv"] if STUDY.compare else []
# What artifacts read that belongs to no run.
PLACES = {
    "manifest.json": f"{DATA}/manifest.json",
    "prefill.csv": f"{RESULTS}/prefill.csv",
    "compare.csv": STUDY.compare,
    **{path.name: str(path) for path in Path("workflow/reference").glob("*.csv")},
}
PARQUET = runs.parquet_files(CONFIG.corpora[STUDY.corpus])
FIGURE_TYPES = ("pdf", "svg", "png", "csv")
TABLE_TYPES = ("csv", "tex")
EXPORTED = (
    *("model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    *("README.md", "config.json"),
)


pathvars:
    results=RESULTS,
    logs=f"{RESULTS}/logs",
    benchmarks=f"{RESULTS}/benchmarks",


wildcard_constraints:
    run=runs.PATTERN,
    parquet="|".join(map(re.escape, PARQUET)) or "(?!)",


def part_spec_of(wildcards):
    return runs.dumps(
        runs.part_spec(runs.data_spec(CONFIG), wildcards.parquet).as_dict()
    )


def spec_of(wildcards):
    return runs.dumps(runs.made_by(CONFIG, runs.parse(wildcards.run)).as_dict())


def evaluation_spec_of(wildcards):
    return runs.dumps(runs.evaluation_spec(CONFIG, runs.parse(wildcards.run)).as_dict())


def analysis_spec_of(wildcards):
    return runs.dumps(runs.analysis_spec(CONFIG, runs.parse(wildcards.run)).as_dict())


@cache
def trained(run):
    """Whether run.json holds the present spec. A record of another spec is no finished run."""
    record = runs.record(Path(f"{RESULTS}/runs/{run.path}"))
    return record is not None and runs.made_by(CONFIG, run).matches(record["spec"])


@cache
def analyzed(run):
    """Whether a layer analysis of a run is asked for."""
    return is_analyzed(CONFIG, run)


def refuse_unnoticed(path):
    """Stop where a run of other settings would be taken as it is: of copied results Snakemake knows no params."""
    made = f"{RESULTS}/runs/{path}/run.json"
    if Path(made).exists() and workflow.persistence.metadata(IOFile(made)) is None:
        refuse(
            f"E-RUN {made}: made with other settings, and .snakemake has no record of it (it was copied, or Snakemake"
            " was killed); remove this file to make the run again, or set them back"
        )


def untrained_needs_data(wildcards):
    """The shards, for a run still to be trained: then new shards, or lost ones, retrain nothing.

    `ancient()` cannot say this: it retrains all runs when the shards are gone and one run is missing, and while
    Snakemake plans a job upstream of it, lost outputs and changed params behind it go unseen.
    """
    if trained(runs.parse(wildcards.run)):
        return []
    refuse_unnoticed(wildcards.run)
    return [f"{DATA}/manifest.json"]


def unimported_needs_checkpoint(wildcards):
    """The same for a released checkpoint: once it is imported its folder may go."""
    if trained(runs.parse(wildcards.run)):
        return []
    refuse_unnoticed(wildcards.run)
    folder = IMPORTED[wildcards.run]
    try:
        with files.disk_errors():
            runs.find_checkpoint(Path(folder))
    except UserError as error:
        # Now, since Snakemake removes what there is of a run before its job begins.
        refuse(str(error))
    return [folder, f"{DATA}/manifest.json"]


def data_unless_made(names, kind="runs"):
    """The same for what is measured of a run or exported: the files `names` of it."""

    def shards(wildcards):
        folder = Path(f"{RESULTS}/{kind}/{wildcards.run}")
        made = all((folder / name).exists() for name in names)
        return [] if made else [f"{DATA}/manifest.json"]

    return shards


def missing(picked):
    """The runs that an artifact goes without, by path: with partial=true those that are still to be trained."""
    return [
        run.path
        for run in picked
        if CONFIG.partial and run.path not in IMPORTED and not trained(run)
    ]


def files_of(picked, *names):
    lacking = set(missing(picked))
    return [
        f"{RESULTS}/runs/{run.path}/{name}"
        for run in picked
        if run.path not in lacking
        for name in names
        if not name.startswith("analysis/") or analyzed(run)
    ]


def declared(picks):
    """Whether the study declares something of an artifact; one without picks shows the data."""
    return not picks or bool(select(CONFIG, picks))


def of_runs(names):
    return [name for name in names if name not in PLACES]


def run_files(views):
    """What `all` asks of each run by name: Snakemake does not look for lost files behind a finished artifact."""
    members = runs.union(views)
    return files_of(members, "run.json", *MEASURED, *ANALYZED)


def control_files():
    """The same for the control suites, or one line that says that there are none."""
    views = runs.controls(CONFIG)
    line = f"E-STUDY controls: study {CONFIG.study} declares no control suite"
    return run_files(views) if views else lambda wildcards: refuse(line)


def artifact_files(registry, folder, types):
    """The files of the artifacts of which the study declares something."""
    return [
        f"{RESULTS}/{folder}/{name}.{t}"
        for name, (_, _, picks) in registry.items()
        if declared(picks)
        for t in types
    ]


def artifact_input(registry, name):
    """Files of the runs that an artifact reads, or one line that says why it cannot be made."""
    _, names, picks = registry[name]
    if not declared(picks):
        suites = ", ".join(
            pick.suite
            + (f" of {', '.join(pick.designs)}" if pick.designs else "")
            + ", scored on tasks" * pick.scored
            for pick in picks
        )
        line = f"E-STUDY {name}: study {CONFIG.study} declares none of its runs (suites: {suites})"
        return lambda wildcards: refuse(line)
    return files_of(runs_read(names, picks), *of_runs(names))


def runs_read(names, picks):
    """The runs of which an artifact reads files; of an import there are no metrics."""
    picked = select(CONFIG, [pick for pick in picks if pick.files])
    imports_too = "metrics.jsonl" not in names
    return [run for run in picked if imports_too or run.path not in IMPORTED]


def artifact_data(registry, name):
    """What an artifact reads that is of no run: the manifest of the data, published numbers, losses of the user's own."""
    places = [PLACES[file] for file in registry[name][1] if file in PLACES]
    if STUDY.compare in places and not Path(STUDY.compare).is_file():
        line = f"E-COMPARE {STUDY.compare}: no such file; mend studies.{CONFIG.study}.compare"
        return lambda wildcards: refuse(line)
    return places


def refuse(line):
    raise SystemExit(line)


def spec_of_artifact(registry, kind, name):
    _, names, picks = registry[name]
    lacking = artifact_missing(registry, name)
    return artifact_spec(
        CONFIG,
        kind,
        name,
        names,
        runs_read(names, picks),
        lacking,
        select(CONFIG, picks),
    )


def artifact_missing(registry, name):
    _, names, picks = registry[name]
    return missing(runs_read(names, picks)) if of_runs(names) else []


def request(key):
    """A resource of a training run, by its scale."""
    return lambda wildcards: getattr(
        runs.request(CONFIG, runs.parse(wildcards.run)), key
    )


def one_gpu(wildcards):
    """A GPU for what is done with a model that was trained on some."""
    return min(1, request("gpu")(wildcards))


def prefill_spec():
    """The cases of the rule `prefill`, or one line that says that there are none."""
    found = prefill.spec(CONFIG)
    line = f"E-STUDY prefill: suite main of study {CONFIG.study} has none of {', '.join(prefill.DESIGNS)}"
    return runs.dumps(found.as_dict()) if found else lambda wildcards: refuse(line)


def one_gpu_if_any():
    """A GPU where any run of the study is trained on some."""
    members = runs.union(runs.suites(CONFIG) | runs.controls(CONFIG))
    return min(1, max(runs.request(CONFIG, run).gpu for run in members))

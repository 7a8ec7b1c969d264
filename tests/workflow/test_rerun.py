"""What runs again after the micro study has finished. The order matters: each test leaves the study finished."""

import csv
import json
import os
import shutil

import pyarrow.parquet as pq
import pytest

from depthbench import figures, format_page, formats, tables

MICRO = ("--config", "study=micro")
TYPES = ("pdf", "svg", "png", "csv")
PARTIAL = ("losses", "depth_trend", "paired", "run_costs", "late_layers", "validation_loss", "logit_lens")
PRELN = "preln/u-d16-l4/lr1e-2-s0"


def test_nothing_runs_twice(finished):
    assert "Nothing to be done" in finished.snakemake("-n", *MICRO)


def test_each_run_says_where_it_comes_from(finished):
    runs = sorted((finished.folder / "results/micro/runs").glob("*/*/*"))
    assert len(runs) == 4
    for run in runs:
        record = json.loads((run / "run.json").read_text())
        assert record["run_id"] == str(run.relative_to(finished.folder / "results"))
        assert record["status"] == "ok"
        assert record["step"] == 4
        assert record["legs"][0]["kernels"] == "eager"
        assert record["legs"][0]["threads"] == 1
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == [1, 2, 3, 4]
        log = finished.folder / "results/micro/logs/train" / f"{run.relative_to(run.parents[2])}.log"
        assert f"{record['run_id']}: {record['n_params']:,} parameters" in log.read_text()
        log = finished.folder / "results/micro/logs/evaluate" / f"{run.relative_to(run.parents[2])}.log"
        assert f"{record['run_id']}: host {os.uname().nodename}, " in log.read_text()


def test_files_have_the_columns_of_the_page(finished):
    """docs/results-format.md names what is there, and of what was measured all of it."""
    results = finished.folder / "results/micro"
    for run in (results / "runs").glob("*/*/*"):
        for file in formats.RUN_FILES:
            if file.endswith((".csv", ".parquet", ".jsonl", "run.json")):
                check(run / file, set(format_page.columns(file)))
    (manifest,) = finished.folder.glob("results/data/*/manifest.json")
    for path in (results / "prefill.csv", manifest):
        check(path, set(format_page.columns(path.name)))
    for kind, package in (("tables", tables), ("figures", figures)):
        for name, module in format_page.modules(package):
            if (results / kind / f"{name}.csv").exists():
                check(results / kind / f"{name}.csv", set(module.COLUMNS))
    assert len(list(results.glob("tables/*.csv"))) >= 10


def check(path, told):
    """Compare the columns of a file with those that are told of it; an analysis that was not made has fewer."""
    if path.suffix == ".parquet":
        found, made = set(pq.read_schema(path).names), pq.read_metadata(path).num_rows > 0
        told = told if made else told | {"doc_key", "origin"}
    elif path.suffix == ".csv":
        with path.open() as file:
            rows = csv.DictReader(file)
            found = set(rows.fieldnames)
            made = path.parent.name != "analysis" or next(rows)["status"] != "not_requested"
    else:
        text = path.read_text()
        found, made = set(json.loads(text.splitlines()[0] if path.suffix == ".jsonl" else text)), True
        told = told - {"imported"}
    assert found == told if made else found <= told, path


def test_edits_of_code_and_dates_run_nothing(finished):
    for name in ("Snakefile", "workflow/rules/train.smk", "src/depthbench/train.py", "config.yaml"):
        path = finished.folder / name
        path.write_text(path.read_text() + "# a comment\n")
    finished.edit("workflow/rules/train.smk", "--data {params.data:q}", "--data  {params.data:q}")
    assert "Nothing to be done" in finished.snakemake("-n", *MICRO)
    assert "Nothing to be done" in finished.snakemake(
        "-n", *MICRO, "kernels=reference", "resources={default: {micro_batch: 2}}"
    )


def test_results_without_a_record_are_taken_unless_they_are_of_other_settings(finished):
    """Snakemake compares params with its own record; copied results, or a removed `.snakemake`, have none."""
    record = finished.folder / ".snakemake/metadata"
    record.rename(record.with_name("aside"))
    try:
        assert "Nothing to be done" in finished.snakemake("-n", *MICRO)
        done = finished.call("snakemake", "-n", *MICRO, "scales={u: {steps: 5}}")
    finally:
        shutil.rmtree(record, ignore_errors=True)
        record.with_name("aside").rename(record)
    assert done.returncode == 1
    printed = done.stdout + done.stderr
    assert "/run.json: made with other settings, and .snakemake has no record of it (" in printed
    assert "Traceback" not in printed
    assert finished.plan(*MICRO, "scales={u: {steps: 5}}")[0]["train"] == 4


def test_an_edited_figure_draws_that_figure(finished):
    assert jobs_after_an_edit(finished, "figures/validation_loss.py") == {"validation_loss": 1, "all": 1}


def test_a_changed_colour_draws_figures_alone(finished):
    """And all of them."""
    path = finished.folder / "src/depthbench/figures/_theme.py"
    before, stat = path.read_text(), path.stat()
    finished.edit("src/depthbench/figures/_theme.py", "#d95f02", "#d95f03")
    jobs, _ = finished.plan(*MICRO)
    path.write_text(before)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    drawn = {path.stem for path in (finished.folder / "results/micro/figures").glob("*.csv")}
    assert jobs == dict.fromkeys({*drawn, "all"}, 1)


def test_an_added_design_plans_its_own_runs_and_the_artifacts(finished):
    added = "designs={denseformer: {label: DenseFormer, family: cross-layer, lr: 1e-2}}"
    main = "main: {scale: u, designs: [preln, attnres_full, denseformer], shapes: [[2, 16], [4, 16]]}"
    jobs, runs = finished.plan(*MICRO, added, f"studies={{micro: {{suites: {{{main}}}}}}}")
    assert runs == ["denseformer/u-d16-l2/lr1e-2-s0", "denseformer/u-d16-l4/lr1e-2-s0"]
    assert (jobs["train"], jobs["evaluate"], jobs["analyze"]) == (2, 2, 2)
    assert not {"fetch", "prepare"} & set(jobs)
    assert {"losses", "claims", "run_costs", "validation_loss"} <= set(jobs)


@pytest.mark.slow
def test_losses_to_compare_redraw_their_figure_alone(finished):
    mine = finished.folder / "mine.csv"
    mine.write_text("label,n_layers,d_model,loss\nMy design,4,16,6.0\n")
    asked = (*MICRO, "studies={micro: {compare: mine.csv}}")
    assert finished.plan(*asked)[0] == {"validation_loss": 1, "all": 1}
    finished.snakemake("-c2", *asked, "--", "validation_loss")
    drawn = (finished.folder / "results/micro/figures/validation_loss.csv").read_text()
    assert ",My design,4,16," in drawn
    mine.write_text("label,n_layers,d_model,loss\nMy design,4,16,low\n")
    done = finished.call("snakemake", "-c2", *asked, "--", "validation_loss")
    assert done.returncode == 1
    log = (finished.folder / "results/micro/logs/figures/validation_loss.log").read_text()
    assert log.startswith("E-COMPARE mine.csv: line 2: loss: ")
    assert log.count("\n") == 1
    finished.snakemake("-c2", *MICRO)
    assert "My design" not in (finished.folder / "results/micro/figures/validation_loss.csv").read_text()


def test_an_edited_design_is_described_again_and_trains_nothing(finished):
    assert jobs_after_an_edit(finished, "residuals/preln.py") == {"designs": 1, "all": 1}


def jobs_after_an_edit(finished, name):
    path = finished.folder / "src/depthbench" / name
    before, stat = path.read_text(), path.stat()
    path.write_text(before + "# edited\n")
    jobs, _ = finished.plan(*MICRO)
    path.write_text(before)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return jobs


def test_a_changed_rate_trains_its_runs(finished):
    _, runs = finished.plan(*MICRO, "scales={u: {lr: {attnres_full: 5e-3, default: 1e-2}}}")
    assert runs == ["attnres_full/u-d16-l2/lr5e-3-s0", "attnres_full/u-d16-l4/lr5e-3-s0"]
    _, runs = finished.plan(*MICRO, "recipes={default: {optimizer: {weight_decay: 0.2}}}")
    assert len(runs) == 4


def test_resamples_redraw_and_measure_nothing(finished):
    jobs, _ = finished.plan(*MICRO, "studies={micro: {bootstrap: 30}}")
    assert {"losses", "paired", "depth_trend", "validation_loss"} <= set(jobs)
    assert not {"prepare", "train", "evaluate"} & set(jobs)


@pytest.mark.slow
def test_a_changed_template_scores_again_and_trains_nothing(finished):
    target = f"results/micro/runs/{PRELN}/nll.csv"
    asked = "studies={micro: {evaluate: {tasks: [sciq], limit: 2}}}"
    jobs, runs = finished.plan(*MICRO, asked)
    assert (jobs["evaluate"], jobs["domain_nll"], runs) == (4, 1, [])
    assert not {"train", "prepare"} & set(jobs)
    finished.snakemake("-c2", *MICRO, asked, "--", target)
    row = next(csv.DictReader((finished.folder / target).open()))
    assert (row["task"], row["status"], row["n_items"]) == ("sciq", "ok", "2")
    assert "Nothing to be done" in finished.snakemake("-n", *MICRO, asked, "--", target)
    jobs, _ = finished.plan(*MICRO, asked, "tasks={sciq: {context: 'Q: {question}'}}", "--", target)
    assert jobs == {"evaluate": 1}
    other = finished.plan(*MICRO, asked, "tasks={gsm8k: {context: 'Q: {question}'}}", "--", target)
    assert other == ({}, [])
    finished.snakemake("-c2", *MICRO, "--", target)
    assert next(csv.DictReader((finished.folder / target).open()))["status"] == "not_requested"
    finished.snakemake("-c2", "--touch", *MICRO)  # what would be drawn again is what is there


def test_lost_data_trains_nothing(finished):
    data = finished.folder / "results/data"
    data.rename(data.with_name("gone"))
    assert "Nothing to be done" in finished.snakemake("-n", *MICRO)
    table = finished.folder / "results/micro/tables/contamination.csv"
    table.rename(table.with_suffix(".aside"))
    jobs, _ = finished.plan(*MICRO)  # the manifest is this table's only source
    assert jobs == {"fetch": 1, "prepare": 1, "contamination": 1, "all": 1}
    table.with_suffix(".aside").rename(table)
    data.with_name("gone").rename(data)


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"spec"'])
def test_a_record_that_cannot_be_read_is_no_finished_run(finished, content):
    record = finished.folder / "results/micro/runs" / PRELN / "run.json"
    before, stat = record.read_text(), record.stat()
    record.write_text(content)
    finished.plan(*MICRO)  # plans, without a traceback
    assert finished.call("depthbench", "status", "--study", "micro").stdout.count(PRELN) == 1
    record.write_text(before)
    os.utime(record, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_a_partial_study_is_drawn_and_names_what_is_missing(finished):
    runs = finished.folder / "results/micro/runs"  # half of them: the runs of one design
    shutil.move(runs / "preln", finished.folder / "aside")
    finished.snakemake("-c2", *MICRO, "partial=true", "--", *PARTIAL)
    table = (finished.folder / "results/micro/tables/losses.csv").read_text()
    assert sum(",missing," in line for line in table.splitlines()) == 2
    trend, pairs = ((finished.folder / f"results/micro/tables/{n}.csv").read_text() for n in ("depth_trend", "paired"))
    assert "preln" in trend
    assert "reference missing" in pairs
    costs = (finished.folder / "results/micro/tables/run_costs.csv").read_text()
    assert sum(",missing," in line for line in costs.splitlines()) == 2
    lens = (finished.folder / "results/micro/figures/logit_lens.csv").read_text()
    assert [line.split(",")[0] for line in lens.splitlines() if ",missing," in line] == ["preln"]
    drawn = (finished.folder / "results/micro/figures/validation_loss.svg").read_text()
    report = finished.call("make", "report", "STUDY=micro", "READY=")
    assert report.returncode == 0, report.stdout + report.stderr
    html = (finished.folder / "results/micro/report.html").read_text()
    assert f"Missing: preln/u-d16-l2/lr1e-2-s0, {PRELN}." in html
    shutil.move(finished.folder / "aside", runs / "preln")
    finished.snakemake("-c2", *MICRO, "--", *PARTIAL)
    assert (finished.folder / "results/micro/figures/validation_loss.svg").read_text() != drawn
    assert ",missing," not in (finished.folder / "results/micro/tables/losses.csv").read_text()


def test_figures_are_the_same_bytes_each_time(finished):
    figures = finished.folder / "results/micro/figures"
    drawn = ("validation_loss", "causal_maps", "industry_shapes")
    before = {f"{name}.{t}": (figures / f"{name}.{t}").read_bytes() for name in drawn for t in TYPES}
    finished.snakemake("-c2", *MICRO, "--forcerun", *drawn, "--", *drawn)
    assert {name: (figures / name).read_bytes() for name in before} == before


def test_a_forced_training_is_published_again_from_what_it_kept(finished):
    run = finished.folder / "results/micro/runs" / PRELN
    before = (run / "run.json").read_bytes()
    finished.snakemake("-c2", "--forcerun", "train", "--until", "train", *MICRO)
    assert (run / "run.json").read_bytes() == before
    log = finished.folder / f"results/micro/logs/train/{PRELN}.log"
    assert "trained before with this spec on this data" in log.read_text()

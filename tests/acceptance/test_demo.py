"""What must hold in a checkout in which `make demo` has run; `make acceptance` runs this."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHELLS = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}


@pytest.fixture(scope="module")
def losses():
    with (ROOT / "results/tiny/tables/losses.csv").open() as file:
        return list(csv.DictReader(file))


def test_every_model_of_the_main_suite_learns(losses):
    main = [row for row in losses if "main" in row["suites"].split(", ")]
    assert len(main) == 30
    for row in main:
        assert float(row["loss"]) < float(row["unigram_entropy"]) - 0.3, row["run_id"]


def test_runs_of_the_main_suite_are_scored_on_tasks(losses):
    """16 items of each of seven tasks; GPQA, which is in no wheel, says why it has none."""
    for row in losses:
        folder = ROOT / "results" / row["run_id"]
        with (folder / "nll.csv").open() as nll, (folder / "arc.csv").open() as arc:
            found = {task["task"]: task for task in csv.DictReader(nll)}
            (accuracy,) = csv.DictReader(arc)
        if "main" not in row["suites"].split(", "):
            assert [task["status"] for task in (*found.values(), accuracy)] == ["not_requested"] * 2
            continue
        gpqa = found.pop("gpqa")
        assert list(found) == ["mbpp", "humaneval", "sciq", "gsm8k", "math500"]
        for task in (*found.values(), accuracy):
            assert (task["status"], task["n_items"], task["limit"]) == ("ok", "16", "16")
        if not os.environ.get("HF_TOKEN"):
            assert (gpqa["status"], gpqa["n_items"], gpqa["nll"]) == ("not_available", "", "")
            assert "HF_TOKEN" in gpqa["reason"]
            assert row["tasks_missing"] == "gpqa not_available"
        assert float(row["nll_math"]) == pytest.approx((float(row["nll_gsm8k"]) + float(row["nll_math500"])) / 2)


def test_each_run_is_in_each_panel_it_belongs_to(losses):
    with (ROOT / "results/tiny/figures/validation_loss.csv").open() as file:
        drawn = {(row["panel"], row["run_id"]) for row in csv.DictReader(file)}
    suites = {row["run_id"]: row["suites"].split(", ") for row in losses if row["seed"] == "0"}
    main = {run for run, names in suites.items() if "main" in names}
    backbone = {run for run, names in suites.items() if "backbone" in names}
    # every design has every main shape: there is no panel of those that have more
    assert drawn == {("common", run) for run in main} | {("backbone", run) for run in backbone}


def test_the_report_holds_figure_and_table_and_needs_no_network():
    html = (ROOT / "results/tiny/report.html").read_text()
    for words in ("validation_loss.svg", "losses.csv", "over the aspect ratio", "Held-out loss of every run"):
        assert words in html
    assert not re.findall(r"""(?:src|href)=["']https?://[^"']+\.(?:js|css)["']""", html)


def test_a_second_demo_runs_no_job():
    done = subprocess.run(["make", "demo"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Nothing to be done" in done.stdout + done.stderr
    assert f"report: {ROOT}/results/tiny/report.html" in done.stdout


def test_each_code_block_of_the_readme_runs():
    """In order; `make` lines that CI runs by themselves are not run twice."""
    in_ci = set(re.search(r"^make (.*)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)[1].split())
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    ran = 0
    for language, text in blocks:
        lines = [x for x in text.splitlines() if not (x.startswith("make ") and set(x.split()[1:]) <= in_ci)]
        if language in SHELLS and any(lines):
            subprocess.run([*SHELLS[language], "\n".join(lines)], cwd=ROOT, env=os.environ, check=True)
            ran += 1
    assert ran >= 3


def test_runs_say_what_made_them():
    records = [json.loads(p.read_text()) for p in (ROOT / "results/tiny/runs").glob("*/*/*/run.json")]
    assert len(records) == 46
    assert {record["legs"][-1]["kernels"] for record in records} == {"eager"}
    assert len({record["data_id"] for record in records}) == 1


def test_layers_of_every_model_of_the_main_suite_are_analysed(losses):
    """On trained models: the last lens is the model's own output, and the ways to leave a block out differ."""
    for row in losses:
        if "main" not in row["suites"].split(", "):
            continue
        folder = ROOT / "results" / row["run_id"] / "analysis"
        tables = {path.stem: list(csv.DictReader(path.open())) for path in folder.glob("*.csv")}
        found = {name: table[0]["status"] for name, table in tables.items()}
        design, n_layers = row["design"], int(row["n_layers"])
        blocks = design == "attnres_block" and n_layers > 4  # of L = 4 a block is one sub-layer
        assert found == {
            **dict.fromkeys(("angular", "causal", "causal_summary", "permutation", "permutation_summary"), "ok"),
            **dict.fromkeys(("prune", "logitlens"), "ok"),
            "pathway": "approximate" if design in ("deepnorm", "keel") else "ok",
            **dict.fromkeys(("block_mix", "block_mix_summary"), "ok" if blocks else "not_applicable"),
            "transport": "ok" if design in ("hc", "mhc") else "not_applicable",
        }
        assert abs(float(tables["logitlens"][-1]["kl"])) <= 1e-5
        modes = {}
        for line in tables["causal"]:
            modes.setdefault(line["skip_mode"], []).append(float(line["score"]))
        assert len(modes["mask"]) == n_layers * (n_layers - 1) // 2
        if design.startswith(("attnres", "moda")):
            assert modes["mask"] != modes["released"]
        else:
            assert list(modes) == ["mask"]

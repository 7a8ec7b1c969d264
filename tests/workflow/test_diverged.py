"""A study with an absurd learning rate: divergence is a result, and nothing fails."""

import csv
import json

import pytest

ASKED = (
    *("losses", "lr_audit", "depth_trend", "claims", "run_costs", "late_layers"),
    *("validation_loss", "lr_sweep", "industry_shapes", "layer_perturbation"),
)


def rows(checkout, name):
    with (checkout.folder / f"results/micro/tables/{name}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_an_absurd_rate_is_shown_and_never_chosen(checkout):
    checkout.edit(
        "config.yaml",
        "  u: {steps: 4, lr: 1e-2}",
        "  u: {steps: 8, lr: {default: 1e-2, attnres_full: 1e11}, grid: {default: [1e-2, 1e11]}}",
    )
    main = "main: {scale: u, designs: [preln, attnres_full], shapes: [[2, 16], [4, 16]]}"
    checkout.edit(
        "config.yaml", main, f"{main}\n      sweep: {{scale: u, designs: [preln], shapes: [[4, 16]], lr: grid}}"
    )
    checkout.snakemake("-c2", "--config", "study=micro", "--", *ASKED)

    run = "attnres_full/u-d16-l4/lr1e11-s0"
    record = json.loads((checkout.folder / f"results/micro/runs/{run}/run.json").read_text())
    assert record["status"] == "diverged"
    assert 1 < record["step"] <= 8
    status = {row["run_id"].removeprefix("micro/runs/"): row for row in rows(checkout, "losses")}
    assert (status[run]["status"], status[run]["loss"]) == ("diverged", "")
    assert status["preln/u-d16-l4/lr1e11-s0"]["status"] == "diverged"
    assert status["preln/u-d16-l4/lr1e-2-s0"]["status"] == "ok"
    (audit,) = rows(checkout, "lr_audit")
    assert (audit["best_lr"], audit["n_diverged"]) == ("1e-2", "1")
    trend = {row["design"]: row for row in rows(checkout, "depth_trend")}
    assert trend["preln"]["slope"] != ""
    assert trend.get("attnres_full", {"slope": ""})["slope"] == ""
    drawn = (checkout.folder / "results/micro/figures/validation_loss.svg").read_text()
    assert "Full AttnRes diverged" in drawn
    assert "Nothing to be done" in checkout.snakemake("-n", "--config", "study=micro", "--", *ASKED)

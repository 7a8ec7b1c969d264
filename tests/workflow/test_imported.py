"""A study some of whose runs are released checkpoints."""

import json

import pandas as pd
import pytest
import torch
from released_folder import filled, small, write
from safetensors.torch import load_file

RUNS = [f"{design}/u-d16-l{depth}/lr1e-2-s0" for design in ("preln", "attnres_full") for depth in (2, 4)]
RUN = RUNS[0]
EXPORT = (f"results/micro/export/{RUN}/config.json", "--config", "study=micro")


def model_of(path):
    design, shape, _ = path.split("/")
    shape = {"n_layers": int(shape.rpartition("l")[2]), "d_model": 16, "n_heads": 1, "n_kv_heads": 1, "d_ff": 48}
    return filled(small(design, vocab_size=512, **shape), bfloat16=False)


def declare(checkout, **imported):
    lines = "".join(f"      {path}: {folder}\n" for path, folder in imported.items())
    micro = "    corpus: stdlib\n    recipe: micro\n"
    checkout.edit("config.yaml", micro, f"{micro}    imported:\n{lines}")


@pytest.fixture(scope="module")
def released(checkout_in, tmp_path_factory):
    """A checkout in which a run of the micro study is a checkpoint: imported, measured, exported."""
    made = checkout_in(tmp_path_factory.mktemp("released") / "checkout")
    write(made.folder / "hub" / "it" / "step4", model_of(RUN))
    declare(made, **{RUN: "hub/it"})
    made.snakemake("-c2", *EXPORT)
    return made


def test_nothing_is_trained(released):
    results = released.folder / "results" / "micro"
    assert not (results / "logs" / "train").exists()
    folder, expected = results / "runs" / RUN, model_of(RUN)
    found = load_file(folder / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.state_dict().items())
    record = json.loads((folder / "run.json").read_text())
    assert (record["status"], record["step"], record["spec"]["lr"]) == ("imported", 4, "1e-2")
    exported = results / "export" / RUN
    config = json.loads((exported / "config.json").read_text())
    assert (config["model_type"], config["depthbench"]["status"]) == ("llama", "imported")
    card = (exported / "README.md").read_text()
    assert "none is declared for the weights" in card
    loss = pd.read_csv(folder / "validation.csv").iloc[0].loss
    assert f"| held-out loss | {loss:.4f} nats/token" in card


def test_other_data_or_steps_ask_for_the_checkpoint_again(released):
    """With its source, and the data of its own."""
    again = {"import_run": 1, "evaluate": 1, "export": 1}
    other = ("corpora={other: {source: stdlib, val_fraction: 0.2}}", "studies={micro: {corpus: other}}")
    for change in (("corpora={stdlib: {val_fraction: 0.1}}",), other):
        assert released.plan(*EXPORT, *change) == ({"fetch": 1, "prepare": 1, **again}, [])
    assert released.plan(*EXPORT, "scales={u: {steps: 5}}") == (again, [])


def test_a_lost_checkpoint_is_told_before_the_run_is_removed(released):
    (released.folder / "hub").rename(released.folder / "elsewhere")
    done = released.call("snakemake", "-c1", *EXPORT, "corpora={stdlib: {val_fraction: 0.1}}")
    (released.folder / "elsewhere").rename(released.folder / "hub")
    assert done.returncode == 1
    assert "E-CKPT hub/it: no such folder; name the folder of a checkpoint" in done.stdout + done.stderr
    assert (released.folder / "results" / "micro" / "runs" / RUN / "model.safetensors").exists()
    assert released.plan(*EXPORT) == ({}, [])


def test_an_import_is_made_once_whatever_becomes_of_its_folder(released):
    (released.folder / "hub").rename(released.folder / "gone")
    (released.folder / "results" / "data").rename(released.folder / "data")
    assert released.plan(*EXPORT) == ({}, [])
    status = released.call("python", "-m", "depthbench", "status", "--study", "micro").stdout
    assert "4 runs: 0 done, 1 imported, 0 diverged, 0 running, 0 stopped, 0 stale, 3 missing" in status
    released.edit("config.yaml", f"      {RUN}: hub/", f"      {RUN}: gone/")
    (released.folder / "data").rename(released.folder / "results" / "data")
    assert released.plan(*EXPORT) == ({"import_run": 1, "evaluate": 1, "export": 1}, [])


def test_other_runs_are_trained(checkout):
    """And of an import no costs are asked for: it has none."""
    declare(checkout, **{RUN: "hub/it"})
    (checkout.folder / "hub" / "it" / "model_and_optim").mkdir(parents=True)
    for name in ("config.json", "model_and_optim/.metadata"):
        (checkout.folder / "hub" / "it" / name).touch()
    jobs, trained = checkout.plan("losses", "run_costs", "--config", "study=micro")
    assert (jobs["import_run"], jobs["train"], trained) == (1, 3, sorted(RUNS[1:]))
    jobs, trained = checkout.plan("losses", "--config", "study=micro", "partial=true")
    assert (jobs["import_run"], jobs["evaluate"], trained) == (1, 1, [])
    plan = checkout.call("python", "-m", "depthbench", "plan", "--study", "micro").stdout
    rows = {words[0]: words[1:3] for words in map(str.split, plan.splitlines()) if words}
    assert rows["main"] == rows["study"] == ["4", "3"]  # runs, and those that are trained


def test_what_cannot_be_imported_is_one_line(checkout):
    declare(checkout, **{"preln/u-d16-l3/lr1e-2-s0": "hub/it"})
    done = checkout.call("snakemake", "-n", "--config", "study=micro")
    assert done.returncode == 1
    line = "E-CONFIG studies.micro.imported: 'preln/u-d16-l3/lr1e-2-s0' is no run of its suites; did you mean preln/u-d"
    assert line in done.stdout + done.stderr
    checkout.edit("config.yaml", "preln/u-d16-l3/", "preln/u-d16-l2/")
    done = checkout.call("snakemake", "-n", "losses", "--config", "study=micro")
    assert done.returncode == 1
    told = (done.stdout + done.stderr).splitlines()
    assert "E-CKPT hub/it: no such folder; name the folder of a checkpoint" in told
    assert not any("Missing input files" in line for line in told)

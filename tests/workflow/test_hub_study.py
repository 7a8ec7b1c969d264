"""A study on a hub corpus, a local folder of the hub's layout. The order matters: each test goes on from the last."""

import json
import os
import shutil
from pydoc_data import topics

import hub_folder
import pytest
import yaml

from depthbench.data.loader import Heldout, Windows

FILES = ["a.parquet", "b.parquet"]
RUN = "results/hubbed/runs/preln/u-d16-l2/lr1e-2-s0/validation.csv"
STUDY = ("--config", "study=hubbed")
PARTS = {"fetch": 1, "fetch_file": 3, "prepare_file": 3, "prepare": 1}


def declare(checkout, **corpora):
    """Add corpora, and for each a copy of the micro study with one of its shapes."""
    path = checkout.folder / "config.yaml"
    raw = yaml.safe_load(path.read_text())
    for name, corpus in corpora.items():
        raw["corpora"] |= {name: corpus} if corpus else {}
        suites = {"main": {"scale": "u", "designs": ["preln"], "shapes": [[2, 16]]}}
        depths = {"one": 2, "three": [2]}
        raw["studies"]["hubbed"] = {**raw["studies"]["micro"], "corpus": name, "suites": suites, "depths": depths}
    path.write_text(yaml.safe_dump(raw, sort_keys=False))


@pytest.fixture(scope="module")
def hubbed(tmp_path_factory, checkout_in):
    made = checkout_in(tmp_path_factory.mktemp("hubbed") / "a checkout")
    texts = [text[:600] for _, text in sorted(topics.topics.items()) if len(text) > 600]
    files = {name: texts[start : start + 10] for name, start in (*zip(FILES, (0, 10), strict=True), ("h.parquet", 20))}
    hub_folder.write(made.folder / "data set", files | {"c.parquet": texts[30:40]})
    declare(made, small=hub_folder.corpus("data set", FILES, val_file="h.parquet", val_tokens=1000))
    return made


def test_every_parquet_file_has_jobs_of_its_own(hubbed):
    assert hubbed.plan(*STUDY, "--", RUN)[0] == {**PARTS, "train": 1, "evaluate": 1}


def test_the_paper_corpus_is_planned_without_network_and_heavy_imports(checkout):
    declare(checkout, fineweb_edu=None)
    (checkout.folder / "refuse").mkdir()
    for name in ("torch", "pandas", "pyarrow", "huggingface_hub"):
        (checkout.folder / "refuse" / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')")
    path = f"{checkout.folder / 'refuse'}:{os.environ.get('PYTHONPATH', '')}"
    done = checkout.call("snakemake", "-n", *STUDY, "--", RUN, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = checkout.plan(*STUDY, "--", RUN)[0]
    assert (jobs["fetch"], jobs["fetch_file"], jobs["prepare_file"], jobs["prepare"]) == (1, 49, 49, 1)


def test_no_other_name_is_a_file_of_the_corpus(hubbed):
    for name in ("c.parquet", "axparquet", "h.parquet/x"):
        done = hubbed.call("snakemake", "-n", *STUDY, "--", f"results/data/small-v512/parts/{name}.json")
        assert done.returncode == 1
        assert "No rule to produce" in done.stdout + done.stderr


def test_an_unreachable_hub_stops_the_workflow_in_one_line(checkout):
    declare(checkout, far=hub_folder.corpus("org/set", FILES))
    done = checkout.call("snakemake", "-c1", *STUDY, "--", RUN, env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 1
    told = (checkout.folder / "results/data/logs/fetch-far-v512.log").read_text()
    assert told.startswith("E-HUB org/set (small): ")
    assert told.count("\n") == 1


def test_a_job_that_failed_is_done_again_alone(hubbed):
    hubbed.snakemake("-c2", *STUDY, "--until", "fetch_file", "--", RUN)
    lost = hubbed.folder / "data set/sample/small/b.parquet"
    shutil.move(lost, hubbed.folder / "aside")
    assert hubbed.call("snakemake", "-c2", "--keep-going", *STUDY, "--", RUN).returncode == 1
    log = (hubbed.folder / "results/data/logs/prepare-small-v512/b.parquet.log").read_text()
    where, told = log.splitlines()
    assert where.startswith("results/data/small-v512/parts/b.parquet.json: host ")
    assert told.startswith("E-HUB data set (small): no file ")
    shutil.move(hubbed.folder / "aside", lost)
    assert hubbed.plan(*STUDY, "--", RUN)[0] == {"prepare_file": 1, "prepare": 1, "train": 1, "evaluate": 1}
    hubbed.snakemake("-c2", *STUDY, "--", RUN)
    assert "Nothing to be done" in hubbed.snakemake("-n", *STUDY, "--", RUN)


def test_the_run_was_trained_and_measured_on_these_texts(hubbed):
    data = hubbed.folder / "results/data/small-v512"
    about = json.loads((data / "manifest.json").read_text())
    record = json.loads((hubbed.folder / RUN).with_name("run.json").read_text())
    assert record["data_id"] == about["data_id"] == Windows(data, 64).data_id
    assert about["splits"]["train"]["n_documents"] == 20
    rows = (hubbed.folder / RUN).read_text().splitlines()
    row = dict(zip(rows[0].split(","), rows[1].split(","), strict=True))
    assert (row["status"], int(row["n_docs"])) == ("ok", Heldout(data, 64).n_documents)
    assert 0 < Heldout(data, 64).n_documents < 10


@pytest.mark.slow
def test_one_more_file_leaves_the_other_parts_as_they_are(hubbed):
    hubbed.snakemake("-c2", *STUDY, "--until", "prepare", "--", RUN)  # where this test is run alone
    shard = hubbed.folder / "results/data/small-v512/parts/a.parquet/train/tokens-00000.bin"
    before = shard.stat()
    corpus = hub_folder.corpus("data set", [*FILES, "c.parquet"], val_file="h.parquet", val_tokens=1000)
    declare(hubbed, small=corpus)
    hubbed.snakemake("-c2", *STUDY, "--until", "prepare", "--", RUN)
    about = json.loads((hubbed.folder / "results/data/small-v512/manifest.json").read_text())
    assert about["splits"]["train"]["n_documents"] == 30
    assert (shard.stat().st_ino, shard.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

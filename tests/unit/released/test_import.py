import json
import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from released_folder import DESIGNS, filled, small, their_config, their_names, write
from safetensors.torch import load_file
from torch.nn import functional as F

import depthbench
from depthbench import evaluate, exchange, files, train
from depthbench.data.loader import Heldout
from depthbench.errors import UserError
from depthbench.model import ModelConfig
from depthbench.readers import COLUMNS, READERS
from depthbench.released import import_checkpoint

READOUT = {"hc": {"hc_readout": "sum_then_norm"}}


def at_512(design, **changes):
    """A model of the tests' tokenizer."""
    return filled(small(design, vocab_size=512, **changes))


@pytest.mark.parametrize("name", [*DESIGNS, "preln_of_two"])
def test_what_olmo_core_has_saved(saved_by_olmo_core, asked, tmp_path, name):
    design = name.removesuffix("_of_two")
    record = import_checkpoint(asked(saved_by_olmo_core / name, **READOUT.get(design, {})), tmp_path)
    expected = filled(small(design))
    assert ModelConfig.read(record["spec"]["model"]) == expected.cfg
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == expected.state_dict().keys()
    for key, tensor in expected.state_dict().items():
        assert found[key].dtype == tensor.dtype, key
        assert torch.equal(found[key], tensor), key


@pytest.mark.parametrize("design", DESIGNS)
def test_an_import_loads_as_a_run(prepared, asked, tmp_path, design):
    model = at_512(design)
    folder = write(tmp_path / "checkpoint", model)
    import_checkpoint(asked(folder, **READOUT.get(design, {})), tmp_path / "run", prepared.folder)
    loaded = depthbench.load(tmp_path / "run")
    tokens = torch.arange(40)[None] * 11 % 512
    with torch.no_grad():
        assert torch.equal(loaded.model(tokens), model.float()(tokens))
    assert loaded.config == model.cfg
    assert (tmp_path / "run" / "tokenizer.json").read_text() == (prepared.folder / "tokenizer.json").read_text()
    assert loaded.tokenizer.token_to_id("<|endoftext|>") == 511


def test_the_record_names_its_sources(asked, tmp_path):
    steps = tmp_path / "preln-pretrain"
    for step in (0, 3000, 7600):
        write(steps / f"step{step}", at_512("preln"))
    (steps / "step9000").mkdir()  # not whole: nothing was downloaded yet
    record = import_checkpoint(asked(steps), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text()) == record
    assert (record["status"], record["step"], record["data"], record["legs"]) == ("imported", 7600, None, [])
    source = steps / "step7600"
    names = ("config.json", "model_and_optim/.metadata", "model_and_optim/__0_0.distcp")
    assert record["imported"]["sha256"] == {name: files.sha256(source / name) for name in names}
    assert record["spec"]["precision"] == {"master": "bfloat16", "compute": "bfloat16"}
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    (row,) = READERS["run.json"](tmp_path / "run" / "run.json").astype(COLUMNS["run.json"]).to_dict("records")
    assert (row["status"], row["step"], row["n_legs"], row["commit"]) == ("imported", 7600, 0, "")
    assert not row["mixed_commit"]
    assert pd.isna(row["tokens"])


@pytest.mark.parametrize(
    ("design", "changed", "note"),
    [
        ("attnres_full", {}, {"queries": "drawn"}),
        ("attnres_block", {"final_res.query": 0.0}, {"queries": "zeros"}),
        ("mhc", {}, {"init": "legacy"}),
        ("mhc", {"blocks.0.attn_mhc.phi": 0.0}, {"init": "default"}),
    ],
)
def test_step_0_tells_how_weights_were_drawn(asked, tmp_path, design, changed, note):
    model = at_512(design)
    for name, value in changed.items():
        torch.nn.init.constant_(model.get_parameter(name), value)
    record = import_checkpoint(asked(write(tmp_path / "step0", model)), tmp_path / "run")
    assert {key: record["imported"].get(key) for key in note} == note


def test_evaluation_writes_into_an_import(prepared, asked, tmp_path):
    """The losses are those of the model itself; `data_id` says of which texts."""
    model = filled(small("keel", vocab_size=512), bfloat16=False)
    folder = write(tmp_path / "checkpoint", model)
    run = tmp_path / "run"
    import_checkpoint(asked(folder), run)
    with pytest.raises(UserError, match=r"E-RUN .*names no prepared data; give some with --data"):
        evaluate.evaluate(run)
    found = evaluate.evaluate(run, prepared.folder)
    assert found.written
    documents = [torch.from_numpy(row.tokens) for row in Heldout(prepared.folder, 2048)]
    with torch.no_grad():
        nll = sum(F.cross_entropy(model(t[None])[0, :-1].double(), t[1:], reduction="sum") for t in documents)
    row = pd.read_csv(run / "validation.csv").iloc[0]
    assert row.loss == pytest.approx(float(nll) / sum(len(t) - 1 for t in documents), rel=1e-5)
    about = json.loads((prepared.folder / "manifest.json").read_text())
    assert (row.status, row.data_id, row.design) == ("ok", about["data_id"], "keel")
    assert math.isnan(row.lr)


def test_an_import_for_some_texts_keeps_its_tables_on_others(prepared, asked, tmp_path):
    run, folder = tmp_path / "run", write(tmp_path / "checkpoint", at_512("preln"))
    import_checkpoint(asked(folder), run, prepared.folder)
    assert evaluate.evaluate(run).written
    before = (run / "validation.csv").read_bytes()
    other = tmp_path / "other"
    other.mkdir()
    for path in prepared.folder.iterdir():
        (other / path.name).symlink_to(path)
    about = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").unlink()
    (other / "manifest.json").write_text(json.dumps({**about, "data_id": "other"}))
    assert not evaluate.evaluate(run, other).written
    assert (run / "validation.csv").read_bytes() == before


@pytest.fixture(scope="module", params=["sum_then_norm", "norm_then_sum"])
def hyper_connections(request, prepared, tmp_path_factory):
    """HC trained with either readout, as its authors would have saved it."""
    folder = tmp_path_factory.mktemp("hc")
    design = {"design": "hc", "hc_readout": request.param, "hc_rms_eps": 1e-8, "init_std": 0.1}
    shape = {"d_model": 16, "n_layers": 2, "n_heads": 2, "vocab_size": 512}
    spec = prepared.spec(model=design | shape, steps=50, lr="2e-2")
    train.train(spec, prepared.folder, folder / "trained", 4, 600.0)
    return request.param, write(folder / "checkpoint", depthbench.load(folder / "trained").model)


def test_the_readout_of_hyper_connections_is_told_by_loss(prepared, asked, hyper_connections, tmp_path):
    trained_with, folder = hyper_connections
    record = import_checkpoint(asked(folder), tmp_path, prepared.folder)
    told = record["imported"]["readout"]
    assert told["chosen"] == record["spec"]["model"]["hc_readout"] == trained_with
    other = max(told["losses"], key=told["losses"].get)
    assert told["losses"][other] - told["losses"][trained_with] >= 0.3
    assert depthbench.load(tmp_path).config.hc_readout == trained_with


def test_a_readout_that_cannot_be_told_is_asked_for(prepared, asked, tmp_path):
    folder = write(tmp_path / "step0", at_512("hc"))
    with pytest.raises(UserError, match=r"E-READOUT .*give --data to tell by loss, or --readout sum_then_norm or"):
        import_checkpoint(asked(folder), tmp_path / "run")
    model = at_512("hc")
    torch.nn.init.zeros_(model.lm_head.weight)  # uniform with either readout
    folder = write(tmp_path / "uniform", model)
    with pytest.raises(UserError, match=r"E-READOUT .*differ by less than 0.3; say --readout sum_then_norm or"):
        import_checkpoint(asked(folder), tmp_path / "run", prepared.folder)
    record = import_checkpoint(asked(folder, hc_readout="norm_then_sum"), tmp_path / "run", prepared.folder)
    assert record["spec"]["model"]["hc_readout"] == "norm_then_sum"
    assert record["imported"]["readout"]["losses"] is None


def test_older_spellings(asked, tmp_path):
    """`attention` for `sequence_mixer`, `default` blocks that name their connections; a depth projection too many."""
    for design in ("hc", "mhc", "attnres_block"):
        config = their_config(small(design))
        block = config["model"]["block"]
        block["attention"], block["name"] = block.pop("sequence_mixer"), "default"
        folder = write(tmp_path / design, filled(small(design)), config=config)
        record = import_checkpoint(asked(folder, **READOUT.get(design, {})), tmp_path / f"{design} run")
        assert ModelConfig.read(record["spec"]["model"]) == small(design)
    model = filled(small("moda"))
    state = their_names(model)
    state["blocks.2.feed_forward.kv_proj.weight"] = torch.ones(8, 8)
    folder = write(tmp_path / "moda", model, state=state)
    import_checkpoint(asked(folder), tmp_path / "moda run")
    assert load_file(tmp_path / "moda run" / "model.safetensors").keys() == model.state_dict().keys()


def test_the_factor_of_lns_may_be_in_the_file(asked, tmp_path):
    model = filled(small("lns"))
    state = their_names(model) | {f"blocks.{l}.ln_scale": torch.tensor((l + 1) ** -0.5) for l in range(3)}
    import_checkpoint(asked(write(tmp_path / "it", model, state=state)), tmp_path / "run")
    assert load_file(tmp_path / "run" / "model.safetensors").keys() == model.state_dict().keys()


def test_another_import_takes_the_measurements_away(prepared, asked, tmp_path):
    """Another readout, other weights, other data; the same import keeps them."""
    run, hc = tmp_path / "run", write(tmp_path / "hc", at_512("hc"))
    measured = [run / "validation.csv", run / "validation_docs.parquet"]

    def made(folder, data=prepared.folder, **model):
        import_checkpoint(asked(folder, **model), run, data)
        return [path.exists() for path in measured]

    made(hc, hc_readout="sum_then_norm")
    evaluate.evaluate(run)
    (run / "analysis").mkdir()
    (run / "analysis" / "angular.csv").write_text("")
    assert made(hc, hc_readout="sum_then_norm") == [True, True]
    assert made(hc, hc_readout="norm_then_sum") == [False, False]
    assert not (run / "analysis" / "angular.csv").exists()
    preln = write(tmp_path / "preln", at_512("preln"))
    evaluate.evaluate(run)
    assert made(preln) == [False, False]
    evaluate.evaluate(run)
    assert (run / "tokenizer.json").exists()
    assert made(preln, None) == [False, False]
    assert not (run / "tokenizer.json").exists()


def test_an_import_that_is_cut_leaves_no_measurements_of_the_one_before(prepared, asked, tmp_path, monkeypatch):
    run = tmp_path / "run"
    import_checkpoint(asked(write(tmp_path / "preln", at_512("preln"))), run, prepared.folder)
    evaluate.evaluate(run)

    def full(*_):
        raise OSError(28, "No space left on device")

    lns = write(tmp_path / "lns", at_512("lns"))
    monkeypatch.setattr("depthbench.checkpoint.save_tensors", full)
    with pytest.raises(UserError, match="E-DISK"):
        import_checkpoint(asked(lns), run, prepared.folder)
    assert {path.name for path in run.iterdir()} == {"model.safetensors", ".lock"}


def test_the_name_of_a_run_that_a_person_imports(asked, tmp_path, monkeypatch):
    folder = write(tmp_path / "checkpoint", at_512("preln"))
    for out, name in ((".", "here"), ("results/released/it", "released/it"), ("results", "results"), ("a/../b", "b")):
        (tmp_path / "here").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "here")
        exchange.import_(Path(out), folder)
        assert json.loads((tmp_path / "here" / out / "run.json").read_text())["run_id"] == name
    spec = asked(folder).model_dump_json()
    with pytest.raises(UserError, match=r"E-SPEC --readout norm_then_sum: --spec says it .*; leave out one of them"):
        exchange.import_(tmp_path / "run", readout="norm_then_sum", spec=spec)

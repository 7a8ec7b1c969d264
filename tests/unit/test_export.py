import json
import shutil

import pytest
import torch
from released_folder import DESIGNS, filled, small, write
from safetensors.torch import load_file

import depthbench
from depthbench import evaluate, export, train
from depthbench.errors import UserError
from depthbench.released import import_checkpoint
from depthbench.specs import ImportSpec


@pytest.fixture(scope="module")
def run(prepared, tmp_path_factory):
    """A trained Pre-LN with grouped heads, and its losses."""
    folder = tmp_path_factory.mktemp("run") / "it"
    model = {"design": "preln", "d_model": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 512}
    train.train(prepared.spec(steps=3, model={**model, "init_std": 0.2}), prepared.folder, folder, 4, 600.0)
    evaluate.evaluate(folder)
    return folder


@pytest.mark.parametrize("design", DESIGNS)
def test_every_design_comes_back_to_the_bit(prepared, tmp_path, design):
    """Both types of weights: bfloat16 with float32 among them, and float32 alone."""
    for kind in (True, False):
        model = filled(small(design, vocab_size=512), kind)
        checkpoint, made = write(tmp_path / f"checkpoint {kind}", model), tmp_path / f"run {kind}"
        asked = {"hc_readout": "norm_then_sum"} if design == "hc" else {}
        spec = ImportSpec(run_id="test", version=1, source=str(checkpoint), model=asked)
        import_checkpoint(spec, made, prepared.folder)
        export.export(made, tmp_path / f"export {kind}")
        before, after = depthbench.load(made), depthbench.load(tmp_path / f"export {kind}")
        assert after.config == before.config
        assert after.record["run_id"] == "test"
        found = after.model.state_dict()
        for name, tensor in model.state_dict().items():
            assert torch.equal(found[name], tensor.float()), name
        stored = load_file(tmp_path / f"export {kind}" / "model.safetensors")
        types = sorted(str(t.dtype) for t in model.state_dict().values())
        assert sorted(str(t.dtype) for t in stored.values()) == types
        assert after.tokenizer.to_str() == before.tokenizer.to_str()


def test_a_trained_run_comes_back(run, tmp_path):
    """Without what says of this machine, and able to be measured on the same texts."""
    export.export(run, tmp_path / "out")
    text = (tmp_path / "out" / "config.json").read_text()
    about = json.loads(text)
    spec = json.loads((run / "run.json").read_text())["spec"]
    spec["data"]["paths"] = ["texts.jsonl"]
    assert about["depthbench"]["spec"] == spec
    record = json.loads((run / "run.json").read_text())
    assert record["legs"][0]["host"] not in text
    assert record["data"] not in text
    back, tokens = depthbench.load(tmp_path / "out"), torch.arange(24)[None]
    with torch.no_grad():
        assert torch.equal(back.model(tokens), depthbench.load(run).model(tokens))


def test_an_export_is_measured_like_its_run(prepared, run, tmp_path):
    export.export(run, tmp_path / "out")
    with pytest.raises(UserError, match=r"E-RUN .*give some with --data"):
        evaluate.evaluate(tmp_path / "out")
    found = evaluate.evaluate(tmp_path / "out", prepared.folder).validation
    assert found.equals(evaluate.evaluate(run).validation)


def test_the_card_tells_recipe_licences_and_losses(prepared, run, tmp_path):
    shutil.copytree(prepared.folder, tmp_path / "data")
    about = json.loads((tmp_path / "data" / "manifest.json").read_text())
    licences = {"wiki": "CC BY-SA 4.0", "news": "CC0-1.0", "leads": "CC BY-SA 4.0"}
    (tmp_path / "data" / "manifest.json").write_text(json.dumps({**about, "licences": licences}))
    export.export(run, tmp_path / "out", tmp_path / "data")
    card = (tmp_path / "out" / "README.md").read_text()
    record, loss = json.loads((run / "run.json").read_text()), evaluate.evaluate(run).validation.iloc[0]
    for words in (
        "| residual design | `preln`: h <- h + F(norm(h)) |",
        f"| parameters | {record['n_params']:,} |",
        "| learning rate, seed | 1e-2, 0 |",
        "| steps, tokens | 3 of 3, 384 |",
        "| AdamW | betas [0.9, 0.95], eps 1e-08, decay 0.1, clip 1.0 |",
        "| schedule | warm-up over 10% of the steps, cosine to 10% of the peak |",
        "| licence of wiki, leads | CC BY-SA 4.0 |",
        "| licence of news | CC0-1.0 |",
        f"| held-out loss | {loss.loss:.4f} nats/token [{loss.loss_lo:.4f}, {loss.loss_hi:.4f}], {loss.n_docs} held",
    ):
        assert words in card
    assert "tags: [depthbench, preln]" in card.split("---")[1]


def test_what_cannot_be_exported(prepared, run, tmp_path):
    with pytest.raises(UserError, match=r"E-RUN .*holds a run; name another folder"):
        export.export(run, run)
    other = shutil.copytree(prepared.folder, tmp_path / "other")
    about = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps({**about, "data_id": "other"}))
    with pytest.raises(UserError, match=r"E-RUN .*belongs to other texts than .*other holds; name those with --data"):
        export.export(run, tmp_path / "out", other)
    lost = shutil.copytree(run, tmp_path / "diverged")
    record = json.loads((lost / "run.json").read_text())
    (lost / "run.json").write_text(json.dumps({**record, "status": "diverged"}))
    with pytest.raises(UserError, match=r"E-RUN .*diverged at step 3; export a run that did not"):
        export.export(lost, tmp_path / "out", prepared.folder)
    assert not (tmp_path / "out").exists()


def test_only_an_export_is_written_over(run, tmp_path):
    for name, text in (
        ("README.md", "mine"),
        ("config.json", '{"model_type": "llama"}'),
        ("config.json", '"depthbench"'),
    ):
        foreign = tmp_path / "foreign"
        foreign.mkdir()
        (foreign / name).write_text(text)
        with pytest.raises(UserError, match=r"E-RUN .*foreign: is not empty and no export; name another folder"):
            export.export(run, foreign)
        assert (foreign / name).read_text() == text
        shutil.rmtree(foreign)
    names = ("validation.csv", "analysis/causal.csv", "analysis/causal_maps.svg")
    measured = [tmp_path / "out" / name for name in names]
    (tmp_path / "out").mkdir()
    export.export(run, tmp_path / "out")
    for path in measured:
        path.parent.mkdir(exist_ok=True)
        path.write_text("of the model before\n")
    export.export(run, tmp_path / "out")
    assert not any(path.exists() for path in measured)
    assert depthbench.load(tmp_path / "out").config.design == "preln"


def test_the_folder_of_a_local_data_set_stays_behind(prepared, run, tmp_path):
    mine = shutil.copytree(run, tmp_path / "mine")
    record = json.loads((mine / "run.json").read_text())
    hub = {"source": "hub", "path": str(tmp_path / "at home/fineweb"), "name": "n", "files": ["a.parquet"]}
    record["spec"]["data"] = {k: v for k, v in record["spec"]["data"].items() if k not in ("paths", "origins")} | hub
    (mine / "run.json").write_text(json.dumps(record))
    export.export(mine, tmp_path / "out", prepared.folder)
    assert "at home" not in (tmp_path / "out/config.json").read_text() + (tmp_path / "out/README.md").read_text()
    assert depthbench.load(tmp_path / "out", prepared.folder).config.design == "preln"


def test_an_export_that_was_killed_is_none_and_can_be_made_again(run, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("depthbench.card.card", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            export.export(run, tmp_path / "out")
    with pytest.raises(UserError, match=r"E-RUN .*config\.json: not a record"):
        depthbench.load(tmp_path / "out")
    export.export(run, tmp_path / "out")
    depthbench.load(tmp_path / "out")


def test_no_model_is_built_for_an_export(run, tmp_path, monkeypatch):
    """It would be three times the weights; what is broken is still told."""
    monkeypatch.setattr("depthbench.loading.build_model", lambda *_: 1 / 0)
    export.export(run, tmp_path / "out")
    broken = shutil.copytree(run, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"E-RUN .*missing, or not the weights of its record"):
        export.export(broken, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_tokenizer_left_beside_a_trained_run_is_not_its_own(prepared, run, tmp_path):
    """Its path was once that of an import."""
    again = shutil.copytree(run, tmp_path / "again")
    (again / "tokenizer.json").write_text("{}")
    expected = (prepared.folder / "tokenizer.json").read_text()
    record = json.loads((again / "run.json").read_text())
    (again / "run.json").write_text(json.dumps({**record, "data": str(prepared.folder)}))
    assert depthbench.load(again).tokenizer.get_vocab() == json.loads(expected)["model"]["vocab"]
    export.export(again, tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == expected


def test_an_export_that_was_cut_is_none(run, tmp_path):
    export.export(run, tmp_path / "out")
    weights = tmp_path / "out" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4])
    with pytest.raises(UserError, match="missing, or not the weights of its record"):
        depthbench.load(tmp_path / "out")
    weights.write_bytes(whole)
    for text in ("{", "{}", '{"model_type": "llama"}', '{"depthbench": {"spec": {}}}'):
        (tmp_path / "out" / "config.json").write_text(text)
        with pytest.raises(UserError, match=r"E-RUN .*config\.json: not a record; name the folder of a finished run"):
            depthbench.load(tmp_path / "out")


def test_transformers_loads_preln(run, tmp_path):
    """The same logits, and the same tokens of a text that names a control token."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra `benchmark`)")
    export.export(run, tmp_path / "out")
    ours, theirs = depthbench.load(run), transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert type(theirs).__name__ == "LlamaForCausalLM"
    tokens = torch.randint(512, (3, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = ours.model(tokens)
        assert expected.std() > 0.1
        assert (theirs(tokens).logits - expected).abs().max() < 1e-5
        rotated = ours.model.blocks[0].attn.wq.weight  # rows as if channels 2i and 2i + 1 were a pair: must be seen
        rotated.copy_(rotated.unflatten(0, (-1, 2, 4)).transpose(1, 2).reshape(rotated.shape))
        assert (ours.model(tokens) - expected).abs().max() > 1e-3
    encoder = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "The end <|endoftext|> of it\n\n  was — near."
    assert encoder(text)["input_ids"] == ours.tokenizer.encode(text).ids
    assert (encoder.eos_token_id, encoder.pad_token_id) == (511, 1)


def test_transformers_loads_weights_in_bfloat16(prepared, tmp_path):
    """As they are stored, and to our logits in float32."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra `benchmark`)")
    checkpoint = write(tmp_path / "checkpoint", filled(small("preln", vocab_size=512)))
    import_checkpoint(ImportSpec(run_id="it", version=1, source=str(checkpoint)), tmp_path / "run", prepared.folder)
    export.export(tmp_path / "run", tmp_path / "out")
    assert "dtype=torch.float32" in (tmp_path / "out" / "README.md").read_text()
    stored = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert stored.dtype == torch.bfloat16
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    tokens = torch.randint(512, (3, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = depthbench.load(tmp_path / "run").model(tokens)
        assert expected.std() > 0.1
        assert (theirs(tokens).logits - expected).abs().max() < 1e-5

import json
import math
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from depthbench import evaluate, files, load, loading, train
from depthbench.data.loader import Heldout
from depthbench.errors import UserError
from depthbench.evaluate import scoring, validation
from depthbench.model import ModelConfig, build_model

V = 512


def model(**changes):
    return build_model(ModelConfig(design="preln", d_model=16, n_layers=2, n_heads=2, vocab_size=V, **changes)).eval()


def documents(lengths, seed=0):
    draw = np.random.default_rng(seed)
    return [draw.integers(0, V, n) for n in lengths]


def test_batches_give_what_each_document_gives_alone(monkeypatch):
    monkeypatch.setattr(scoring, "TOKENS_PER_BATCH", 100)
    monkeypatch.setattr(scoring, "TOKENS_PER_CHUNK", 7)
    found = documents([2, 31, 5, 120, 64, 33, 3])
    net = model(init_std=0.3)
    alone = [
        F.cross_entropy(
            net(torch.from_numpy(d)[None])[0, :-1].double(), torch.from_numpy(d)[1:], reduction="sum"
        ).item()
        for d in found
    ]
    np.testing.assert_allclose(validation.document_nll(net, found), alone, rtol=1e-5)


def test_a_uniform_model_loses_ln_v_per_prediction():
    net = model()
    torch.nn.init.zeros_(net.lm_head.weight)
    lengths = np.array([2, 10, 33])
    nll = validation.document_nll(net, documents(lengths))
    np.testing.assert_allclose(nll, (lengths - 1) * math.log(V), rtol=1e-6)


def test_summary_divides_by_predictions_tokens_and_bytes():
    frame = pd.DataFrame({"n_tokens": [3, 5], "n_bytes": [4, 12], "nll_sum": [2.0, 10.0], "origin": ["a", "a"]})
    found = validation.summary(frame, 20)
    assert found["loss"] == pytest.approx(12 / 6)
    assert found["loss_upstream"] == pytest.approx(12 / 8)
    assert 2 ** found["bits_per_byte"] == pytest.approx(math.exp(12 / 16))
    assert (found["n_tokens"], found["n_predictions"]) == (8, 6)
    assert math.isnan(found["loss_lo"])  # two documents are too few for an interval
    assert validation.summary(frame.assign(nll_sum=[2.0, math.inf]), 20) == {"status": "diverged"}


@pytest.fixture(scope="module")
def run(prepared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train.train(prepared.spec(steps=3), prepared.folder, folder, 4, 600.0)
    return folder


def test_the_files_of_a_run(prepared, run):
    found = evaluate.evaluate(run)
    summary = found.validation.iloc[0]
    assert found.written
    docs = pd.read_parquet(run / "validation_docs.parquet")
    heldout = list(Heldout(prepared.folder, 32))
    assert docs.doc_key.tolist() == [d.doc_key for d in heldout]
    assert (docs.n_tokens <= 32).all()
    loaded = load(run)
    for row, document in zip(docs.itertuples(), heldout, strict=True):
        tokens = torch.from_numpy(document.tokens)
        nll = F.cross_entropy(loaded.model(tokens[None])[0, :-1].double(), tokens[1:], reduction="sum")
        assert row.nll_sum == pytest.approx(nll.item(), rel=1e-5)
        text = loaded.tokenizer.decode(document.tokens.tolist(), skip_special_tokens=True)
        if len(document.tokens) == 32 and "�" not in text:
            assert row.n_bytes == len(text.encode())
    assert summary.loss == pytest.approx(docs.nll_sum.sum() / (docs.n_tokens - 1).sum())
    assert summary.loss_lo < summary.loss < summary.loss_hi
    assert pd.read_csv(run / "validation.csv").iloc[0].loss == summary.loss


def test_other_texts_are_measured_but_leave_the_run_as_it_is(prepared, run, tmp_path):
    evaluate.evaluate(run)
    before = {name: (run / name).read_bytes() for name in ("validation.csv", "validation_docs.parquet")}
    other = shutil.copytree(prepared.folder, tmp_path / "other")
    about = json.loads((other / "manifest.json").read_text())
    (other / "manifest.json").write_text(json.dumps({**about, "data_id": "other"}))
    found = evaluate.evaluate(run, other)
    assert not found.written
    assert found.validation.iloc[0].data_id == "other"
    assert {name: (run / name).read_bytes() for name in before} == before


def test_a_diverged_run_has_rows_without_values(prepared, tmp_path, monkeypatch):
    original = train.linear_cross_entropy
    monkeypatch.setattr(train, "linear_cross_entropy", lambda *a: original(*a) * math.nan)
    train.train(prepared.spec(steps=3), prepared.folder, tmp_path, 4, 600.0)
    evaluate.evaluate(tmp_path)
    row = pd.read_csv(tmp_path / "validation.csv").iloc[0]
    assert row.status == "diverged"
    assert math.isnan(row.loss)
    assert len(pd.read_parquet(tmp_path / "validation_docs.parquet")) == 0


def test_what_is_no_run_is_told(run, tmp_path):
    with pytest.raises(UserError, match=r"E-RUN .*run\.json: No such file"):
        loading.load(tmp_path)
    (tmp_path / "run.json").write_text((run / "run.json").read_text())
    with pytest.raises(UserError, match=r"E-RUN .*model\.safetensors: missing"):
        loading.load(tmp_path)
    weights = bytearray((run / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(weights)
    with pytest.raises(UserError, match="not the weights of its"):
        loading.load(tmp_path)
    (tmp_path / "run.json").write_text('{"status"')
    with pytest.raises(UserError, match="not a record"):
        loading.load(tmp_path)


def test_a_published_file_is_whole_or_not_there(tmp_path):
    files.write_text(tmp_path / "a", "old")
    with pytest.raises(UnicodeEncodeError):
        files.write_text(tmp_path / "a", "x" * 100_000 + "\ud800")
    assert (tmp_path / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]

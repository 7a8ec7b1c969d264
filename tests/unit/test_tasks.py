import csv
import json
import math

import numpy as np
import pandas as pd
import pytest
import torch

from depthbench import evaluate, load, specs, train
from depthbench.data import items, tokenizer
from depthbench.errors import UserError
from depthbench.evaluate import requests, tasks
from depthbench.model import ModelConfig, build_model

V = 512
FILES = ("nll.csv", "nll_items.parquet", "arc.csv", "arc_items.parquet")
ALL = ["mbpp", "humaneval", "sciq", "gpqa", "gsm8k", "math500", "arc_easy"]


@pytest.fixture
def spec(task_spec):
    def made(*names, max_truncated=None, **changes):
        chosen = {name: task_spec(name, **changes) for name in names}
        return specs.EvaluationSpec.model_validate({"tasks": chosen, "max_truncated": max_truncated})

    return made


def measured(spec, net, max_length=256):
    return tasks.measure(tasks.prepare(spec), spec, (net, tokenizer.build(V)), max_length, "float32", 50)


def uniform():
    net = build_model(ModelConfig(design="preln", d_model=16, n_layers=2, n_heads=2, vocab_size=V)).eval()
    torch.nn.init.zeros_(net.lm_head.weight)
    return net


def test_a_uniform_model_loses_ln_v_per_token_on_every_task(spec, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    found = measured(spec(*ALL, limit=8), uniform())
    ok = found.nll[found.nll["status"] == "ok"]
    assert ok["task"].tolist() == [name for name in ALL if name not in ("gpqa", "arc_easy")]
    for column in ("nll", "nll_item", "lo", "hi"):
        np.testing.assert_allclose(ok[column], math.log(V), rtol=1e-6)
    # 2 to the bits per byte is byte perplexity
    per_byte = ok["n_tokens"] * math.log(V) / ok["n_bytes"]
    np.testing.assert_allclose(2 ** ok["bits_per_byte"].to_numpy(), np.exp(per_byte.to_numpy(float)), rtol=1e-6)
    sums = found.nll_items.groupby("task")[["n_tokens", "n_bytes", "nll_sum"]].sum()
    assert sums["n_tokens"].to_dict() == ok.set_index("task")["n_tokens"].to_dict()


def test_equal_scores_are_chance_on_all_of_arc_easy():
    """A choice among equals is worth one over their number: 0.2502 on test."""
    found = items.raw_items("arc_easy")
    credit = [tasks.choose(np.ones(len(i["choices"])), i["gold"], [1] * len(i["choices"]))["credit"] for i in found]
    chance = np.mean([1 / len(item["choices"]) for item in found])
    assert np.mean(credit) == chance == pytest.approx(0.2502, abs=5e-5)


def test_a_uniform_model_guesses_by_length_alone(spec):
    """Equal tokens, so the choice of fewest tokens wins; per character the one of most characters a token."""
    found = measured(spec("arc_easy", limit=40), uniform())
    encode, credit = tokenizer.build(V).encode, []
    for item in items.raw_items("arc_easy")[:40]:
        n = [len(encode(" " + text).ids) for text in item["choices"]]
        credit.append((n[item["gold"]] == min(n)) / n.count(min(n)))
    assert found.arc["acc"].item() == pytest.approx(np.mean(credit))
    assert found.arc["chance"].item() == np.mean(1 / found.arc_items["n_choices"])


def test_a_choice_by_sum_and_by_character():
    """nll 2, 3, 6 over 1, 3, 12 characters: 2, 1, 0.5 per character."""
    row = tasks.choose(np.array([2.0, 3.0, 6.0]), 2, (1, 3, 12))
    assert (row["pred"], row["credit"], row["pred_norm"], row["credit_norm"]) == (0, 0.0, 2, 1.0)
    assert (row["gold_nll"], row["n_choices"]) == (6.0, 3)
    tied = tasks.choose(np.array([2.0, 4.0, 4.0]), 1, (2, 4, 2))
    assert (tied["credit"], tied["credit_norm"]) == (0.0, 0.5)


def test_bytes_are_those_of_the_text(spec, tmp_path):
    """F05: a text of two-byte characters."""
    (tmp_path / "README.md").write_text("# made up\n")
    row = {"question": "Où?", "correct_answer": "là-bas, à côté", "support": ""}
    (tmp_path / "test.jsonl").write_text(json.dumps(row) + "\n")
    found = measured(spec("sciq", path=str(tmp_path)), uniform())
    assert found.nll["n_bytes"].item() == len(" là-bas, à côté".encode()) == 19
    assert found.nll["split"].item() == "test"


def test_more_cut_items_than_allowed_fail_the_task(spec):
    """F03: at T = 32 all answers of GSM8K are cut."""
    net = uniform()
    row = measured(spec("gsm8k", limit=6, max_truncated=0.5), net, 32).nll.iloc[0]
    assert (row["status"], row["n_items"], row["n_truncated"]) == ("failed", 6, 6)
    assert row["reason"] == "6 of 6 items are longer than 32 tokens, max_truncated is 0.5"
    assert math.isnan(row["nll"])
    row = measured(spec("gsm8k", limit=6, max_truncated=1), net, 32).nll.iloc[0]
    assert (row["status"], row["n_truncated"], row["n_tokens"]) == ("ok", 6, 6 * 32)


def test_a_token_across_the_join_is_counted(spec):
    found = measured(spec("gsm8k", limit=5, context="{question} the co", continuation="d{answer}"), uniform())
    assert found.nll["n_fallback"].item() == found.nll_items["fallback"].sum() == 5


@pytest.fixture(scope="module")
def run(prepared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train.train(prepared.spec(steps=3), prepared.folder, folder, 4, 600.0)
    return folder


def test_the_files_of_a_run(run, spec, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    evaluate.evaluate(run, spec=spec(*ALL, limit=4))
    nll, rows = pd.read_csv(run / "nll.csv"), pd.read_parquet(run / "nll_items.parquet")
    assert nll["task"].tolist() == ALL[:-1]
    assert nll["category"].tolist() == ["coding", "coding", "stem", "stem", "math", "math"]
    assert nll["status"].tolist() == ["ok"] * 3 + ["not_available"] + ["ok"] * 2
    assert nll["limit"].tolist() == [4] * 6
    assert (rows["run_id"] == "test/runs/preln/u-d16-l2/lr1e-2-s0").all()
    ok = nll[nll["status"] == "ok"].set_index("task")
    own = rows.groupby("task")[["nll_sum", "n_tokens", "n_bytes", "truncated"]].sum()
    np.testing.assert_allclose(ok["nll"], (own["nll_sum"] / own["n_tokens"])[ok.index], rtol=1e-12)
    bits = own["nll_sum"] / own["n_bytes"] / math.log(2)
    np.testing.assert_allclose(ok["bits_per_byte"], bits[ok.index], rtol=1e-12)
    assert ok["n_truncated"].to_dict() == own["truncated"].to_dict()
    arc, choices = pd.read_csv(run / "arc.csv").iloc[0], pd.read_parquet(run / "arc_items.parquet")
    assert arc["acc_norm"] == choices["credit_norm"].mean()
    loaded = load(run)
    first = items.raw_items("arc_easy")[0]
    ids = loaded.tokenizer.encode(f"Question: {first['question']}\nAnswer: {first['choices'][0]}").ids
    n = len(ids) - len(loaded.tokenizer.encode(f"Question: {first['question']}\nAnswer:").ids)
    window = torch.tensor(ids)[-33:]  # T = 32
    logits = loaded.model(window[None, :-1])[0, -n:].double()
    expected = torch.nn.functional.cross_entropy(logits, window[-n:], reduction="sum").item()
    assert choices["gold_nll"][0] == pytest.approx(expected, rel=1e-5)


def test_no_text_of_gpqa_is_written(run, spec, tmp_path, capsys):
    texts = {"Question": "secret question", "Correct Answer": "hidden gold", "Explanation": "veiled reason"}
    others = {f"Incorrect Answer {n}": f"masked {n}" for n in (1, 2, 3)}
    with (tmp_path / "mine.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["Record ID", *texts, *others])
        writer.writeheader()
        writer.writerow({"Record ID": "rec1", **texts, **others})
    evaluate.evaluate(run, spec=spec("gpqa", path=str(tmp_path / "mine.csv")))
    row = pd.read_csv(run / "nll.csv").iloc[0]
    assert (row["status"], row["n_items"]) == ("ok", 1)
    rows = pd.read_parquet(run / "nll_items.parquet").to_csv()
    written = rows + (run / "nll.csv").read_text() + "".join(capsys.readouterr())
    for text in (*texts.values(), *others.values()):
        assert text not in written


def test_nothing_asked_is_one_row_and_without_a_spec_files_stay(run, spec):
    evaluate.evaluate(run, spec=specs.EvaluationSpec.model_validate({}))
    for name in ("nll.csv", "arc.csv"):
        assert pd.read_csv(run / name)["status"].tolist() == ["not_requested"]
    for name in ("nll_items.parquet", "arc_items.parquet"):
        assert len(pd.read_parquet(run / name)) == 0
    evaluate.evaluate(run, spec=spec("sciq", limit=2))
    before = {name: (run / name).read_bytes() for name in FILES}
    assert pd.read_csv(run / "arc.csv")["status"].tolist() == ["not_requested"]
    evaluate.evaluate(run)
    assert {name: (run / name).read_bytes() for name in FILES} == before


def test_a_diverged_run_has_rows_without_values(prepared, spec, tmp_path, monkeypatch):
    original = train.linear_cross_entropy
    monkeypatch.setattr(train, "linear_cross_entropy", lambda *a: original(*a) * math.nan)
    train.train(prepared.spec(steps=3), prepared.folder, tmp_path, 4, 600.0)
    evaluate.evaluate(tmp_path, spec=spec("sciq", "arc_easy", limit=3))
    nll, arc = (pd.read_csv(tmp_path / name) for name in ("nll.csv", "arc.csv"))
    assert (nll["status"].tolist(), arc["status"].tolist()) == (["diverged"], ["diverged"])
    assert nll[["nll", "lo", "hi"]].isna().all(axis=None)
    assert nll["n_items"].item() == 3


def test_bad_items_stop_before_anything_is_measured(run, spec, tmp_path):
    before = {path.name: path.stat().st_mtime_ns for path in run.iterdir()}
    with pytest.raises(UserError, match=r"^E-ITEM gpqa: .*nowhere\.csv: no such file"):
        evaluate.evaluate(run, spec=spec("gpqa", path=str(tmp_path / "nowhere.csv")))
    assert {path.name: path.stat().st_mtime_ns for path in run.iterdir()} == before


def test_an_empty_continuation_is_refused(spec):
    with pytest.raises(UserError, match=r"^E-ITEM sciq: 0 has an empty continuation"):
        requests.questions("sciq", spec("sciq", continuation="{support} ").tasks["sciq"])


def test_what_is_hashed_is_what_is_asked(spec):
    asked = requests.questions("gsm8k", spec("gsm8k", limit=3).tasks["gsm8k"])
    other = requests.questions("gsm8k", spec("gsm8k", limit=3, context="Q: {question}\nA:").tasks["gsm8k"])
    assert requests.items_id(asked) == requests.items_id(list(asked)) != requests.items_id(other)
    assert requests.items_id(asked) != requests.items_id(asked[:2])

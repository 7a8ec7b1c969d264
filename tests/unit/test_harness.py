"""Our scores beside those of lm-evaluation-harness: its own tokenization, splitting and metrics, on the same model."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from depthbench import evaluate, loading, specs, train
from depthbench.data import items

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: the optional extra `eval`")
harness = pytest.importorskip("depthbench.harness")

N = 50
TASK = {
    "task": "our_arc",
    "dataset_path": "json",
    "output_type": "multiple_choice",
    "test_split": "test",
    "doc_to_text": "Question: {{question}}\nAnswer:",
    "doc_to_target": "{{gold}}",
    "doc_to_choice": "{{choices}}",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}


@pytest.fixture(scope="module")
def run(prepared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    spec = prepared.spec(sequence_length=256, batch_sequences=1, steps=4, lr="3e-1")
    train.train(spec, prepared.folder, folder, 1, 600.0)
    return folder


@pytest.fixture(scope="module")
def ours(run):
    task = {"context": "Question: {question}\nAnswer:", "continuation": " {choice}", "limit": N}
    evaluate.evaluate(run, spec=specs.EvaluationSpec.model_validate({"tasks": {"arc_easy": task}}))
    return pd.read_csv(run / "arc.csv").iloc[0], pd.read_parquet(run / "arc_items.parquet")


@pytest.fixture(scope="module")
def manager(tmp_path_factory):
    """The harness with one task, made of local files only."""
    from lm_eval.tasks import TaskManager

    folder = tmp_path_factory.mktemp("task")
    rows = items.raw_items("arc_easy")[:N]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = TASK | {"dataset_kwargs": {"data_files": {"test": str(folder / "items.jsonl")}}}
    (folder / "our_arc.yaml").write_text(yaml.safe_dump(task))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
        yield TaskManager(include_path=str(folder), include_defaults=False)


def plain(run):
    """A model of the harness that has nothing of our scoring: its own pairs, one at a time."""
    from lm_eval.api.model import TemplateLM

    loaded = loading.load(run)

    class Plain(TemplateLM):
        eot_token_id = 511
        loglikelihood_rolling = generate_until = None

        def tok_encode(self, string, add_special_tokens=None, **_):
            return loaded.tokenizer.encode(string).ids

        @torch.no_grad()
        def _loglikelihood_tokens(self, requests, **_):
            return [self.one(torch.tensor(before), torch.tensor(scored)) for _, before, scored in requests]

        def one(self, before, scored):
            logits = loaded.model(torch.cat([before, scored])[None, :-1])[0, -len(scored) :].double()
            found = logits.log_softmax(-1).gather(-1, scored[:, None]).sum()
            return found.item(), bool((logits.argmax(-1) == scored).all())

    return Plain()


def scored(model, manager, **options):
    found = lm_eval.simple_evaluate(model, tasks=["our_arc"], task_manager=manager, bootstrap_iters=0, **options)
    samples = sorted(found["samples"]["our_arc"], key=lambda sample: sample["doc_id"])
    likelihoods = [[float(answer[0]) for answer in sample["filtered_resps"]] for sample in samples]
    return found["results"]["our_arc"], likelihoods


def test_accuracy_and_likelihoods_agree_with_the_harness(run, ours, manager):
    summary, table = ours
    metrics, likelihoods = scored(plain(run), manager)
    adapter_metrics, adapter_likelihoods = scored("depthbench", manager, model_args={"path": str(run)})
    gold = [-row[i] for row, i in zip(likelihoods, table["gold"], strict=True)]
    print(f"largest difference {np.abs(table['gold_nll'] - gold).max():.1e} nats")
    np.testing.assert_allclose(table["gold_nll"], gold, atol=1e-4)
    for theirs, ours_again in zip(likelihoods, adapter_likelihoods, strict=True):
        np.testing.assert_allclose(ours_again, theirs, atol=1e-4)
    for name in ("acc", "acc_norm"):
        assert metrics[f"{name},none"] == adapter_metrics[f"{name},none"] == pytest.approx(summary[name], abs=1e-4)
    assert len(set(table["pred_norm"])) > 1


def test_texts_longer_than_the_context_are_scored_once(run):
    """Rolling log-likelihood: every token of the text once, the first after the end of text."""
    model = harness.DepthBench(str(run))
    text = "words and numbers: " + ", ".join(map(str, range(300)))
    ids = model.tokenizer.encode(text).ids
    assert len(ids) > 2 * 256
    expected, seen = 0.0, [511, *ids]
    for first in range(0, len(ids), 256):  # windows of 256 predictions, each after as much text as fits
        last = min(first + 256, len(ids))
        window = torch.tensor(seen[max(0, last - 256) : last])
        logits = model.model(window[None])[0].double().log_softmax(-1)
        n = last - first
        expected += logits[-n:].gather(-1, torch.tensor(ids[first:last])[:, None]).sum().item()
    assert model.loglikelihood_rolling([SimpleNamespace(args=(text,))]) == [pytest.approx(expected, rel=1e-6)]


def test_generation_stops_where_the_task_says(run):
    model = harness.DepthBench(str(run))

    def generate(**how):
        return model.generate_until([SimpleNamespace(args=("The ", how))])[0]

    whole = generate(until=[], max_gen_toks=12)
    ids = model.tokenizer.encode("The ").ids
    with torch.no_grad():
        for _ in range(12):
            ids.append(int(model.model(torch.tensor([ids]))[0, -1].argmax()))
    assert whole == model.tokenizer.decode(ids[-12:])
    stop = whole[len(whole) // 2 :][:2]
    assert generate(until=[stop], max_gen_toks=12) == whole[: whole.find(stop)]

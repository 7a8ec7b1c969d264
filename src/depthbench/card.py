"""The model card of an exported run: what it is, how it was trained, on which texts, and what was measured."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from depthbench import designs, runs
from depthbench.model.config import ModelConfig

PAPER = "DepthBench, arXiv 2609.32534"


def card(folder: Path, record: dict[str, Any], cfg: ModelConfig, data: dict[str, Any] | None) -> str:
    """Return the README.md of the run in `folder`; `data` is the manifest of its texts."""
    sections = {
        "Loading": _loading(cfg),
        "Model": _table(_model(cfg)),
        "Recipe": _table(_recipe(record)),
        "Data": _table(_data(record, data)),
        "Measured": _table(_measured(folder)) or "Nothing yet.",
    }
    head = ["---", "library_name: " + ("transformers" if cfg.design == "preln" else "depthbench")]
    head += [f"tags: [depthbench, {cfg.design}]", "---", "", f"# {record['run_id']}"]
    body = (f"## {title}\n\n{text}" for title, text in sections.items())
    return "\n".join(head) + "\n\n" + "\n\n".join(body) + "\n"


def _loading(cfg: ModelConfig) -> str:
    code = ["import depthbench", "", 'run = depthbench.load("this folder")  # model, config, tokenizer, record']
    if cfg.design == "preln":
        code = [
            *("import torch", "from transformers import AutoModelForCausalLM, AutoTokenizer", ""),
            *('model = AutoModelForCausalLM.from_pretrained("this folder", dtype=torch.float32)', ""),
            *code,
        ]
    lines = ["```python", *code, "```"]
    if cfg.design == "preln":
        lines += ["", "Loaded in float32 (`dtype=torch.float32`) it gives the logits of `depthbench.load` within 1e-5."]
    return "\n".join(lines)


def _model(cfg: ModelConfig) -> Iterator[tuple[str, Any]]:
    words = designs.words(cfg.design)
    yield "residual design", f"`{cfg.design}`: {words.rule}"
    yield "source", words.source
    yield "layers, width", f"{cfg.n_layers}, {cfg.d_model}"
    yield "heads, key/value heads, FFN width", f"{cfg.n_heads}, {cfg.n_kv_heads}, {cfg.d_ff}"
    yield "entries of the tokenizer", f"{cfg.vocab_size:,}"
    yield "parameters", f"{cfg.count_params():,}"
    yield "study", PAPER


def _recipe(record: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    spec = record["spec"]
    yield "window", f"{spec['sequence_length']:,} tokens"
    rate = spec.get("lr") or record.get("imported", {}).get("lr", "not told")
    yield "learning rate, seed", f"{rate}, {spec.get('seed', 'not told')}"
    yield "weights, computation", f"{spec['precision'].get('master', 'float32')}, {spec['precision']['compute']}"
    if record["status"] == "imported":
        yield "origin", "released checkpoint of the authors of the study, imported"
        yield "step", "not told" if record["step"] is None else record["step"]
        return
    adam, plan = spec["optimizer"], spec["schedule"]
    yield "steps, tokens", f"{record['step']:,} of {spec['steps']:,}, {record['tokens']:,}"
    yield "batch", f"{spec['batch_sequences']:,} windows"
    yield "AdamW", f"betas {adam['betas']}, eps {adam['eps']:g}, decay {adam['weight_decay']}, clip {adam['clip']}"
    yield "schedule", f"warm-up over {plan['warmup']:.0%} of the steps, cosine to {plan['final']:.0%} of the peak"
    yield "passes over the texts", f"{record['epochs']:.2f}"
    commits = record.get("commits") or runs.commits((leg["commit"], leg["dirty"]) for leg in record["legs"])
    yield "commit", ", ".join(commits)


def _data(record: dict[str, Any], data: dict[str, Any] | None) -> Iterator[tuple[str, Any]]:
    if record["status"] == "imported":
        yield "trained on", "see the checkpoint's own page"
        yield "licence", "none is declared for the weights: ask their authors before passing them on"
        return
    yield "corpus", record["spec"]["data"]["corpus"]
    yield "data_id", record["data_id"]
    for licence, names in _by_licence((data or {}).get("licences", {})).items():
        yield f"licence of {', '.join(names)}", licence


def _by_licence(licences: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, licence in licences.items():
        found.setdefault(licence, []).append(name)
    return found


def _measured(folder: Path) -> Iterator[tuple[str, Any]]:
    """Scores that stand in the run's folder."""
    for row in _rows(folder / "validation.csv"):
        texts = f"{row['n_docs']} held-out documents, data_id {row['data_id']}"
        loss, lo, hi = (_digits(row[key]) for key in ("loss", "loss_lo", "loss_hi"))
        yield "held-out loss", f"{loss} nats/token [{lo}, {hi}], {texts}"
    for row in _rows(folder / "nll.csv"):
        yield f"nll, {row['task']}", f"{_digits(row['nll'])} nats/token, {row['n_items']} items"
    for row in _rows(folder / "arc.csv"):
        yield f"acc_norm, {row['task']}", f"{_digits(row['acc_norm'])}, chance {_digits(row['chance'])}"


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["status"] == "ok"]


def _digits(text: str) -> str:
    return f"{float(text):.4f}" if text else "-"


def _table(rows: Iterator[tuple[str, Any]]) -> str:
    lines = [f"| {name} | {str(value).replace('|', '/')} |" for name, value in rows]
    return "\n".join(["| | |", "| --- | --- |", *lines]) if lines else ""

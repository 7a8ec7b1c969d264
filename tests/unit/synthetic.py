"""Run files with known losses, as `train` and `evaluate` write them."""

import dataclasses
import json

import layer_tables
import numpy as np
import pandas as pd

from depthbench import runs
from depthbench.artifacts import ArtifactSpec

LABELS = {
    "attnres_block": ("Block AttnRes", "cross-layer"),
    "attnres_full": ("Full AttnRes", "cross-layer"),
    "deepnorm": ("DeepNorm", "norm"),
    "hc": ("HC", "multi-stream"),
    "keel": ("KEEL", "norm"),
    "lns": ("LNS", "norm"),
    "mhc": ("mHC", "multi-stream"),
    "moda": ("MoDA", "cross-layer"),
    "preln": ("Pre-LN", "baseline"),
    "sandwich": ("Sandwich-LN", "norm"),
}
FILES = ("run.json", "validation.csv", "validation_docs.parquet")
SPEC = {"lr": 0.01, "sequence_length": 128, "precision": {"compute": "float32"}}
TINY = ((4, 52), (8, 40), (16, 28))
# What a design adds to Pre-LN (Table 6 of the paper), by n_layers and d_model; the others add nothing.
OWN = {
    "sandwich": lambda L, d: 2 * d * L,
    "keel": lambda L, d: (2 * L - 1) * d,
    "attnres_full": lambda L, d: 4 * d * L,
    "attnres_block": lambda L, d: 4 * d * L,
    "hc": lambda L, d: 2 * L * (6 * d + 26),
    "mhc": lambda L, d: 2 * L * (96 * d + 27),
    "moda": lambda L, d: 2 * d * d * (L - 1),
}


def preln_params(L, d, V):
    """True size of Pre-LN: section 2.5 of the specification, norm gains included, as many key/value heads as heads."""
    f = 16 * -(-8 * d // 48)
    return 2 * V * d + L * (4 * d * d + 3 * d * f) + (2 * L + 1) * d


def path(design, shape, lr="1e-2", seed=0, scale="t"):
    return f"{design}/{scale}-d{shape[1]}-l{shape[0]}/lr{lr}-s{seed}"


class Study:
    """A study below `root`; each run has 100 documents of 51 tokens, so 50 predictions each."""

    def __init__(self, root, name="tiny", names=FILES):
        self.root, self.name, self.names = root, name, names
        self.runs, self.missing, self.files = {}, [], []
        self.declared = {}  # design -> rate, 1e-2 for the others
        self.model = {"n_heads": 2, "vocab_size": 512}
        self.depths = {"one": 16, "three": [4, 8, 16]}
        self.steps = {}  # scale -> steps, 100 for the others

    def add(
        self,
        run,
        suites=("main",),
        loss=4.5,
        spread=0.0,
        status="ok",
        legs=(("a" * 40, False),),
        scores=None,
        layers=None,
    ):
        """Half of the documents have `loss - spread` [nats/token], the other half `loss + spread`.

        `scores` are the nll of tasks, or a status; 10 items of 20 tokens each, half of them 0.1 below, half above.
        `layers` are changes of the tables of layer analyses, see `layer_tables.write`.
        """
        self.runs[run] = tuple(suites)
        if status == "missing":
            self.missing.append(run)
            return
        folder = self.root / "results" / self.name / "runs" / run
        folder.mkdir(parents=True)
        parsed = runs.parse(run)
        keys = {
            "run_id": f"{self.name}/runs/{run}",
            "design": parsed.design,
            "n_layers": parsed.n_layers,
            "d_model": parsed.d_model,
            "lr": parsed.lr,
            "seed": parsed.seed,
            "tokenizer_vocab": 512,
            "data_id": "12e5",
        }
        n, nan, ok = 100, float("nan"), status == "ok"
        nll = 50 * (loss + spread * np.where(np.arange(n) % 2, 1, -1))
        docs = {
            "doc_key": [f"{i:016x}" for i in range(n)],
            "origin": "wiki_leads",
            "n_tokens": 51,
            "n_bytes": 200,
        }
        docs = pd.DataFrame({**keys, **docs, "nll_sum": nll})
        # `evaluate` has no types to give to the columns of a diverged run.
        docs = docs if ok else pd.DataFrame(columns=docs.columns)
        docs.to_parquet(folder / "validation_docs.parquet")
        row = {"status": status, "layout": "documents", "n_docs": n, "n_skipped": 0, "n_tokens": 51 * n}
        row |= {"n_predictions": 50 * n, "loss": loss if ok else nan, "loss_lo": nan, "loss_hi": nan}
        row |= {
            "loss_upstream": loss * 50 / 51 if ok else nan,
            "bits_per_byte": loss / 4 / np.log(2) if ok else nan,
        }
        row |= {"unigram_entropy": 5.25 if ok else nan}
        pd.DataFrame([keys | row]).to_csv(folder / "validation.csv", index=False)
        self.add_scores(folder, keys, scores or {})
        size = preln_params(parsed.n_layers, parsed.d_model, self.model["vocab_size"])
        record = {
            "run_id": keys["run_id"],
            "status": status,
            "step": 100,
            "tokens": 102400,
            "n_params": size + OWN.get(parsed.design, lambda L, d: 0)(parsed.n_layers, parsed.d_model),
        }
        leg = {"to_step": 100, "seconds": 8.5, "device": "cpu: x86_64", "kernels": "eager", "threads": 1, "host": "vm"}
        record["legs"] = [leg | {"from_step": 0, "commit": commit, "dirty": dirty} for commit, dirty in legs]
        (folder / "run.json").write_text(
            json.dumps(record | {"data_id": "12e5", "spec": {**SPEC, "model": self.plan(run)["model"]}})
        )
        step = {"loss": loss if ok else None, "tokens_per_s": 2048.0, "memory_bytes": 10**9}
        steps = [json.dumps(step | {"step": i, "tokens": 1024 * i}) for i in range(1, 101)]
        (folder / "metrics.jsonl").write_text("\n".join(steps) + "\n")
        if any(name in layer_tables.LAYERS for name in self.names):
            told = {"status": status} | (layers or {})
            layer_tables.write(folder, keys["run_id"], parsed.design, parsed.n_layers, **told)
        self.files += [folder / name for name in self.names]

    def add_scores(self, folder, keys, scores):
        rows, items = [], []
        for task, nll in scores.items():
            row = {"task": task, "category": "", "status": "ok", "reason": "", "items_id": f"id of {task}"}
            row |= {"n_items": 10, "n_truncated": 3 if task == "mbpp" else 0}
            if isinstance(nll, str):
                status, _, reason = nll.partition(": ")
                rows.append(keys | row | {"status": status, "reason": reason, "nll": None, "lo": None, "hi": None})
                continue
            rows.append(keys | row | {"nll": nll, "lo": nll - 0.05, "hi": nll + 0.05})
            each = 20 * (nll + 0.1 * np.where(np.arange(10) % 2, 1, -1))
            items += [
                keys | {"task": task, "item_id": str(i), "n_tokens": 20, "nll_sum": value}
                for i, value in enumerate(each)
            ]
        none = {"task": "", "category": "", "status": "not_requested", "reason": "", "items_id": ""}
        none |= dict.fromkeys(("n_items", "n_truncated", "nll", "lo", "hi"))
        pd.DataFrame(rows or [keys | none]).to_csv(folder / "nll.csv", index=False)
        columns = [*keys, "task", "item_id", "n_tokens", "nll_sum"]
        pd.DataFrame(items, columns=columns).to_parquet(folder / "nll_items.parquet")
        accuracy = dict.fromkeys(("acc", "acc_norm", "acc_norm_lo", "acc_norm_hi", "chance"), 0.25 if rows else None)
        arc = {"status": "ok" if rows else "not_requested", "reason": "", "items_id": "arc" if rows else ""}
        pd.DataFrame([keys | arc | accuracy]).to_csv(folder / "arc.csv", index=False)

    def plan(self, run):
        """What `picks.artifact_spec` says of a run; a step has 1024 tokens."""
        parsed = runs.parse(run)
        shape = {"design": parsed.design, "d_model": parsed.d_model, "n_layers": parsed.n_layers}
        steps = self.steps.get(parsed.scale, 100)
        return {
            "model": shape | self.model,
            "steps": steps,
            "warmup_steps": steps // 10,
            "tokens": 1024 * steps,
            "design": parsed.design,
            "scale": parsed.scale,
            "declared_lr": self.declared.get(parsed.design, "1e-2"),
        }

    def plans(self):
        """The plans of all runs, by design, budget and shape."""
        return {runs.parse(run).place: self.plan(run) for run in self.runs}

    def only(self, *names):
        """The paths of some files of each run."""
        return [file for file in self.files if file.name in names]

    def file(self, run, name):
        return self.root / "results" / self.name / "runs" / run / name

    def json(self, **changes):
        used = {runs.parse(run).design for run in self.runs}
        spec = {
            "kind": "table",
            "name": "losses",
            "study": self.name,
            "runs": self.runs,
            "missing": self.missing,
            "files": self.names,
            "version": 1,
            "bootstrap": 50,
            "labels": {design: label for design, label in LABELS.items() if design in used},
            "plans": self.plans(),
        }
        if any(name in layer_tables.LAYERS for name in self.names):
            spec |= {"depths": self.depths, "common_lr": "1e-2"}
        return json.dumps(spec | changes, sort_keys=True)

    def spec(self, **changes):
        return dataclasses.replace(ArtifactSpec.from_json(self.json()), **changes)

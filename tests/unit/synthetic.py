"""Run files with known losses, as `train` and `evaluate` write them."""

import dataclasses
import json

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

    def __init__(self, root, name="tiny"):
        self.root, self.name = root, name
        self.runs, self.missing, self.files = {}, [], []
        self.declared = {}  # design -> rate, 1e-2 for the others
        self.model = {"n_heads": 2, "vocab_size": 512}
        self.steps = {}  # scale -> steps, 100 for the others

    def add(self, run, suites=("main",), loss=4.5, spread=0.0, status="ok", legs=(("a" * 40, False),)):
        """Half of the documents have `loss - spread` [nats/token], the other half `loss + spread`."""
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
            json.dumps(record | {"data_id": "12e5", "spec": {"lr": 0.01, "model": self.plan(run)["model"]}})
        )
        step = {"loss": loss if ok else None, "tokens_per_s": 2048.0, "memory_bytes": 10**9}
        steps = [json.dumps(step | {"step": i, "tokens": 1024 * i}) for i in range(1, 101)]
        (folder / "metrics.jsonl").write_text("\n".join(steps) + "\n")
        self.files += [folder / name for name in FILES]

    def plan(self, run):
        """What `runs.artifact_spec` says of a run; a step has 1024 tokens."""
        parsed = runs.parse(run)
        shape = {"design": parsed.design, "d_model": parsed.d_model, "n_layers": parsed.n_layers}
        steps = self.steps.get(parsed.scale, 100)
        return {
            "model": shape | self.model,
            "steps": steps,
            "tokens": 1024 * steps,
            "lr": parsed.lr,
            "seed": parsed.seed,
            "declared_lr": self.declared.get(parsed.design, "1e-2"),
        }

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
            "files": FILES,
            "version": 1,
            "bootstrap": 50,
            "labels": {design: label for design, label in LABELS.items() if design in used},
            "plans": {run: self.plan(run) for run in self.runs},
        }
        return json.dumps(spec | changes, sort_keys=True)

    def spec(self, **changes):
        return dataclasses.replace(ArtifactSpec.from_json(self.json()), **changes)

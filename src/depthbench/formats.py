"""The files of runs and studies: what a row is, the columns that no artifact reads, and those with another meaning.

All other columns are named by `readers`, tables and figures; `format_page` puts them together.
tests/workflow/test_rerun.py compares the outcome with the files of a study.
"""

from typing import NamedTuple

from depthbench.columns import FLAG, LIST, MAPPING, NATS, NUMBER, TEXT, WHOLE, Column


class File(NamedTuple):
    """What a row of a file is, and the columns that no artifact reads."""

    row: str
    others: tuple[str, ...] = ()


KEYS = ("design", "n_layers", "d_model", "lr", "seed", "tokenizer_vocab", "data_id")  # of the run, beside its run_id
_DOCS = ("run_id", *KEYS, "calib_id", "doc_key", "origin")
_TRANSPORT = (*("effective_rank", "cos_rows", "cos_cols", "sigma_1", "sigma_2", "sigma_3", "sigma_4", "dist_uniform"),)
_ERRORS = ("max_row_sum_error", "max_col_sum_error")
# In the folder of a run.
RUN_FILES = {
    "run.json": File(
        "the run, and what made it",
        (
            *("run_id", "status", "cause", "step", "tokens", "loss", "n_params", "table_params", "data", "data_id"),
            *("epochs", "sha256", "legs", "imported", "spec"),
        ),
    ),
    "run.json, legs": File(
        "a start of the training",
        (
            *("from_step", "to_step", "started", "seconds", "ranks", "nodes", "micro_batch", "accumulation", "kernels"),
            *("paths", "commit", "dirty", "python", "packages", "host", "slurm_job_id", "device", "cores", "threads"),
        ),
    ),
    "metrics.jsonl": File("a training step", ("loss", "grad_norm", "lr", "time")),
    "validation.csv": File(
        "the run",
        (*KEYS, "layout", "n_docs", "n_skipped", "n_tokens", "n_predictions", "loss_lo", "loss_hi"),
    ),
    "validation_docs.parquet": File("a held-out document", (*KEYS, "n_bytes")),
    "nll.csv": File(
        "a task", (*KEYS, "split", "n_fallback", "n_tokens", "n_bytes", "nll_item", "bits_per_byte", "limit")
    ),
    "nll_items.parquet": File("an item of a task", (*KEYS, "n_bytes", "truncated", "fallback")),
    "arc.csv": File(
        "ARC-Easy", (*KEYS, "task", "split", "n_items", "n_truncated", "n_fallback", "acc_lo", "acc_hi", "limit")
    ),
    "arc_items.parquet": File(
        "an item of ARC-Easy",
        (
            *("run_id", *KEYS, "item_id", "n_choices", "gold", "pred", "pred_norm", "credit", "credit_norm"),
            "gold_nll",
        ),
    ),
    "analysis/angular.csv": File("a pair of depth states", (*KEYS, "position", "n_docs", "n_nan")),
    "analysis/angular_docs.parquet": File(
        "a pair of depth states and a document", (*_DOCS, "layer", "n", "distance", "defined", "n_nan")
    ),
    "analysis/causal.csv": File(
        "a pair of blocks",
        (*KEYS, "score_rom", "score_max", "num_mean", "den_mean", "n_floor", "lo", "hi", "undefined"),
    ),
    "analysis/causal_docs.parquet": File(
        "a pair of blocks and a document",
        (*_DOCS, "skip_mode", "skipped", "layer", "n", "ratio_sum", "num", "den", "n_floor", "ratio_max"),
    ),
    "analysis/causal_summary.csv": File("a threshold", KEYS),
    "analysis/permutation.csv": File(
        "a pair of blocks", (*KEYS, "swap_mode", "loss", "loss_swap", "lo", "hi", "nonfinite")
    ),
    "analysis/permutation_docs.parquet": File(
        "a pair of blocks and a document", (*_DOCS, "layer_a", "layer_b", "loss", "loss_swap")
    ),
    "analysis/permutation_summary.csv": File("a threshold", (*KEYS, "swap_mode")),
    "analysis/pathway.csv": File("a pair of sub-layers", (*KEYS, "lo", "hi")),
    "analysis/pathway_docs.parquet": File(
        "a pair of sub-layers and a document", (*_DOCS, "source", "target", "weight", "weight_abs", "n_tokens")
    ),
    "analysis/block_mix.csv": File("a sub-layer", (*KEYS, "lo", "hi")),
    "analysis/block_mix_docs.parquet": File(
        "a sub-layer and a document", (*_DOCS, "sublayer", "is_border", "n_sources", "alpha", "beta", "n_tokens")
    ),
    "analysis/block_mix_summary.csv": File("the run", KEYS),
    "analysis/prune.csv": File("a block", (*KEYS, "acc", "acc_norm", "acc_full")),
    "analysis/prune_docs.parquet": File(
        "a block and an item of ARC-Easy",
        (
            *("run_id", *KEYS, "calib_id", "skip_mode", "skipped", "item_id", "n_choices", "credit", "credit_norm"),
            "items_id",
        ),
    ),
    "analysis/logitlens.csv": File("a depth state", (*KEYS, "kl_reverse", "top5", "probe_ce", "n_docs")),
    "analysis/logitlens_docs.parquet": File(
        "a depth state and a document",
        (*_DOCS, "layer", "kl", "kl_reverse", "top1", "top5", "probe_ce", "n_tokens", "n_predictions"),
    ),
    "analysis/transport.csv": File(
        "a product of maps",
        (*KEYS, *(f"{name}_{end}" for name in _TRANSPORT[1:] for end in ("lo", "hi")), "n_docs", "n_nan", *_ERRORS),
    ),
    "analysis/transport_docs.parquet": File(
        "a product of maps and a document",
        (*_DOCS, "n_sublayers", *(f"{has}{name}" for name in _TRANSPORT for has in ("", "has_")), "n_nan", *_ERRORS),
    ),
}
# Of the study, and of the prepared text.
OTHER_FILES = {
    "prefill.csv": File(
        "a design, shape and mode",
        (
            *("seconds_min", "rounds", "ratio", "noisy", "devices", "threads", "machine", "load", "torch", "triton"),
            *("liger_kernel", "date"),
        ),
    ),
    "preflight.csv": File(
        "a design at a width",
        (
            *("design", "shapes", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size", "recipe"),
            *("n_blocks", "master", "compute", "sequences", "sequence_length", "n_params", "seconds", "peak_bytes"),
            *("device", "threads", "kernels", "commit"),
        ),
    ),
    "manifest.json": File(
        "the prepared text in `results/data/<corpus>-v<V>/`",
        (
            *("data_id", "dtype", "eos_id", "heldout_unigram_entropy", "contamination", "licences", "pins", "rows"),
            *("spec", "splits", "versions", "warnings"),
        ),
    ),
    "manifest.json, contamination": File(
        "a task", ("task", "n_items", "n_items_short", "n_items_hit", "n_docs_hit", "action")
    ),
}
RECORDS = ("run.json", "manifest.json")  # JSON, of which a reader makes other columns than its keys

_LATER = Column(WHOLE, "", "later block, whose update is compared")
# The columns of a file that mean something else there than elsewhere.
OWN: dict[str, dict[str, Column]] = {
    "run.json": {
        "status": Column(TEXT, "", "`ok`, `diverged` or `imported`"),
        "cause": Column(TEXT, "", "of a diverged run what was not finite, `loss` or `gradient`; else null"),
        "loss": Column(NUMBER, NATS, "training loss of the last step; null if not finite"),
        "data": Column(TEXT, "", "folder of the prepared text, from the run's folder; null: none"),
        "epochs": Column(NUMBER, "", "how often the training text was read"),
        "sha256": Column(MAPPING, "", "hash of each published file"),
        "legs": Column(LIST, "", "each start of the training, below; empty of an import"),
        "imported": Column(MAPPING, "", "of an import: what was found in the checkpoint"),
        "spec": Column(MAPPING, "", "all that retrains the run, as config.yaml resolves to it"),
    },
    "run.json, legs": {
        "from_step": Column(WHOLE, "", "step at which it began"),
        "to_step": Column(WHOLE, "", "step of its last checkpoint"),
        "started": Column(NUMBER, "s", "time of day, Unix"),
        "seconds": Column(NUMBER, "s", "wall time from start to its last checkpoint"),
        "ranks": Column(WHOLE, "", "processes"),
        "nodes": Column(WHOLE, "", "machines"),
        "micro_batch": Column(WHOLE, "windows", "windows of a forward pass"),
        "accumulation": Column(WHOLE, "", "forward passes of a step"),
        "commit": Column(TEXT, "", "commit of the code"),
        "dirty": Column(FLAG, "", "whether files were edited since"),
        "python": Column(TEXT, "", "version"),
        "packages": Column(MAPPING, "", "versions"),
        "slurm_job_id": Column(TEXT, "", "its job on Slurm"),
        "cores": Column(WHOLE, "", "cores that the process may use"),
        "paths": Column(MAPPING, "", "implementation of each operation"),
        "threads": Column(WHOLE, "", "threads of a process"),
    },
    "metrics.jsonl": {
        "step": Column(WHOLE, "", "the step, from 1"),
        "tokens": Column(WHOLE, "tokens", "tokens trained on so far"),
        "loss": Column(NUMBER, NATS, "training loss of the step; null if not finite"),
        "lr": Column(NUMBER, "", "learning rate of the step"),
        "tokens_per_s": Column(NUMBER, "tokens/s", "speed of the step, all processes together"),
    },
    "analysis/causal.csv": {"layer": _LATER},
    "analysis/causal_docs.parquet": {"layer": _LATER, "n": Column(WHOLE, "tokens", "tokens that enter the sums")},
    **{
        f"analysis/{name}": {
            "loss": Column(NUMBER, unit, f"{what} of the intact model"),
            "loss_swap": Column(NUMBER, unit, f"{what} with both blocks exchanged"),
        }
        for name, unit, what in (
            ("permutation.csv", NATS, "loss on the calibration set"),
            ("permutation_docs.parquet", NATS, "mean nll of the document"),
        )
    },
    **{
        f"analysis/{name}_docs.parquet": {
            column: Column(NUMBER, unit, f"sum over the tokens of the document: {what}")
            for column, (unit, what) in sums.items()
        }
        for name, sums in {
            "pathway": {"weight": ("", "weight"), "weight_abs": ("", "absolute weight")},
            "block_mix": {"alpha": ("", "weight of the newest source"), "beta": ("", "weight of all others")},
            "logitlens": {
                "kl": ("nats", "KL divergence of the lens from the model's own output"),
                "kl_reverse": ("nats", "the same the other way round"),
                "top1": ("", "1 if the likeliest token is the same"),
                "top5": ("", "shared part of the five likeliest tokens"),
                "probe_ce": ("nats", "cross-entropy of the lens against the next token"),
            },
        }.items()
    },
    "analysis/prune.csv": {
        "acc": Column(NUMBER, "share", "acc without the block"),
        "acc_norm": Column(NUMBER, "share", "acc_norm without the block"),
    },
    "analysis/prune_docs.parquet": {"skipped": Column(WHOLE, "", "block that is left out; -1: none")},
    "manifest.json": {
        "contamination": Column(LIST, "", "of each task, below"),
        "dtype": Column(TEXT, "", "type of a token in the shards"),
        "eos_id": Column(WHOLE, "", "token behind each document"),
        "heldout_unigram_entropy": Column(NUMBER, NATS, "entropy of single tokens of the held-out text"),
        "licences": Column(MAPPING, "", "of each origin"),
        "pins": Column(MAPPING, "", "hashes and versions of what the text was made from"),
        "rows": Column(MAPPING, "", "documents left out, and why"),
        "spec": Column(MAPPING, "", "corpus and tokenizer, as config.yaml resolves to them"),
        "splits": Column(MAPPING, "", "of training and held-out text: documents, tokens, origins, shards with hashes"),
        "versions": Column(MAPPING, "", "of the packages that made it"),
        "warnings": Column(LIST, "", "what to know about the text"),
    },
    "prefill.csv": {
        "mode": Column(TEXT, "", "`unchunked`: all positions at once; `chunked`"),
        "tokens": Column(WHOLE, "tokens", "of a prompt"),
        "batch": Column(WHOLE, "", "prompts"),
        "chunk": Column(WHOLE, "tokens", "positions of a chunk"),
        "flops": Column(WHOLE, "FLOPs", "of one prompt, logits of the last position only, by closed form"),
        "kv_bytes": Column(WHOLE, "bytes", "key/value cache of one prompt, by closed form"),
        "seconds": Column(NUMBER, "s", "of the batch, median of the rounds"),
        "seconds_min": Column(NUMBER, "s", "the same, least"),
        "rounds": Column(WHOLE, "", "rounds that were timed"),
        "ratio": Column(NUMBER, "", "seconds over those of Pre-LN of the shape, unchunked; empty without it"),
        "noisy": Column(FLAG, "", "whether quartiles of the ratio are more than 10 % apart"),
        "devices": Column(WHOLE, "", "devices that computed"),
        "device_hours": Column(NUMBER, "h", "seconds / 3600 x devices"),
        "memory": Column(TEXT, "", "what peak_bytes counts"),
        "threads": Column(WHOLE, "", "threads"),
        "machine": Column(TEXT, "", "kind of processor"),
        "load": Column(NUMBER, "", "load of the machine over the last minute"),
        **{name: Column(TEXT, "", "version") for name in ("torch", "triton", "liger_kernel")},
        "commit": Column(TEXT, "", "commit of the code"),
        "date": Column(TEXT, "", "day of the measurement"),
    },
    "preflight.csv": {
        "shapes": Column(TEXT, "", "shapes of the study that the case stands for"),
        "n_blocks": Column(WHOLE, "", "depth of the case"),
        "sequences": Column(WHOLE, "", "windows of the step"),
        "sequence_length": Column(WHOLE, "tokens", "of a window"),
        "n_params": Column(WHOLE, "parameters", "of the case"),
        "seconds": Column(NUMBER, "s", "time of the second step"),
        "threads": Column(WHOLE, "", "threads"),
        "commit": Column(TEXT, "", "commit of the code"),
    },
    "tables/designs.csv": {
        "rule": Column(TEXT, "", "update rule, in the words of the design's file"),
        "readout": Column(TEXT, "", "what the norm of the head reads"),
        "source": Column(TEXT, "", "where the design is from"),
    },
    **{
        f"tables/shapes_{suite}.csv": {"tokens": Column(WHOLE, "tokens", "tokens of a run")}
        for suite in ("main", "backbone", "ladder", "large")
    },
    "tables/suites.csv": {
        "fixed": Column(TEXT, "", "what its shapes have in common, as nearly as whole widths allow"),
        "warmup_steps": Column(WHOLE, "", "steps in which the rate rises"),
        "tokens": Column(WHOLE, "tokens", "tokens of a run"),
        "lr": Column(TEXT, "", "peak learning rates"),
    },
    "tables/learning_rates.csv": {
        "best_lr": Column(TEXT, "", "best rates of the sweep, of all shapes"),
        "n_shapes": Column(WHOLE, "", "shapes of the sweep with a loss"),
        "published": Column(NUMBER, "", "the paper's rate, in the study `paper`"),
    },
    "tables/claims.csv": {
        "id": Column(TEXT, "", "row of workflow/reference/claims.csv"),
        "section": Column(TEXT, "", "section of the paper"),
        "claim": Column(TEXT, "", "the claim, in our words"),
        "paper": Column(TEXT, "", "the paper's numbers"),
        "metric": Column(TEXT, "", "how it is measured; empty of a contradiction"),
        "allowed": Column(TEXT, "", "what the claim allows"),
        "ours": Column(NUMBER, "column `unit`", "what we measure"),
        "verdict": Column(TEXT, "", "`agrees`, `disagrees`, `undecided`, `not run` or `contradiction`"),
    },
    "figures/causal_maps.csv": {"layer": _LATER},
    "figures/angular_distance.csv": {"block": Column(TEXT, "", "`a`: one rate for all; `b`: each design's own")},
    "figures/layer_perturbation.csv": {
        "layer": _LATER,
        "part": Column(TEXT, "", "`shapes`, `thresholds` or `maps`"),
    },
    "figures/industry_shapes.csv": {
        "kind": Column(TEXT, "", "`published` or `ours`"),
        "name": Column(TEXT, "", "name of the model, or of the design"),
        "aspect_low": Column(NUMBER, "", "lower end of the preferred aspect ratios"),
        "aspect_high": Column(NUMBER, "", "upper end"),
        "open_end": Column(TEXT, "", "`deep-narrow`, `shallow-wide`: ends beyond which no shape has a loss"),
        "source": Column(TEXT, "", "where the numbers are from, or the run"),
    },
    "figures/prefill_cost.csv": {"chunk": Column(NUMBER, "tokens", "positions of a chunk")},
    "figures/stream_transport.csv": {
        "part": Column(TEXT, "", "`shapes`: whole product over shapes; `depth`: over sub-layers at one depth"),
        "published_lo": Column(NUMBER, "as effective_rank", "lower end of the paper's range"),
        "published_hi": Column(NUMBER, "as effective_rank", "upper end"),
    },
}

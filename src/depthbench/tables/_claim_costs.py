"""What claims about costs are measured by: closed forms of the shapes (`cost`), which need no trained model."""

import pandas as pd

from depthbench import cost
from depthbench.artifacts import run_id
from depthbench.model.config import ModelConfig
from depthbench.tables._claim_runs import Evidence, Measured, one

TOKENS = 4096  # of the paper's prefill


def prefill_least(evidence: Evidence, runs: pd.DataFrame) -> Measured:
    """Return the FLOPs of the cheapest prefill of the runs' models [TFLOP/sequence]."""
    return _exact(min(_prefills(evidence, runs)))


def prefill_most(evidence: Evidence, runs: pd.DataFrame) -> Measured:
    """Return the FLOPs of the dearest prefill of the runs' models [TFLOP/sequence]."""
    return _exact(max(_prefills(evidence, runs)))


def kv_cache_ratio(evidence: Evidence, first: pd.DataFrame, second: pd.DataFrame) -> Measured:
    """Return the key/value cache of the first over that of the second."""
    (one_model,), (other,) = (_models(evidence, one(runs).to_frame().T) for runs in (first, second))
    return _exact(cost.kv_cache_bytes(one_model, TOKENS) / cost.kv_cache_bytes(other, TOKENS))


def _prefills(evidence: Evidence, runs: pd.DataFrame) -> list[float]:
    return [cost.forward_flops(model, TOKENS, last_only=True) / 1e12 for model in _models(evidence, runs)]


def _models(evidence: Evidence, runs: pd.DataFrame) -> list[ModelConfig]:
    wanted = set(runs["run_id"])
    paths = [path for path in evidence.spec.runs if run_id(evidence.spec, path) in wanted]
    return [ModelConfig.read(evidence.spec.plan(path)["model"]) for path in paths]


def _exact(value: float) -> Measured:
    return Measured(value, value, value)

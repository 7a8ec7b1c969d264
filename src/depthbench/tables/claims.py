"""What the paper claims (arXiv 2609.32534) against what we measure, claim by claim: `workflow/reference/claims.csv`.

agrees: our 95 % interval lies within what the claim allows; disagrees: it lies wholly outside; undecided: it reaches
over the border, or a run diverged; not run: the study has no such shape, or the run or its analysis is missing.
A claim that names no shape of the paper's is put to the study's own shapes. contradiction: the paper's text and
project page, or two of its figures, do not say the same; nothing of ours is compared.

Values are those of seed 0. Intervals are over documents: noise of evaluation. Those of slopes and differences of losses
also hold the noise of training where the study repeats seeds at the scale; those of layer analyses never do.
"""

from collections.abc import Callable
from typing import Any

import pandas as pd

from depthbench import reference
from depthbench.artifacts import ArtifactSpec
from depthbench.errors import UserError
from depthbench.tables import _claim_costs, _claim_layers, _claim_losses
from depthbench.tables._claim_runs import Evidence, Measured, Unmeasured

FILES = (
    *("validation.csv", "validation_docs.parquet", "analysis/causal_summary.csv"),
    *("analysis/permutation_summary.csv", "analysis/block_mix_summary.csv", "analysis/transport.csv", "claims.csv"),
)
METRICS: dict[str, tuple[Callable[..., Measured], str]] = {
    "slope": (_claim_losses.slope, "nats/token/doubling"),
    "loss_difference": (_claim_losses.loss_difference, "nats/token"),
    "best_aspect": (_claim_losses.best_aspect, "d/L"),
    "diverged": (_claim_losses.diverged, ""),
    "causal_share": (_claim_layers.causal_share, "share of pairs"),
    "permutation_share": (_claim_layers.permutation_share, "share of pairs"),
    "effective_rank": (_claim_layers.effective_rank, "streams"),
    "least_rank": (_claim_layers.least_rank, "streams"),
    "most_rank": (_claim_layers.most_rank, "streams"),
    "dead_layers": (_claim_layers.dead_layers, "layers"),
    "prefill_least": (_claim_costs.prefill_least, "TFLOP/sequence"),
    "prefill_most": (_claim_costs.prefill_most, "TFLOP/sequence"),
    "kv_cache_ratio": (_claim_costs.kv_cache_ratio, ""),
}
COLUMNS = ["id", "section", "claim", "paper", "metric", "unit", "allowed", "ours", "lo", "hi", "verdict", "note"]
PRINTED = {
    "section": ("Section", "{}"),
    "claim": ("Claim", "{}"),
    "paper": ("Paper", "{}"),
    "unit": ("Unit", "{}"),
    "allowed": ("Allowed", "{}"),
    "ours": ("Ours", "{:.4g}"),
    "lo": ("2.5 %", "{:.4g}"),
    "hi": ("97.5 %", "{:.4g}"),
    "verdict": ("Verdict", "{}"),
    "note": ("Note", "{}"),
}


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per claim, in the order of the file.

    Raises:
        UserError: E-REFERENCE for a claim that cannot be read, E-RUN for runs that cannot be compared.
    """
    evidence = Evidence.of(frames, spec)
    rows = [judge(claim, evidence) for claim in frames["claims"].to_dict("records")]
    return pd.DataFrame(rows, columns=COLUMNS)


def judge(claim: dict[Any, Any], evidence: Evidence) -> dict[str, Any]:
    """Return the row of one claim."""
    row = {key: claim[key] for key in ("id", "section", "claim", "paper", "metric")}
    if not claim["metric"]:
        return row | {"verdict": "contradiction"}
    if claim["metric"] not in METRICS:
        known = ", ".join(METRICS)
        raise UserError("E-REFERENCE", f"claims.csv: {claim['id']}: no metric {claim['metric']!r}; known: {known}")
    measure, unit = METRICS[claim["metric"]]
    row |= {"unit": unit, "allowed": f"{claim['relation']} {claim['value']}"}
    try:
        found = measure(evidence, *evidence.select(claim["selector"]))
    except Unmeasured as reason:
        return row | {"verdict": reason.verdict, "note": str(reason)}
    ours = {"ours": found.value, "lo": found.lo, "hi": found.hi, "note": found.note}
    return row | ours | {"verdict": verdict(claim["relation"], claim["value"], found)}


def verdict(relation: str, value: str, found: Measured) -> str:
    """Return agrees, disagrees or undecided; an end of `<` and `>` is not allowed itself, that of a range is."""
    low, high = reference.bounds(relation, value)
    # An interval that is not known is on no side.
    outside = found.hi < low or high < found.lo
    inside = low <= found.lo and found.hi <= high
    if relation in ("<", ">"):
        inside = low < found.lo and found.hi < high
    return "agrees" if inside else "disagrees" if outside else "undecided"

"""What claims about layer analyses are measured by.

Of several shapes the value is the mean, the interval goes from the lowest to the highest end of any; the note names
those that have no value. Of a difference of two runs it goes from lo - hi to hi - lo of the two, which is wider than
95 %: analyses keep no common resamples.
"""

from collections.abc import Callable

import pandas as pd

from depthbench.tables._claim_runs import Evidence, Measured, Unmeasured, paired, present
from depthbench.tables._measured import shape_names

Values = Callable[[pd.DataFrame], pd.DataFrame]  # rows of an analysis -> value, lo and hi of those that count


def causal_share(evidence: Evidence, first: pd.DataFrame, second: pd.DataFrame | None = None) -> Measured:
    """Return the share of late pairs above the paper's causal threshold, blocks left out by the authors' rule.

    Where that differs from ours (AttnRes, MoDA) the numbers of the paper were measured by it; of a difference the note
    tells what ours gives.
    """
    table = evidence.frames["causal_summary"]
    theirs = table["skip_mode"] == "released"
    without = ~table["run_id"].isin(table["run_id"][theirs])
    found = _compared(table[theirs | without], _at_paper, first, second)
    if second is None or not table["run_id"][theirs].isin([*first["run_id"], *second["run_id"]]).any():
        return found
    # Against a design of which both rules say the same, the rule itself may make the difference.
    try:
        ours = _compared(table[~theirs], _at_paper, first, second)
        by_ours = f"blocks left out by our rule: {ours.value:.3g} [{ours.lo:.3g}, {ours.hi:.3g}]"
    except Unmeasured as reason:
        by_ours = f"blocks left out by our rule: {reason}"
    return found._replace(note="; ".join(filter(None, (found.note, by_ours))))


def permutation_share(evidence: Evidence, first: pd.DataFrame, second: pd.DataFrame | None = None) -> Measured:
    """Return the share of late pairs above the paper's permutation threshold."""
    return _compared(evidence.frames["permutation_summary"], _at_paper, first, second)


def effective_rank(evidence: Evidence, first: pd.DataFrame, second: pd.DataFrame | None = None) -> Measured:
    """Return the effective rank of the transport through all sub-layers."""
    return _compared(evidence.frames["transport"], _of_all_sublayers, first, second)


def least_rank(evidence: Evidence, runs: pd.DataFrame) -> Measured:
    """Return the lowest effective rank of all shapes."""
    own = _at_every(evidence.frames["transport"], _of_all_sublayers, runs)
    return Measured(own["value"].min(), own["lo"].min(skipna=False), own["hi"].min(skipna=False))


def most_rank(evidence: Evidence, runs: pd.DataFrame) -> Measured:
    """Return the highest effective rank of all shapes."""
    own = _at_every(evidence.frames["transport"], _of_all_sublayers, runs)
    return Measured(own["value"].max(), own["lo"].max(skipna=False), own["hi"].max(skipna=False))


def dead_layers(evidence: Evidence, runs: pd.DataFrame) -> Measured:
    """Return how many leading layers do not read the running sum of Block AttnRes.

    A count of sub-layers of this sample. The paper does not say whether the first, which reads the embedding alone,
    belongs to them: the interval is from half of the count without it to half of the count with it.
    """
    return _compared(evidence.frames["block_mix_summary"], _dead, runs)


def _at_paper(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows[rows["is_paper"].fillna(False).astype("bool")]
    return rows[["fraction", "lo", "hi"]].set_axis(["value", "lo", "hi"], axis=1)


def _of_all_sublayers(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows[rows["n_sublayers"] == 2 * rows["n_layers"]]
    columns = ["effective_rank", "effective_rank_lo", "effective_rank_hi"]
    return rows[columns].set_axis(["value", "lo", "hi"], axis=1)


def _dead(rows: pd.DataFrame) -> pd.DataFrame:
    count = rows["dead_sublayers"].astype("float64")
    return pd.DataFrame({"value": count / 2, "lo": count // 2, "hi": (count + 1) // 2})


def _compared(table: pd.DataFrame, values: Values, first: pd.DataFrame, second: pd.DataFrame | None = None) -> Measured:
    asked = present(first)
    own = _values(table, values, asked)
    if second is None:
        note = _left_out(asked, own)
        return Measured(own["value"].mean(), own["lo"].min(skipna=False), own["hi"].max(skipna=False), note)
    pairs = paired(own, _values(table, values, present(second)))
    lo, hi = pairs["lo"] - pairs["hi_ref"], pairs["hi"] - pairs["lo_ref"]
    difference = (pairs["value"] - pairs["value_ref"]).mean()
    return Measured(difference, lo.mean(skipna=False), hi.mean(skipna=False), _left_out(asked, pairs))


def _left_out(asked: pd.DataFrame, used: pd.DataFrame) -> str:
    """Return which of the shapes of a mean have no value."""
    without = asked[~asked["run_id"].isin(used["run_id"])]
    return f"without {', '.join(shape_names(without))}" if len(without) else ""


def _at_every(table: pd.DataFrame, values: Values, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the values of all runs; raises Unmeasured if one has none."""
    asked = present(runs)
    own = _values(table, values, asked)
    if lacking := _left_out(asked, own):
        raise Unmeasured("not run", lacking)
    return own


def _values(table: pd.DataFrame, values: Values, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with value, lo and hi; those whose analysis has none are left out, if others have."""
    rows = table.merge(runs[["run_id", "n_layers"]], on="run_id")
    found = runs.merge(rows[["run_id"]].join(values(rows), how="inner"), on="run_id").dropna(subset=["value"])
    if found.empty:
        raise Unmeasured("not run", _words(rows))
    return found


def _words(rows: pd.DataFrame) -> str:
    states = [state for state in rows["status"].unique() if state != "ok"]
    return f"analysis: {', '.join(states) or 'no value'}".replace("_", " ")

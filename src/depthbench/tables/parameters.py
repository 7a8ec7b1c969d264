"""What each design adds to Pre-LN of the same shape, and how far its size is from the budget (paper Table 6).

    overhead = 100 own / base,  own = n - base,  base = Pre-LN of the same shape
    difference = 100 (n - budget) / budget,  budget = Pre-LN of the reference shape

n, base and budget are true counts, norm gains included; `table_params` is the count of the paper's other tables:
matrices alone, without what a design has of its own. The reference shape of each suite is that of its table of
shapes; the suite `backbone` compares sizes without the embeddings.
"""

from dataclasses import replace

import pandas as pd

from depthbench.artifacts import ArtifactSpec, run_id, runs_frame
from depthbench.model.config import ModelConfig
from depthbench.tables._measured import SHAPE_SUITES
from depthbench.tables._shapes import REFERENCE, sizes
from depthbench.tables.suites import by_place

FILES = ()
MODEL = ["design", "scale", "n_layers", "d_model"]
COLUMNS = [
    *("suite", "scale", "design", "label", "n_layers", "d_model", "n_params", "table_params", "base_params"),
    *("own_params", "overhead_pct", "budget_diff_pct"),
]
PRINTED = {
    "suite": ("Suite", "{}"),
    "scale": ("Scale", "{}"),
    "label": ("Design", "{}"),
    "n_layers": ("L", "{}"),
    "d_model": ("d", "{}"),
    "n_params": ("Parameters", "{:,}"),
    "table_params": ("Matrices", "{:,}"),
    "own_params": ("Own", "{:,}"),
    "overhead_pct": ("Overhead [%]", "{:.4f}"),
    "budget_diff_pct": ("Budget diff. [%]", "{:+.2f}"),
}


def build(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> pd.DataFrame:
    """Return one row per suite, scale, design and shape.

    Of other suites than those that compare shapes there are only the models that stand in no suite before them.
    """
    table = by_place(runs_frame(spec)).drop_duplicates(["suite", *MODEL])
    table = table[table["suite"].isin(SHAPE_SUITES) | ~table.duplicated(MODEL)]
    budgets = {suite: _budgets(spec, suite) for suite in table["suite"].unique()}
    models = {run_id(spec, path): ModelConfig.read(spec.plan(path)["model"]) for path in spec.runs}
    rows = []
    for row in table.to_dict("records"):
        model, suite = models[row["run_id"]], row["suite"]
        n, base = with_base(model)
        budget = budgets[suite][row["scale"]]
        above = n - embeddings(suite, model.vocab_size, model.d_model) - budget
        rows.append(
            row
            | {"n_params": n, "table_params": model.table_params(), "base_params": base, "own_params": n - base}
            | {"overhead_pct": 100 * (n - base) / base, "budget_diff_pct": 100 * above / budget}
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def with_base(model: ModelConfig) -> tuple[int, int]:
    """Return the parameters of a model, and of Pre-LN of its shape."""
    return model.count_params(), replace(model, design="preln").count_params()


def embeddings(suite: str, vocab_size: int, d_model: int) -> int:
    """Return the parameters that the budget of a suite leaves out."""
    return 2 * vocab_size * d_model if suite == "backbone" else 0


def _budgets(spec: ArtifactSpec, suite: str) -> dict[str, int]:
    """Return the budget of a suite at each of its scales."""
    own = {path: suites for path, suites in spec.runs.items() if suite in suites}
    shapes = sizes(replace(spec, runs=own, missing=()), REFERENCE.get(suite))
    rows = shapes[shapes["is_reference"]].to_dict("records")
    return {row["scale"]: row["true_params"] - embeddings(suite, row["vocab_size"], row["d_model"]) for row in rows}

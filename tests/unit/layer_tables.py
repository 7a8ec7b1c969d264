"""Tables of layer analyses with values in closed form, as `analyze` writes them."""

import math

import pandas as pd

from depthbench.readers import COLUMNS

LAYERS = tuple(name for name in COLUMNS if name.startswith("analysis/"))
RELEASED = ("attnres_full", "attnres_block", "moda")
TAUS = [i / 100 for i in range(101)]


def pairs(n_layers):
    return [(a, b) for a in range(n_layers) for b in range(a + 1, n_layers)]


def causal_score(skipped, layer):
    return (skipped + 1) / (layer + 1)


def permutation_score(n_layers, a, b):
    return (b - a) / (2 * n_layers)


def weight(design, source, target):
    """Pre-LN reads a plain sum, HC one with signs, AttnRes a mean."""
    return {"preln": 1.0, "hc": (-1.0) ** (target - source) / (target - source)}.get(design, 1 / (target + 1))


def share(scores, tau):
    return sum(score > tau for score in scores) / len(scores)


def tables(design, n_layers):
    """The rows of each analysis by its file's name, or the status of one without rows."""
    L, modes = n_layers, ("mask", "released") if design in RELEASED else ("mask",)
    late = [pair for pair in pairs(L) if pair[0] >= math.ceil(L / 4)]
    found = {
        "angular": [{"layer": l, "n": n, "distance": n / (2 * L)} for l in range(L) for n in range(1, L - l + 1)],
        "logitlens": [{"layer": l, "kl": 4 * (1 - l / L), "top1": l / L} for l in range(L + 1)],
        "pathway": [
            {"source": i, "target": k, "weight": weight(design, i, k), "weight_abs": abs(weight(design, i, k))}
            for k in range(2 * L + 1)
            for i in range(-1, k)
        ],
        "causal": [
            {"skip_mode": mode, "skipped": s, "layer": l, "score": causal_score(s, l) * (1 + (mode == "released"))}
            for mode in modes
            for s, l in pairs(L)
        ],
        "permutation": [
            {"layer_a": a, "layer_b": b, "score": permutation_score(L, a, b), "signed": permutation_score(L, a, b)}
            for a, b in pairs(L)
        ],
        "prune": [
            {"skip_mode": mode, "skipped": s, "drop": drop, "drop_raw": drop, "drop_lo": drop - 1, "drop_hi": drop + 1}
            | {"acc_norm_full": 0.5, "chance": 0.25, "n_items": 16}
            for i, mode in enumerate(modes)
            for s in range(L)
            for drop in [float(s * (1 + i))]
        ],
        "causal_summary": [
            {"skip_mode": mode} | row
            for i, mode in enumerate(modes)
            for row in curve([causal_score(*pair) * (1 + i) for pair in late], 0.45)
        ],
        "permutation_summary": curve([permutation_score(L, *pair) for pair in late], 0.15),
        "block_mix": "not_applicable",
        "block_mix_summary": "not_applicable",
        "transport": "not_applicable",
    }
    if design == "attnres_block":
        found["block_mix"] = [
            {"sublayer": k, "is_border": k % 4 == 0, "n_sources": 1 + -(-k // 4)}
            | ({"alpha": 1 / (k + 1), "beta": k / (k + 1)} if k else {"beta": 1.0})
            for k in range(2 * L)
        ]
        found["block_mix_summary"] = [{"dead_sublayers": L // 2, "dead_layers": L // 4}]
    if design in ("hc", "mhc"):
        found["transport"] = [
            {"n_sublayers": k, "effective_rank": 1 + 3 / k, "effective_rank_lo": 1.0, "effective_rank_hi": 1 + 4 / k}
            | {"cos_rows": 0.5, "cos_cols": 1 - 1 / k, "dist_uniform": 1.0}
            | {f"sigma_{i}": float(k) ** (1 - i) for i in range(1, 5)}
            for k in range(1, 2 * L + 1)
        ]
    return {name: rows or "too_shallow" for name, rows in found.items()}


def curve(scores, paper):
    """The share of late pairs above each threshold; of no pair there is none."""
    none = {"fraction": None, "reason": "too_shallow", "n_pairs": 0}
    return [
        {"tau": tau, "n_undefined": 0, "is_paper": tau == paper}
        | ({"fraction": share(scores, tau), "n_pairs": len(scores), "reason": ""} if scores else none)
        for tau in TAUS
    ]


def write(folder, run_id, design, n_layers, status="ok", calib_id="c0ffee", **changes):
    """Write all tables of a run below its folder; `changes` are rows of some of them, or a status."""
    (folder / "analysis").mkdir()
    for name, rows in ({**tables(design, n_layers), **changes}).items():
        state = rows if isinstance(rows, str) else "ok"
        keys = {
            "run_id": run_id,
            "data_id": "12e5",
            "calib_id": calib_id,
            "status": state if status == "ok" else status,
        }
        made = [keys] if isinstance(rows, str) or status != "ok" else [keys | row for row in rows]
        frame = pd.DataFrame(made, columns=list(COLUMNS[f"analysis/{name}.csv"]))
        if "lo" in frame and "fraction" in frame:
            frame["lo"], frame["hi"] = frame["fraction"], frame["fraction"]
        frame.to_csv(folder / "analysis" / f"{name}.csv", index=False)

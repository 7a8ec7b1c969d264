"""The rule graph as a picture, docs/rules.svg: `make picture`, which needs graphviz.

Reads the graph that `snakemake --rulegraph` prints and writes it at the level of kinds: all figures are one node, all
tables another, the rules of single files of text are part of `fetch` and `prepare`. The report, which is no rule,
stands behind what it shows.
"""

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "depthbench"
PARTS = {"fetch_file": "fetch", "prepare_file": "prepare", "import_run": "import"}
LEFT_OUT = ("all",)
# kind -> (what it makes, colour)
KINDS = {
    "fetch": ("text and tasks", "#e8e8e8"),
    "prepare": ("tokenizer, shards", "#e8e8e8"),
    "preflight": ("two steps a case", "#f6e3c5"),
    "train": ("a job a model", "#f6e3c5"),
    "import": ("released checkpoints", "#f6e3c5"),
    "evaluate": ("held-out loss, tasks", "#d5e8d4"),
    "analyze": ("what each layer does", "#d5e8d4"),
    "prefill": ("cost of a prompt", "#d5e8d4"),
    "export": ("a model for others", "#dbe5f5"),
    "tables": ("{} rules, by name", "#dbe5f5"),
    "figures": ("{} rules, by name", "#dbe5f5"),
    "report": ("one HTML file", "#ead9ee"),
}


def main() -> None:
    """Write the graph of kinds as DOT; an unknown rule is an error, so that the picture cannot miss one."""
    text = sys.stdin.read()
    rules = dict(re.findall(r'(\d+)\[label = "(\w+)"', text))
    kind_of = dict(PARTS)
    modules = {kind: [path.stem for path in (PACKAGE / kind).glob("[a-z]*.py")] for kind in ("tables", "figures")}
    for kind, names in modules.items():
        kind_of |= dict.fromkeys(names, kind)
    kinds = {number: kind_of.get(rule, rule) for number, rule in rules.items() if rule not in LEFT_OUT}
    edges = {(kinds[a], kinds[b]) for a, b in re.findall(r"(\d+) -> (\d+)", text) if a in kinds and b in kinds}
    edges |= {("tables", "report"), ("figures", "report")}
    if strangers := set(kinds.values()) ^ (set(KINDS) - {"report"}):
        raise SystemExit(f"rules.py: {', '.join(sorted(strangers))}: a rule without a kind, or a kind without a rule")
    print("digraph rules {")
    print('  graph [rankdir=LR, bgcolor="white", pad=0.1, nodesep=0.2, ranksep=0.32]')
    print('  node [shape=box, style="rounded,filled", color="#777777", fontname="Helvetica", margin="0.09,0.06"]')
    print('  edge [color="#777777", arrowsize=0.6]')
    for kind, (words, colour) in KINDS.items():
        words = words.format(len(modules.get(kind, [])))
        label = f'<font point-size="12"><b>{kind}</b></font><br/><font point-size="10">{words}</font>'
        print(f'  {kind} [label=<{label}>, fillcolor="{colour}"]')
    for a, b in sorted(edges, key=lambda edge: [list(KINDS).index(kind) for kind in edge]):
        if a != b:
            print(f"  {a} -> {b}")
    print("}")


if __name__ == "__main__":
    main()

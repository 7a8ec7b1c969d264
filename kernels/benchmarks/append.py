"""Appends lines of `depthbench bench train | cpu` to results.csv: those of a time or ratio beside a baseline.

Usage: depthbench bench cpu | python kernels/benchmarks/append.py
"""

import csv
import json
import sys
from pathlib import Path
from typing import TextIO

RESULTS = Path(__file__).with_name("results.csv")
DIGITS = {"median_s": 5, "baseline_median_s": 5, "ratio": 3, "ratio_q25": 3, "ratio_q75": 3}


def append(lines: TextIO, table: Path) -> None:
    """Add a row for each line, as it comes; a value that a line does not have stays empty."""
    with table.open(newline="") as file:
        columns = next(csv.reader(file))
    for text in lines:
        line = json.loads(text)
        if line.get("device", "cpu").startswith("cuda"):
            raise SystemExit(f"{line['case']}: a line of a GPU; the table is of CPUs, keep the lines as they are")
        row = {key: line.get(key, "") for key in columns}
        row |= {key: f"{line[key]:.{digits}f}" for key, digits in DIGITS.items() if key in line}
        with table.open("a", newline="") as file:
            csv.DictWriter(file, columns, lineterminator="\n").writerow(row)
        low, high = row["ratio_q25"], row["ratio_q75"]
        told = f"{row['ratio']} times {row['baseline']}" + (f" ({low} to {high})" if low else "")
        print(f"{row['case']}, L{row['n_layers']} d{row['d_model']}: {told}", flush=True)


if __name__ == "__main__":
    append(sys.stdin, RESULTS)

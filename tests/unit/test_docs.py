import re

import pandas as pd
from synthetic import TINY, Study, path

from depthbench import docs, tables
from depthbench.tables import losses


def test_results_are_those_of_the_table_losses_old_and_new(tmp_path):
    """The README's table is the same without the columns that came later."""
    study = Study(tmp_path, names=losses.FILES)
    for i, shape in enumerate(TINY):
        study.add(path("preln", shape), loss=4.5 + i / 8)
    out = tmp_path / "losses.csv"
    tables.write("losses", study.files, study.spec(), out)
    text = docs.results(out)
    assert "| design | L = 4, d = 52 | L = 8, d = 40 | L = 16, d = 28 |" in text
    assert "| Pre-LN | 4.500 [4.500, 4.500] | 4.625 [4.625, 4.625] | 4.750 [4.750, 4.750] |" in text
    assert re.search(r"after 102,400 tokens \(commit aaaaaaa\)", text)
    old = tmp_path / "old.csv"
    pd.read_csv(out, dtype="str").drop(columns="overhead_pct").to_csv(old, index=False)
    assert docs.results(old) == text

import dataclasses
from pathlib import Path

import numpy as np
from scipy.stats import binom
from synthetic import LABELS, Study, path

from depthbench.artifacts import ArtifactSpec, read
from depthbench.tables import moda_norms

FILES = ["validation.csv", "validation_docs.parquet"]
REPORTED = Path(__file__).parents[3] / "workflow" / "reference" / "paper_reported.csv"
SHAPE = (24, 1024)


def test_table_5(tmp_path):
    """The paper's losses as ours: Pre-LN first, then Post-LN by rate; diverged and missing runs have no numbers."""
    study = Study(tmp_path, "paper")
    study.add(path("moda_postln", SHAPE, "1e-3", scale="400m"), ["moda_norms"], loss=2.912, spread=0.1)
    study.add(path("moda_postln", SHAPE, "2e-3", scale="400m"), ["moda_norms"], loss=3.842)
    study.add(path("moda_postln", SHAPE, "5e-3", scale="400m"), ["moda_norms"], status="diverged")
    study.add(path("moda_postln", SHAPE, "1e-2", scale="400m"), ["moda_norms"], status="missing")
    study.add(path("moda", SHAPE, "2e-3", scale="400m"), ["main"], loss=2.764)
    labels = LABELS | {"moda_postln": ("MoDA (Post-LN)", "cross-layer")}
    spec = ArtifactSpec.from_json(study.json(files=FILES, labels=labels, bootstrap=4000))
    table = moda_norms.build(read(study.only(*FILES), spec), spec)
    assert table[["label", "n_layers", "d_model", "lr", "status"]].to_numpy().tolist() == [
        ["MoDA", 24, 1024, "2e-3", "ok"],
        ["MoDA (Post-LN)", 24, 1024, "1e-3", "ok"],
        ["MoDA (Post-LN)", 24, 1024, "2e-3", "ok"],
        ["MoDA (Post-LN)", 24, 1024, "5e-3", "diverged"],
        ["MoDA (Post-LN)", 24, 1024, "1e-2", "missing"],
    ]
    np.testing.assert_allclose(table["loss"], [2.764, 2.912, 3.842, np.nan, np.nan], rtol=1e-12)
    # Of 100 documents at 2.812 or 3.012 a resample has Binomial(100, 1/2) at the larger.
    exact = 2.812 + 0.2 * binom.ppf([0.025, 0.975], 100, 0.5) / 100
    np.testing.assert_allclose(table.loc[1, ["loss_lo", "loss_hi"]].astype(float), exact, atol=0.0021)
    assert table.loc[3:, ["loss", "loss_lo", "loss_hi"]].isna().all(axis=None)
    assert table["published"].isna().all()

    spec = dataclasses.replace(spec, files=(*FILES, REPORTED.name))
    beside = moda_norms.build(read([*study.only(*FILES), REPORTED], spec), spec)
    np.testing.assert_allclose(beside["published"], [2.764, 2.912, 3.842, np.nan, np.nan])
    # Their rule counts one token more of each document of 51.
    np.testing.assert_allclose(beside.loc[1, "published_difference"], 2.912 * (50 / 51 - 1), rtol=1e-9)

"""A design is added by its file and its line in the configuration: the line of the page, and the micro study."""

import csv
import re

ARTIFACTS = (
    *("designs", "parameters", "losses", "late_layers"),
    *("validation_loss", "angular_distance", "pathways"),
)


def test_denseformer_is_in_tables_and_figures(checkout):
    page = (checkout.folder / "docs" / "add-a-design.md").read_text()
    line = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1]
    checkout.edit("config.yaml", "\nrecipes:", f"{line}\nrecipes:")
    old = "main: {scale: u, designs: [preln, attnres_full], "
    checkout.edit("config.yaml", old, old.replace("attnres_full", "denseformer"))
    _, trained = checkout.plan("--config", "study=micro")
    added = sorted(path for path in trained if path.startswith("denseformer/"))
    assert added == ["denseformer/u-d16-l2/lr1e-2-s0", "denseformer/u-d16-l4/lr1e-2-s0"]
    checkout.snakemake("-c2", "--config", "study=micro", "--", *ARTIFACTS)
    shown = {}
    for path in (checkout.folder / "results" / "micro").glob("*/*.csv"):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        if "design" in rows[0]:
            shown[path.name] = {row.get("n_layers", "2 and 4") for row in rows if row["design"] == "denseformer"}
    assert set(shown) == {f"{name}.csv" for name in ARTIFACTS}
    at_one_depth = {"pathways.csv"}
    for name, depths in shown.items():
        assert depths in ([{"4"}] if name in at_one_depth else [{"2", "4"}, {"2 and 4"}]), (name, depths)

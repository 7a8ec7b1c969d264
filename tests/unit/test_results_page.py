import csv
import shutil

import pytest
from synthetic import TINY, Study, path

from depthbench import results_page, tables
from depthbench.errors import UserError
from depthbench.tables import depth_trend, losses, lr_audit, paired, run_costs, seed_noise

MODULES = {
    module.__name__.rpartition(".")[2]: module
    for module in (losses, run_costs, lr_audit, depth_trend, paired, seed_noise)
}


@pytest.fixture
def root(made, tmp_path):
    return shutil.copytree(made, tmp_path / "checkout")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study of which one run is missing and one diverged; the best rate of HC is the largest of its grid."""
    root = tmp_path_factory.mktemp("mini")
    study = Study(root, "mini", names=tuple({name for module in MODULES.values() for name in module.FILES}))
    for i, shape in enumerate(TINY):
        study.add(path("preln", shape), ["main", "seeds"], loss=4.5 + i / 8)
        study.add(path("preln", shape, seed=1), ["seeds"], loss=4.53125 + i / 8)
        study.add(path("hc", shape), ["main", "sweep"], loss=4.25, status="diverged" if i == 2 else "ok")
    study.add(path("hc", TINY[0], lr="5e-3"), ["sweep"], loss=4.375)
    study.add(path("keel", TINY[0]), status="missing")
    for name, module in MODULES.items():
        files = study.only(*(file.rpartition("/")[2] for file in module.FILES))
        out = root / "results/mini/tables" / f"{name}.csv"
        tables.write(name, files, study.spec(name=name, files=module.FILES), out)
    figures = root / "results/mini/figures"
    figures.mkdir()
    (figures / "validation_loss.png").write_bytes(b"a picture")
    return root


def test_the_page_is_what_the_tables_say(root):
    (root / "docs/mini").mkdir(parents=True)
    (root / "docs/mini/old.png").write_bytes(b"")
    text = results_page.write(root).read_text()
    assert "snakemake -c2 --config study=mini" in text
    assert "10 of 11 runs on cpu: x86_64, 1 thread a run; commit aaaaaaa (10 runs)." in text
    assert "sum up to 0.02 hours" in text  # 10 runs of 8.5 s each
    assert "Missing: KEEL L4 d52 at 1e-2 seed 0." in text
    assert "Diverged: HC L16 d28 at 1e-2 seed 0." in text
    assert "| design | L = 4, d = 52 | L = 8, d = 40 | L = 16, d = 28 |" in text
    assert "| Pre-LN | 4.500 [4.500, 4.500] (2); 4.531 [4.531, 4.531] |" in text
    assert "| HC | 4.250 [4.250, 4.250] (1) | 4.250 [4.250, 4.250] (1) | diverged |\n" in text
    assert "| KEEL | missing | - | - |" in text
    # two seeds 1/32 apart in each of three cells: sd = 1/32 / sqrt(2), t_0.975(3) = 3.182
    assert "the standard deviation at scale t is 0.0221 nats/token (pooled, 3 degrees of freedom)" in text
    assert "is 0.0995 between two single runs, 0.0574 between two means over three seeds" in text
    assert "| HC | -0.250 [-0.250, -0.250] | -0.375 [-0.375, -0.375] | run diverged |\n" in text
    # 4.375 at 5e-3
    assert (
        "| HC | L = 4 | 5e-3, 1e-2 | 1e-2 | 0.0000 | 1e-2 | at the high edge: no optimum | 0.1250 | yes | - |" in text
    )
    for seed in range(2):
        assert f"| Pre-LN | {seed} | +0.1250 [+0.1250, +0.1250] | L4 d52 | 100% | - |" in text
    assert "| HC | 0 | +0.0000 [+0.0000, +0.0000] | L4 d52 | 100% | L16 d28 diverged |" in text
    assert "The table `late_layers` is not there." in text
    assert "The table `claims` is not there." in text
    assert "after 102,400 tokens" in text
    assert "![validation loss](mini/validation_loss.png)" in text
    shown = {"validation_loss.png", *(f"{name}.csv" for name in MODULES)}
    assert {file.name for file in (root / "docs/mini").iterdir()} == shown


def test_it_is_the_same_page_each_time(root):
    first = results_page.write(root).read_bytes()
    assert results_page.write(root).read_bytes() == first


def test_claims_and_late_layers_are_shown_when_they_are_there(root):
    folder = root / "results/mini/tables"
    rows = {
        "claims": [
            {
                "claim": "HC gains",
                "ours": "-0.5",
                "lo": "-0.75",
                "hi": "-0.25",
                "unit": "nats/token",
                "verdict": "agrees",
                "note": "of two shapes",
            },
            {"claim": "at L70", "ours": "", "lo": "", "hi": "", "unit": "", "verdict": "not run", "note": ""},
            {"claim": "2 or 3", "ours": "", "lo": "", "hi": "", "unit": "", "verdict": "contradiction", "note": ""},
        ],
        "late_layers": [
            {"label": "HC", "n_layers": depth, "d_model": width, "seed": "0", "measure": measure, "skip_mode": skip}
            | {"n_pairs": pairs, "fraction": value, "lo": value, "hi": value, "status": status}
            for depth, width, measure, skip, pairs, value, status in (
                ("6", "36", "causal", "mask", "", "", "too_shallow"),
                ("16", "28", "causal", "mask", "66", "0.25", "ok"),
                ("16", "28", "causal", "released", "66", "0.5", "ok"),
                ("16", "28", "permutation", "", "66", "0.75", "ok"),
            )
        ],
    }
    for name, lines in rows.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, lines[0])
            writer.writeheader()
            writer.writerows(lines)
    text = results_page.page(root / "results/mini", [])
    assert "Of 3 claims 1 are not run" in text
    assert "1 are contradictions within the paper" in text
    assert "| HC gains | -0.5000 [-0.7500, -0.2500] | nats/token | agrees | of two shapes |" in text
    assert "(pairs: 66 at L = 16).\n\n| design | L = 6, d = 36 | L = 16, d = 28 |" in text
    assert "| HC | too shallow | 0.25 [0.25, 0.25] |\n| HC (released skip) | - | 0.50 [0.50, 0.50] |" in text
    assert "| HC | 0.75 [0.75, 0.75] |" in text
    assert "There are none." in text


def test_a_sweep_without_a_loss_has_no_best_rate(root):
    common = {"d_model": "52", "n_layers": "4", "seed": "0", "margin_to_second": "", "margin_exceeds_noise": ""}
    rows = [
        {"label": "HC", "grid": "1e-2, 1e0", "declared_lr": "1e-2", "best_lr": "", "best_loss": "", "at_edge": ""}
        | {"diverged": "1e-2, 1e0"},
        {"label": "LNS", "grid": "1e-3, 1e-2", "declared_lr": "1e-2", "best_lr": "1e-2", "best_loss": "4.5"}
        | {"at_edge": "no", "diverged": ""},
    ]
    with (root / "results/mini/tables/lr_audit.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0] | common)
        writer.writeheader()
        writer.writerows(row | common for row in rows)
    text = results_page.page(root / "results/mini", [])
    assert "The best rate of 1 of 2 sweeps lies inside its grid." in text
    assert "| HC | L = 4 | 1e-2, 1e0 | 1e-2 | - | - | no loss | - | - | 1e-2, 1e0 |" in text
    assert "| LNS | L = 4 | 1e-3, 1e-2 | 1e-2 | - | 1e-2 | inside | - | - | - |" in text


def test_without_results_it_is_one_line(tmp_path, root):
    with pytest.raises(
        UserError, match=r"^E-DOCS [^\n]*: no table losses; run snakemake -c2 --config study=mini first$"
    ):
        results_page.write(tmp_path / "elsewhere")
    table = root / "results/mini/tables/lr_audit.csv"
    table.write_text("design\nhc\n")
    with pytest.raises(UserError, match=r"^E-DOCS [^\n]*: KeyError '\w+', not of this version; [^\n]*$"):
        results_page.write(root)


def test_tables_that_know_of_no_seeds_are_refused(root):
    """An older version made them; the page would say that they are compared."""
    table = root / "results/mini/tables/depth_trend.csv"
    table.write_text("".join(line for line in table.read_text().splitlines(True) if not line.startswith("seeds,")))
    with pytest.raises(UserError, match=r"^E-DOCS [^\n]*: ValueError no seeds in depth_trend, not of this version"):
        results_page.write(root)

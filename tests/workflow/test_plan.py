"""What Snakemake would do, before anything has run."""

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from checkout import counted

# Designs that `designs: all` means; one of one's own is counted, too.
DESIGNS = [
    name
    for name, design in yaml.safe_load((Path(__file__).parents[2] / "config.yaml").read_text())["designs"].items()
    if "residual" not in design
]
ALWAYS = (
    *("designs", "suites", "shapes_main", "parameters", "learning_rates", "losses", "depth_trend", "paired"),
    *("claims", "contamination", "run_costs", "validation_loss", "industry_shapes"),
    *("angular_distance", "layer_perturbation", "causal_maps", "permutation_maps", "pathways", "layer_pruning"),
    *("logit_lens", "late_layers", "prefill", "prefill_cost"),
)
SWEPT = (
    *("shapes_backbone", "shapes_ladder", "moda_norms", "lr_audit", "seed_noise"),
    *("lr_sweep", "domain_nll", "scale_ladder", "block_mixing", "stream_transport", "lr_effect"),
)
NOT_IN_MINI = {"shapes_backbone", "shapes_ladder", "moda_norms", "scale_ladder"}  # no such suites


@pytest.mark.parametrize(
    ("study", "runs", "analyzed", "artifacts"),
    # of the sweep of `tiny`, Pre-LN and LNS at the three rates that are not their own
    [
        ("micro", 4, 4, ALWAYS),
        ("tiny", 3 * len(DESIGNS) + 16, 3 * len(DESIGNS) + 6, ALWAYS + SWEPT),
        # all at two more rates, three at two more seeds; analyzed of the sweep: two designs, and one at the common rate
        ("mini", 5 * len(DESIGNS) + 18, 3 * len(DESIGNS) + 5, ALWAYS + tuple(set(SWEPT) - NOT_IN_MINI)),
    ],
)
def test_job_counts(checkout, study, runs, analyzed, artifacts):
    jobs = {"fetch": 1, "prepare": 1, "train": runs, "evaluate": runs, "analyze": analyzed, "all": 1}
    jobs |= dict.fromkeys(artifacts, 1)
    assert checkout.plan("--config", f"study={study}")[0] == jobs


def test_a_figure_by_name_needs_its_own_runs_only(checkout):
    jobs, runs = checkout.plan("validation_loss")
    n_runs = 3 * len(DESIGNS) + 2
    assert (jobs["train"], jobs["evaluate"], jobs["validation_loss"]) == (n_runs, n_runs, 1)
    shapes, rates = {"d52-l4", "d40-l8", "d28-l16"}, {"deepnorm": "5e-3", "sandwich": "2e-2"}
    main = {f"{d}/t-{s}/lr{rates.get(d, '1e-2')}-s0" for d in DESIGNS for s in shapes}
    assert set(runs) == main | {"preln/t-d56-l4/lr1e-2-s0", "hc/t-d56-l4/lr1e-2-s0"}


@pytest.mark.parametrize(
    ("name", "n_runs"),
    [
        ("designs", 0),
        ("contamination", 0),
        ("moda_norms", 3),
        ("lr_audit", 14),
        *(
            pytest.param(name, n, marks=pytest.mark.slow)
            for name, n in (
                *(("parameters", 0), ("suites", 0), ("shapes_main", 0)),
                *(("learning_rates", 8), ("lr_sweep", 8), ("seed_noise", 6)),
            )
        ),
    ],
)
def test_a_table_by_name_needs_what_it_reads_and_no_more(checkout, name, n_runs):
    """Eight runs are swept, six are for seeds, two are of Post-LN MoDA and one of MoDA at their shape.

    Tables of the configuration need no run at all.
    """
    jobs, runs = checkout.plan(name, "--config", "study=tiny")
    assert (len(runs), jobs[name]) == (n_runs, 1)
    assert ("prepare" in jobs) == (n_runs > 0 or name == "contamination")


@pytest.mark.parametrize(
    "values",
    [
        (
            "scales={t: {steps: 192, lr: {default: 0.010}, grid: [0.0025, 0.005, 0.01, 0.02]}}",
            "designs={preln: {lr: 0.002, grid: [0.0005, 1.0e-3, .002, 5E-3]}}",
            "recipes={default: {optimizer: {weight_decay: 1e-1, betas: [0.90, 0.95], eps: 0.00000001}}}",
        ),
        (
            'scales={t: {lr: {default: "1e-2"}, grid: ["25e-4", "5E-3", 1.0e-2, ".02"]}}',
            "recipes={tiny: {threads: 1}}",
            "kernels=reference",
        ),
    ],
)
def test_other_spellings_on_the_command_line_plan_the_same(checkout, values):
    before = checkout.snakemake("-n", "--config", "study=tiny")
    after = checkout.snakemake("-n", "--config", "study=tiny", *values)
    # the spec of each run is what Snakemake will compare, and its log names the run
    kept = [
        sorted(line for line in text.splitlines() if line.startswith(("    log:", "    output:")))
        for text in (before, after)
    ]
    assert kept[0] == kept[1]


def test_command_line_and_file_give_the_same_specs(checkout):
    """The specs themselves, not only the names of the runs."""
    code = (
        "import sys, yaml; from depthbench import config, runs\n"
        "c = config.load(yaml.safe_load(open('config.yaml')))\n"
        "print([runs.spec(c, r) for r in runs.union(runs.suites(c))])"
    )
    before = checkout.call("python", "-c", code).stdout
    checkout.edit("config.yaml", "weight_decay: 0.1,", 'weight_decay: "1.0e-1",')
    checkout.edit("config.yaml", "t: {steps: 192, lr: {default: 1e-2,", 't: {steps: "192", lr: {default: .01,')
    assert checkout.call("python", "-c", code).stdout == before != ""


def test_a_job_with_frozen_configuration_reads_no_key_that_was_added(checkout, monkeypatch):
    """It brings the file as it was, and the environment says so."""
    frozen = checkout.folder / "frozen.yaml"
    frozen.write_text((checkout.folder / "config.yaml").read_text())
    checkout.edit(
        "config.yaml", "  tiny:\n    extends: default\n", "  tiny:\n    extends: default\n    attnres_eps: 1e-5\n"
    )
    command = ("-n", "--configfile", str(frozen), "--config", "study=micro")
    assert "attnres_eps" in checkout.snakemake("-p", *command)
    monkeypatch.setenv("SUBMITIT_FROZEN_CONFIG", "1")
    assert "attnres_eps" not in checkout.snakemake("-p", *command)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("partail=true", "E-CONFIG partail: unknown key; did you mean partial?"),
        ("study=nope", "E-CONFIG study: 'nope' is not declared; known: micro, tiny"),
        (
            "designs={preln: {lr: fast}}",
            "E-CONFIG designs.preln.lr: not a learning rate, which looks like 2e-3 (got 'fast')",
        ),
        (
            "recipes={default: {optimizer: {weight_decay: much}}}",
            "E-CONFIG recipes.default.optimizer.weight_decay",
        ),
    ],
)
def test_a_wrong_value_is_one_line_and_exit_1(checkout, values, words):
    done = checkout.call("snakemake", "-n", "--config", values)
    assert done.returncode == 1
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_an_artifact_without_runs_says_why(checkout):
    checkout.edit("config.yaml", "      main: {scale: u, designs", "      other: {scale: u, designs")
    jobs, _ = checkout.plan("--config", "study=micro")
    assert "validation_loss" not in jobs
    done = checkout.call("snakemake", "-n", "validation_loss", "--config", "study=micro")
    assert done.returncode == 1
    assert "E-STUDY validation_loss: study micro declares none of its runs (suites: main, backbone)" in (
        done.stdout + done.stderr
    )


def test_a_table_of_a_suite_that_the_study_lacks_says_why(checkout):
    done = checkout.call("snakemake", "-n", "shapes_large", "--config", "study=tiny")
    assert done.returncode == 1
    line = "E-STUDY shapes_large: study tiny declares none of its runs (suites: large)"
    assert line in done.stdout + done.stderr
    done = checkout.call("snakemake", "-n", "domain_nll", "--config", "study=micro")
    assert done.returncode == 1
    line = "E-STUDY domain_nll: study micro declares none of its runs (suites: main, scored on tasks)"
    assert line in done.stdout + done.stderr
    done = checkout.call("snakemake", "-n", "lr_effect", "--config", "study=micro")
    assert done.returncode == 1
    line = "E-STUDY lr_effect: study micro declares none of its runs (suites: sweep of preln, lns)"
    assert line in done.stdout + done.stderr


def test_figures_of_layers_analyse_the_runs_that_they_show(checkout):
    jobs, _ = checkout.plan("angular_distance", "--config", "study=paper")
    # ten designs at three depths, and LNS at the rate of the others; DeepNorm is left out there
    assert (jobs["train"], jobs["analyze"]) == (31, 31)
    assert "evaluate" not in jobs
    jobs, _ = checkout.plan("lr_effect", "--config", "study=paper")
    assert (jobs["train"], jobs["analyze"]) == (8, 8)


def test_control_suites_are_a_target_of_their_own(checkout):
    jobs, trained = checkout.plan("controls", "--config", "study=paper")
    assert (jobs["train"], jobs["evaluate"]) == (5, 5)
    assert "hc/400m-released-d1024-l24/lr2e-3-s0" in trained
    done = checkout.call("snakemake", "-n", "controls", "--config", "study=tiny")
    assert done.returncode == 1
    assert "E-STUDY controls: study tiny declares no control suite" in done.stdout + done.stderr


def test_runs_of_the_main_suite_are_scored_on_tasks(checkout):
    """Three of four in `tiny`; the others get the same files, which say that nobody asked."""
    text = checkout.snakemake("-n", "-p", "--config", "study=tiny")
    specs = re.findall(r"depthbench evaluate (\S+) --spec '?(.*?)'? --kernels", text)
    assert len(specs) == 3 * len(DESIGNS) + 16
    scored = {run for run, spec in specs if json.loads(spec)["tasks"]}
    assert len(scored) == 3 * len(DESIGNS)
    assert "results/tiny/runs/preln/t-d56-l4/lr1e-2-s0" not in scored
    spec = next(json.loads(spec) for run, spec in specs if run in scored)
    assert {name: task["limit"] for name, task in spec["tasks"].items()} == dict.fromkeys(spec["tasks"], 16)
    assert len(spec["tasks"]) == 7


def test_prefill_needs_no_training(checkout):
    assert checkout.plan("prefill", "--config", "study=paper")[0] == {"prefill": 1}
    jobs, runs = checkout.plan("prefill_cost", "--config", "study=tiny")
    assert (len(runs), jobs["prefill"], jobs["prefill_cost"]) == (9, 1, 1)


def test_preflight_needs_no_data(checkout):
    assert checkout.plan("preflight", "--config", "study=paper")[0] == {"preflight": 1}
    checkout.snakemake("-c1", "preflight", "--config", "study=micro")
    rows = (checkout.folder / "results/micro/preflight.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["preln", "attnres_full"]
    assert not (checkout.folder / "results/data").exists()


def test_rules_are_listed_with_their_texts(checkout):
    listed = checkout.snakemake("--list-rules", "--config", "study=micro")
    for words in (
        "Train one model, or go on",
        "Held-out loss [nats/token] over the aspect ratio",
        "Held-out loss of every run",
    ):
        assert words in listed


@pytest.mark.parametrize("study", [pytest.param("tiny", marks=pytest.mark.slow), "paper"])
def test_planning_imports_neither_torch_nor_pandas(checkout, study):
    (checkout.folder / "refuse").mkdir()
    for name in ("torch", "pandas"):
        (checkout.folder / "refuse" / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')")
    path = f"{checkout.folder / 'refuse'}:{os.environ.get('PYTHONPATH', '')}"
    done = checkout.call("snakemake", "-n", "all", "--config", f"study={study}", env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr


def test_moda_norms_needs_a_suite_of_that_name(checkout):
    """MoDA's runs of the main suite alone are no comparison."""
    done = checkout.call("snakemake", "-n", "moda_norms", "--config", "study=mini")
    assert done.returncode == 1
    assert "E-STUDY moda_norms: study mini declares none of its runs" in done.stdout + done.stderr


@pytest.mark.parametrize("partial", ["false", "true"])
def test_the_commands_of_the_paper_fit_into_one_argument(checkout, partial):
    """A job's command is one argument of a shell, which Linux limits to 128 KiB."""
    text = checkout.snakemake("-n", "-p", "tables", "figures", "--config", "study=paper", f"partial={partial}")
    found = re.findall(r"^.*python -m depthbench (?:table|figure) .* --out \S+/(\w+)\.\w+ .*$", text, re.MULTILINE)
    assert sorted(found) == sorted({*ALWAYS, *SWEPT, "shapes_large"} - {"seed_noise", "prefill"})
    # With room for a study of three seeds.
    commands = [line for line in text.encode().splitlines() if b"python -m depthbench" in line]
    assert max(map(len, commands)) < 128 * 1024 / 3


TEXT = {"fetch": 1, "fetch_file": 49, "prepare_file": 49, "prepare": 1}


@pytest.mark.parametrize("how", [("--config", "study=paper"), ("--profile", "slurm")])
@pytest.mark.parametrize(
    ("target", "jobs"),
    [
        ("all", TEXT | {"train": 246, "evaluate": 246, "analyze": 62, "all": 1}),
        ("validation_loss", TEXT | {"train": 68, "evaluate": 68, "validation_loss": 1}),
    ],
)
def test_the_paper_is_planned_in_seconds(checkout, target, jobs, how):
    """All 246 trainings in 10 s of one core and 500 MB, on this machine and for Slurm; a figure by name, too.

    62 analyses: the main suite's 56; of the sweep at L = 32 three more rates of Pre-LN and of LNS.
    """
    code = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run(['snakemake', '-n', *sys.argv[1:]], stdout=subprocess.PIPE)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(done.stdout.decode(), done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss // 1024)"
    )
    text = checkout.call("python", "-c", code, target, *how).stdout
    status, seconds, megabytes = text.split()[-3:]
    assert (status, float(seconds) < 10, int(megabytes) < 500) == ("0", True, True), (seconds, megabytes)
    planned = counted(text)
    artifacts = {rule for rule in planned if rule not in jobs}
    assert {rule: n for rule, n in planned.items() if rule in jobs} == jobs
    assert all(planned[rule] == 1 for rule in artifacts)
    assert ({*ALWAYS, *SWEPT, "shapes_large"} - {"seed_noise"} <= artifacts) == (target == "all")
    assert bool(artifacts) == (target == "all")


def test_losses_to_compare_must_be_there(checkout):
    asked = ("--config", "study=micro", "studies={micro: {compare: mine/losses.csv}}")
    done = checkout.call("snakemake", "-n", "validation_loss", *asked)
    assert done.returncode == 1
    assert "E-COMPARE mine/losses.csv: no such file; mend studies.micro.compare" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    (checkout.folder / "mine").mkdir()
    (checkout.folder / "mine" / "losses.csv").write_text("label,n_layers,d_model,loss\n")
    text = checkout.snakemake("-n", "-p", "validation_loss", *asked)
    assert re.search(r"depthbench figure mine/losses.csv .* --spec .*compare.csv", text)

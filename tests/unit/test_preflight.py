import csv
import io
import os
import signal
import sys

import pytest
import torch

from depthbench import config, preflight
from depthbench.errors import UserError
from depthbench.isolated import isolated
from depthbench.model import ModelConfig, backbone

# architectures.md, Tables 3, 7, 8 and 9
HEAD_SIZES = {76, 70, 64, 60, 56, 50, 40, 78, 48, 38, 34, 42, 66, 84, 62, 128, 108, 94}


def of(raw, study):
    return preflight.spec(config.load({**raw, "study": study}))


def test_the_paper_has_every_design_at_every_shape_once(raw):
    cases = of(raw, "paper").cases
    main = {(case.design, shape) for case in cases if case.recipe == "default" for shape in case.shapes}
    ten = [name for name, design in raw["designs"].items() if "residual" not in design]
    three = ["preln", "hc", "attnres_full"]
    shapes = ["L16 d1216", "L20 d1120", "L24 d1024", "L28 d960", "L32 d896"]
    assert main >= {(design, shape) for design in ten for shape in shapes}
    assert main >= {(d, s) for d in three for s in ("L70 d640", "L84 d544", "L12 d896", "L34 d992", "L54 d1504")}
    # main 50 + 6, iso-backbone 12, ladder 18 (its 200M takes larger micro-batches), 1.6B 9, mHC legacy 5,
    # Post-LN MoDA 1, controls 5
    assert len(cases) == 106
    assert {ModelConfig.read(case.model).head_dim for case in cases} == HEAD_SIZES
    assert {case.model["n_layers"] for case in cases} == {2}
    grouped = next(case for case in cases if "L28 d2048" in case.shapes)
    assert (grouped.model["n_kv_heads"], grouped.model["d_ff"], grouped.micro_batch) == (8, 3 * 2048, 2)


def test_each_case_is_measured(raw, capsys):
    wanted = of(raw, "micro")
    rows = list(csv.DictReader(io.StringIO(preflight.check(wanted, "reference"))))
    assert [row["design"] for row in rows] == ["preln", "attnres_full"]
    for row in rows:
        assert row["shapes"] == "L2 d16, L4 d16"
        assert (row["n_blocks"], row["sequences"], row["sequence_length"]) == ("2", "1", "64")
        assert row["kernels"] == "reference"
        assert float(row["seconds"]) > 0
    # 2 V d + 2 blocks (4 d^2 + 3 d f) + 5 norms; Full AttnRes has 4 d L more
    size = 2 * 512 * 16 + 2 * (4 * 16 * 16 + 3 * 16 * 48) + 5 * 16
    assert [int(row["n_params"]) for row in rows] == [size, size + 4 * 16 * 2]
    assert capsys.readouterr().out.startswith("[1/2] preln L2 d16, L4 d16: 23,120 parameters, ")


def test_peak_memory_is_that_of_the_case(raw):
    """Weights, gradients and both moments are 16 bytes a parameter; a small case after it does not inherit them."""
    wanted = of(raw, "micro")
    large = wanted.cases[0].model_copy(update={"model": wanted.cases[0].model | {"d_model": 1024, "vocab_size": 8192}})
    small = wanted.cases[0]
    text = preflight.check(wanted.model_copy(update={"cases": [small, large, small]}), "eager")
    first, wide, last = csv.DictReader(io.StringIO(text))
    grown = int(wide["peak_bytes"]) - int(first["peak_bytes"])
    assert grown > 0.9 * 16 * int(wide["n_params"])
    assert int(last["peak_bytes"]) < int(first["peak_bytes"]) + 2**25


def test_a_failure_names_its_case_and_the_others_run(raw, capsys):
    wanted = of(raw, "micro")
    broken = wanted.cases[0].model_copy(update={"model": wanted.cases[0].model | {"n_heads": 3}})
    with pytest.raises(UserError) as failed:
        preflight.check(wanted.model_copy(update={"cases": [broken, wanted.cases[1]]}), "eager")
    (line,) = str(failed.value).splitlines()
    assert line.startswith("E-PREFLIGHT preln L2 d16, L4 d16: UserError: E-CONFIG d_model=16: not n_heads x head_dim")
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("[1/2] preln L2 d16, L4 d16: FAILED: UserError")
    assert second.startswith("[2/2] attnres_full L2 d16, L4 d16: 23,248 parameters")


def test_a_parameter_without_a_gradient_is_a_failure(raw, monkeypatch):
    def with_one_too_many(cfg):
        model = build(cfg)
        model.blocks[1].unused = torch.nn.Parameter(torch.ones(1))
        return model

    build = backbone.build_model
    monkeypatch.setattr(backbone, "build_model", with_one_too_many)
    wanted = of(raw, "micro")
    with pytest.raises(ValueError, match=r"blocks\.1\.unused gets no gradient"):
        preflight._steps(wanted.cases[0], wanted.recipes["micro"], "eager")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ('{"recipes": {}, "cases": []}', "cases"),
        (
            '{"recipes": {}, "cases": [{"design": "preln", "shapes": ["L2 d16"], "recipe": "q", "model": {},'
            ' "micro_batch": 1}]}',
            "recipes has no 'q'",
        ),
    ],
)
def test_a_spec_that_makes_no_sense_is_told(spec, words):
    with pytest.raises(UserError, match=rf"E-SPEC .*{words}"):
        preflight.PreflightSpec.read(spec)


def end(how):
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "left":
        sys.exit(3)
    raise RuntimeError("no\nroom")


@pytest.mark.parametrize(
    ("how", "words"),
    [("killed", "killed by SIGKILL"), ("left", "ended with status 3"), ("raised", "RuntimeError: no room")],
)
def test_a_process_that_dies_is_told_in_words(how, words):
    assert isolated(end, how) == words

"""What commands for people take from the configuration."""

from pathlib import Path

import pytest

from depthbench import loading, people

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("study", "documents", "tokens", "told"),
    [
        ("paper", 128, 512, ""),
        (
            "elsewhere",
            8,
            32,
            "no study 'elsewhere' in config.yaml: calibration set of tiny, 8 documents of 32 tokens\n",
        ),
    ],
)
def test_the_calibration_set_is_that_of_the_runs_study(study, documents, tokens, told, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loading, "record", lambda folder: {"run_id": f"{study}/preln"})
    monkeypatch.chdir(ROOT)
    size = people.analyses("angular", tmp_path).calibration
    assert (size.documents, size.tokens, capsys.readouterr().err) == (documents, tokens, told)

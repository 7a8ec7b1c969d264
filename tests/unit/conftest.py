from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture
def raw():
    """`config.yaml` as it is read from the file, before any check."""
    return yaml.safe_load((ROOT / "config.yaml").read_text())

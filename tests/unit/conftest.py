from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture
def raw():
    """`config.yaml` as it is read from the file, before any check."""
    return yaml.safe_load((ROOT / "config.yaml").read_text())


@pytest.fixture(scope="session")
def task_spec():
    """A task as `config.yaml` words it."""
    from depthbench import specs

    worded = yaml.safe_load((ROOT / "config.yaml").read_text())["tasks"]
    return lambda name, **changes: specs.TaskSpec.model_validate({**worded[name], **changes})

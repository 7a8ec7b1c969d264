import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cluster():
    """The folder of a running Slurm cluster, which SLURM_CONF leads to."""
    if "SLURM_CONF" not in os.environ:
        pytest.skip("needs Slurm: SLURM_CONF is not set")
    return Path(os.environ["SLURM_CONF"]).parent

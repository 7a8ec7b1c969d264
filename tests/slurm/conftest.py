import shutil
import tempfile
from pathlib import Path

import one_machine
import pytest
from flows import Workflow


@pytest.fixture(scope="session")
def cluster():
    """The cluster of this session; paths of sockets are short, hence its place."""
    if missing := one_machine.missing():
        pytest.skip(f"no Slurm on this machine: {', '.join(missing)} not found")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    made = one_machine.Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def workflow(cluster, tmp_path):
    made = Workflow(tmp_path / "a flow", cluster.env)
    yield made
    made.stop()
    if left := cluster.queue():
        cluster.run("scancel", *left, check=False)
        cluster.wait_until_empty()

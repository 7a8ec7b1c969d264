import tarfile

import pytest
from released_folder import FIXTURE

from depthbench.specs import ImportSpec


@pytest.fixture(scope="session")
def saved_by_olmo_core(tmp_path_factory):
    """The committed checkpoints: one of each design, and one of two processes."""
    folder = tmp_path_factory.mktemp("released")
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def asked():
    """What a person asks for who imports a folder."""

    def ask(folder, **model):
        return ImportSpec(run_id=folder.name, version=1, source=str(folder), model=model)

    return ask

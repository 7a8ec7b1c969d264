import pytest
from checkout import Checkout


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path / "a checkout")


@pytest.fixture(scope="session")
def checkout_in():
    """Make a checkout in a folder."""
    return Checkout


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A checkout in which the micro study has run to its end."""
    made = Checkout(tmp_path_factory.mktemp("finished") / "checkout")
    made.snakemake("-c2", "--config", "study=micro")
    return made

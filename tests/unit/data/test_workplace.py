import fcntl

import pytest

from depthbench.data import workplace as module
from depthbench.data.workplace import replace_folder, workplace
from depthbench.errors import UserError


def test_folder_of_a_living_process_is_left_alone(tmp_path):
    with workplace(tmp_path / "target") as first:
        (first / "file").touch()
        with workplace(tmp_path / "target") as second:
            assert second != first
        assert (first / "file").exists()
    assert not list(tmp_path.iterdir())


def test_folder_without_a_living_process_is_removed(tmp_path):
    left = tmp_path / ".target.abc.part"
    (left / "work").mkdir(parents=True)
    (left / "lock").touch()
    with workplace(tmp_path / "target"):
        assert not left.exists()


def test_file_system_without_locks_still_works(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with workplace(tmp_path / "target") as first, workplace(tmp_path / "target") as second:
        assert first.exists()
        assert second.exists()


def test_replacing_survives_another_process_that_is_first(tmp_path, monkeypatch):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine").touch()
    target = tmp_path / "target"
    rename = module.Path.rename

    def other_first(self, to):
        monkeypatch.setattr(module.Path, "rename", rename)
        target.mkdir()
        (target / "other").touch()
        return rename(self, to)

    monkeypatch.setattr(module.Path, "rename", other_first)
    (tmp_path / "scratch").mkdir()
    replace_folder(tmp_path / "new", target, tmp_path / "scratch")
    assert [p.name for p in target.iterdir()] == ["mine"]


def test_errors_of_the_system_are_one_line(tmp_path):
    with pytest.raises(UserError, match=r"^E-DISK .*target: No space left"), workplace(tmp_path / "target"):
        raise OSError(28, "No space left on device")
    assert not list(tmp_path.iterdir())

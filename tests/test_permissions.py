"""Which files a call may name, and what is said of those that cannot be read."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillserver import permissions
from skillserver.errors import BadRequest, NotHere

ODD = ["x" * 5000, "~nobody-of-this-name/x.log", "a\0b", "", ".", "/dev/zero", "/nowhere/x.log", "训练.log", os.fsdecode(b"\xff\xfe")]


@pytest.fixture(autouse=True)
def granted_as_before() -> Iterator[None]:
    before = permissions.current()
    yield
    permissions.grant(before)


@pytest.mark.parametrize("path", ODD)
def test_a_path_that_names_no_file_is_refused_in_one_sentence(path: str) -> None:
    with pytest.raises(BadRequest, match="no_such_file") as refused:
        permissions.readable(path)
    assert len(str(refused.value)) < 1100


@pytest.mark.parametrize("path", ODD)
def test_over_http_an_odd_path_is_outside_the_permitted_folders_like_any_other(path: str) -> None:
    permissions.grant(permissions.TEXT_ONLY)
    with pytest.raises(NotHere, match="path_not_permitted"):
        permissions.readable(path)


def test_a_relative_path_in_a_folder_that_was_deleted_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(BadRequest, match="no_such_file"):
        permissions.readable("x.log")
    monkeypatch.chdir(tmp_path)


def test_a_file_that_opens_but_cannot_be_read_is_said_to_be_so() -> None:
    with pytest.raises(BadRequest, match="unreadable_file: '/proc/self/mem' cannot be read: Input/output error"):
        permissions.readable("/proc/self/mem")


@pytest.mark.parametrize("path", ["", " "])
def test_no_path_is_not_the_current_folder(path: str) -> None:
    with pytest.raises(BadRequest, match="no_such_folder"):
        permissions.writable_folder(path)

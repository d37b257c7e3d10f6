"""A user's own handbooks are searched beside ours and cited with commit and licence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skillserver.errors import BadRequest, DataBroken, NotHere
from skillserver.knowledge import library, reading, search, sources
from skillserver.knowledge.sources import Folder


@pytest.fixture
def ops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SKILLSERVER_HOME", str(tmp_path / "home"))
    root = tmp_path / "ops book"
    (root / ".git" / "refs" / "heads").mkdir(parents=True)
    (root / ".git" / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    (root / ".git" / "refs" / "heads" / "main").write_text("0123456789abcdef0123\n", encoding="utf-8")
    (root / "drain.md").write_text("# Zebra racks\n\n## How to drain a zebra rack\nCall the stripes desk.\n", encoding="utf-8")
    (root / "broken.md").write_text("---\ntitle: a: b: c\n---\n# Kept\nThe front matter is wrong.\n", encoding="utf-8")
    return root


def test_an_added_folder_is_listed_and_forgotten(ops: Path) -> None:
    added = sources.add(ops, licence="internal")
    assert added == Folder("ops-book", str(ops), "internal")
    assert sources.add(ops, licence="internal") == added
    assert sources.folders()[1:] == (added,)
    sources.remove("ops-book")
    assert sources.folders()[1:] == ()


def test_a_hit_in_an_added_folder_cites_file_lines_commit_and_licence(ops: Path, pages_root: Path, tmp_path: Path) -> None:
    folder = sources.add(ops, licence="internal")
    shelf = library.at((Folder("", str(pages_root), ""), folder), tmp_path / "cache")
    assert search.answer(shelf, "drain a zebra rack").startswith(
        "## How to drain a zebra rack [ops-book/drain#how-to-drain-a-zebra-rack]\n"
        "_Zebra racks · ops book/drain.md:3-4 · commit 0123456789ab, licence internal_\n\nCall the stripes desk."
    )
    assert "The front matter is wrong." in reading.text_of(shelf, "ops-book/broken")


def test_a_folder_that_is_gone_is_said(pages_root: Path, tmp_path: Path) -> None:
    shelf = library.at((Folder("", str(pages_root), ""), Folder("gone", str(tmp_path / "gone"), "")), tmp_path / "cache")
    assert "is not there any more and was not searched" in search.answer(shelf, "gradient clipping")


def test_what_is_no_handbook_is_refused(ops: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no_such_folder"):
        sources.add(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadRequest, match="no_pages"):
        sources.add(tmp_path / "empty")
    with pytest.raises(BadRequest, match="unknown_source"):
        sources.remove("nobody")


def test_two_folders_never_share_a_name(ops: Path, tmp_path: Path) -> None:
    sources.add(ops)
    other = tmp_path / "other" / "ops book"
    other.mkdir(parents=True)
    (other / "a.md").write_text("# A\n", encoding="utf-8")
    with pytest.raises(BadRequest, match="name_taken"):
        sources.add(other)
    assert sources.add(other, name="other").name == "other"


def test_a_broken_record_and_a_home_that_cannot_be_written_are_said(ops: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources.add(ops)
    (tmp_path / "home" / sources.RECORD).write_text(json.dumps([{"nonsense": 1}]), encoding="utf-8")
    with pytest.raises(DataBroken, match="sources_broken"):
        sources.folders()
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    monkeypatch.setenv("SKILLSERVER_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(NotHere, match="home_not_writable"):
        sources.add(ops)


def test_the_commit_of_a_detached_and_of_a_packed_checkout_is_read(tmp_path: Path) -> None:
    git = tmp_path / ".git"
    git.mkdir()
    (git / "HEAD").write_text("fedcba9876543210\n", encoding="utf-8")
    assert sources.commit(tmp_path / "below") == "fedcba987654"
    (git / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    (git / "packed-refs").write_text("# pack-refs\n0011223344556677 refs/heads/main\n", encoding="utf-8")
    assert sources.commit(tmp_path) == "001122334455"

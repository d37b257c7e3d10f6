"""The index is built once, whole or not at all, wherever it can be written and also where it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from skillserver.errors import DataBroken
from skillserver.knowledge import index, library, search
from skillserver.knowledge.sources import Folder

CHILD = """
import os, sys
from pathlib import Path
from skillserver.knowledge import index, library, search
from skillserver.knowledge.sources import Folder
if sys.argv[3] == "die":
    index._move = lambda aside, final: os._exit(9)
shelf = library.at((Folder("", sys.argv[1], ""),), Path(sys.argv[2]))
print(search.answer(shelf, "gradient clipping").split("\\n")[0], *shelf.notes)
"""
FIRST = "## Gradient clipping [training/instabilities#gradient-clipping]\n"


def child(pages: Path, cache: Path, what: str = "live", *flags: str, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, *flags, "-c", CHILD, str(pages), str(cache), what]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})


def names(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


def test_two_processes_that_build_at_once_both_answer_from_one_index(pages_root: Path, tmp_path: Path) -> None:
    both = [child(pages_root, tmp_path) for _ in range(2)]
    assert [process.communicate() for process in both] == [(FIRST, "")] * 2
    assert len(names(tmp_path)) == 1


def test_a_build_killed_in_the_middle_leaves_only_a_dot_folder_that_is_swept_later(pages_root: Path, tmp_path: Path) -> None:
    dead = child(pages_root, tmp_path, "die")
    dead.communicate()
    assert dead.returncode == 9
    (left,) = names(tmp_path)
    assert left.startswith(".index-")
    assert child(pages_root, tmp_path).communicate() == (FIRST, "")
    assert len(names(tmp_path)) == 2
    os.utime(tmp_path / left, (1, 1))
    index._sweep(tmp_path)
    assert [name[:6] for name in names(tmp_path)] == ["index-"]


def test_where_nothing_can_be_written_the_index_lives_in_memory_and_says_so(pages_root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    shelf = library.at((Folder("", str(pages_root), ""),), tmp_path / "file" / "cache")
    told = search.answer(shelf, "gradient clipping")
    assert told.startswith(FIRST)
    assert "the index is kept in memory, since" in told
    assert "Not a directory" in told


def test_memory_and_disk_rank_alike(pages_root: Path, tmp_path: Path, shelf: library.Library) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    memory = library.at((Folder("", str(pages_root), ""),), tmp_path / "file" / "cache")
    weights = {"gradient": 1.0, "node": 1.0, "memori": 0.5}
    assert memory.index.score(weights, 10) == shelf.index.score(weights, 10)


def test_no_warning_reaches_stderr_even_without_compiled_files(pages_root: Path, tmp_path: Path) -> None:
    loud = child(pages_root, tmp_path / "cache", "live", "-W", "error", PYTHONPYCACHEPREFIX=str(tmp_path / "compiled"))
    assert loud.communicate() == (FIRST, "")
    again = child(pages_root, tmp_path / "cache", "live", "-W", "error", "-X", "dev")
    assert again.communicate() == (FIRST, "")


def test_whoosh_is_not_imported_by_importing_the_tools() -> None:
    code = "import sys, skillserver.tools.knowledge; print([name for name in sys.modules if name.split('.')[0] == 'whoosh'])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_an_index_that_lost_a_file_is_built_again(pages_root: Path, tmp_path: Path) -> None:
    child(pages_root, tmp_path).communicate()
    (place,) = tmp_path.iterdir()
    for path in place.glob("*.seg"):
        path.write_bytes(path.read_bytes()[:100])
    assert index.found(tmp_path, place.name) is None
    assert child(pages_root, tmp_path).communicate() == (FIRST, "")
    assert names(tmp_path) == [place.name]


def test_an_index_that_others_may_write_is_never_opened(pages_root: Path, tmp_path: Path) -> None:
    child(pages_root, tmp_path).communicate()
    (place,) = tmp_path.iterdir()
    place.chmod(0o777)
    assert index.found(tmp_path, place.name) is None
    out, _ = child(pages_root, tmp_path).communicate()
    assert "belongs to another user" in out


def test_the_two_newest_indexes_are_kept(pages_root: Path, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"index-{number}").mkdir()
        os.utime(tmp_path / f"index-{number}", (number, number))
    child(pages_root, tmp_path).communicate()
    assert len(names(tmp_path)) == 2
    assert "index-2" in names(tmp_path)


def test_a_changed_page_makes_another_index(pages_root: Path) -> None:
    assert index.fingerprint(["a", "b"]) != index.fingerprint(["ab"])
    assert index.fingerprint(["a", "b"]) == index.fingerprint(["a", "b"])


def test_threads_that_come_together_wait_for_one_build(pages_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    real = index.ready
    monkeypatch.setattr(index, "ready", lambda *given, **named: built.append(1) or real(*given, **named))
    found = []
    threads = [threading.Thread(target=lambda: found.append(library.at((Folder("", str(pages_root), ""),), tmp_path).index.size)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (built, len(set(found)), len(found)) == ([1], 1, 5)


def test_no_page_anywhere_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataBroken, match="no_pages"):
        library.at((Folder("", str(tmp_path / "nowhere"), ""),), tmp_path)


def test_a_base_that_was_swept_away_meanwhile_is_done_without(pages_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "pages"
    shutil.copytree(pages_root, root)
    library.at((Folder("", str(root), ""),), tmp_path / "cache")
    (root / "new.md").write_text("# Okapi\n\nStripes.\n", encoding="utf-8")
    monkeypatch.setattr(index, "_sweep", lambda place: [shutil.rmtree(old) for old in place.glob("index-*")])
    library.forget()
    shelf = library.at((Folder("", str(root), ""),), tmp_path / "cache")
    assert (shelf.indexed_pages, shelf.notes) == (1, [])
    assert search.answer(shelf, "okapi stripes").startswith("## Okapi [new]")

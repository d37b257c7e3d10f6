"""`skillserver sources`: what a person and a script see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BOOK = "# Okapi racks\n\n## Water an okapi\nTwice a day, says the keeper.\n"


@pytest.fixture
def book(tmp_path: Path) -> Path:
    root = tmp_path / "keepers"
    root.mkdir()
    (root / "okapi.md").write_text(BOOK, encoding="utf-8")
    (root / "odd.md").write_text("---\ntitle: a: b\n---\n# Odd\n\nStill searched.\n", encoding="utf-8")
    (root / "LICENSE").write_text("Attribution 4.0 International\n", encoding="utf-8")
    return root


def run(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "skillserver", *words]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "SKILLSERVER_HOME": str(home)}, check=False)


def document(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def test_a_folder_is_added_updated_searched_and_removed(book: Path, tmp_path: Path) -> None:
    added = document(run(tmp_path / "home", "sources", "add", str(book), "--json"))["sources"]
    problem = "keepers/odd.md:2: the front matter is not YAML: mapping values are not allowed here."
    assert added == [
        {"name": "keepers", "path": str(book), "licence": "CC-BY-4.0", "commit": "", "pages": 2, "sections": 3, "ids_start_with": "keepers/",
         "broken": [{"file": "odd.md", "problem": problem}], "missing": False}
    ]  # fmt: skip
    told = run(tmp_path / "home", "search", "water an okapi", "--source", "keepers").stdout
    assert told.startswith("## Water an okapi [keepers/okapi#water-an-okapi]\n_Okapi racks · keepers/okapi.md:3-4 · licence CC-BY-4.0_")
    (book / "okapi.md").write_text(BOOK + "\n## Feed an okapi\nLeaves.\n", encoding="utf-8")
    assert document(run(tmp_path / "home", "sources", "update", "--json"))["pages_indexed"] == 1
    assert document(run(tmp_path / "home", "sources", "remove", "keepers", "--json")) == {"removed": "keepers", "sources": []}
    assert [row["name"] for row in document(run(tmp_path / "home", "sources", "list", "--json"))["sources"]] == ["ours"]


def test_a_mistake_is_one_line_and_with_json_a_document(tmp_path: Path) -> None:
    done = run(tmp_path, "sources", "add", str(tmp_path / "nowhere"), "--json")
    assert (done.returncode, document(done)["code"]) == (1, "no_such_folder")
    assert done.stderr.startswith("no_such_folder: ")
    assert done.stderr.count("\n") == 1

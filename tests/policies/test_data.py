"""Tables load, topics lead to sections that exist, generated tables are fresh, worded in our own words."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from skillserver import generated, tables, topics
from skillserver.knowledge import library

ROOT = Path(__file__).resolve().parents[2]
TABLES = sorted((ROOT / "skillserver/data").glob("*.toml"))
PROSE_CHECK = ROOT.parent / "shared/checks/prose_overlap.py"


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_a_table_has_a_head_and_is_read_by_someone(path: Path) -> None:
    assert tables.read(path.name)["about"]["source"]
    users = [file for file in (ROOT / "skillserver").rglob("*.py") if f'"{path.name}"' in file.read_text(encoding="utf-8")]
    assert users, f"nobody reads data/{path.name}"


def test_every_topic_leads_to_sections_that_exist() -> None:
    known = library.current().sections
    missing = {topic: section for topic in topics.known() for section in topics.sections(topic) if section not in known}
    assert missing == {}


def named_topics() -> set[str]:
    """Topics in the code (`topics.sections("x")`) and in the tables (`topic = "x"`)."""
    found = set()
    for file in (ROOT / "skillserver").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "topics.sections":
                found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    for path in TABLES:
        if path.name != "topics.toml":
            rows = tomllib.loads(path.read_text(encoding="utf-8")).get("record", [])
            found |= {row["topic"] for row in rows if row.get("topic")} | {topic for row in rows for topic in row.get("topics", [])}
    return found


def test_every_topic_that_is_named_is_known() -> None:
    assert named_topics() - topics.known() == set()


def test_what_is_generated_is_fresh() -> None:
    stale = [path.name for path, text in generated.outputs().items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    assert stale == [], "run make docs"


@pytest.mark.skipif(not PROSE_CHECK.is_file(), reason="no ../shared beside this checkout")
def test_no_prose_repeats_the_handbooks() -> None:
    done = subprocess.run(
        [sys.executable, PROSE_CHECK, "knowledge_base", "README.md", "SKILL.md", "skillserver"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:]


def test_every_page_names_its_sources_and_when_they_were_checked() -> None:
    for page in (ROOT / "knowledge_base").rglob("*.md"):
        front = page.read_text(encoding="utf-8").split("---")[1]
        written_twice = page.name.endswith(".zh.md") or page.with_suffix(".zh.md").exists()  # each language is found by its own page
        chinese = () if written_twice else ("title_zh", "keywords_zh")
        for field in ("title", "summary", "keywords", "sources", "checked", *chinese):
            assert re.search(rf"^{field}:", front, re.M), f"{page.name} has no {field}"

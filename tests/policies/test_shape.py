"""House rules that a machine can hold: sizes, names, docstrings, no paths of one machine."""

import ast
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = sorted(
    path for folder in ("skillserver", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py") if "_shipped" not in path.parts
)
PRODUCT = [path for path in CODE if path.is_relative_to(ROOT / "skillserver")]
FILE_WALL, FUNCTION_WALL = 400, 40


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", CODE, ids=relative)
def test_files_and_functions_stay_within_the_walls(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= FILE_WALL
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= FUNCTION_WALL, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", PRODUCT, ids=relative)
def test_modules_and_public_functions_have_docstrings(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if not tree.body:
        return
    assert ast.get_docstring(tree), "the module says nothing about itself"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


def test_no_file_is_called_by_a_name_that_says_nothing() -> None:
    assert not [relative(path) for path in CODE if path.stem in {"utils", "common", "helpers", "base", "misc"}]


def test_nothing_names_a_path_of_this_machine() -> None:
    here = [str(ROOT), *([f"{Path.home()}/"] if len(Path.home().parts) > 1 and Path.home() != Path(tempfile.gettempdir()) else [])]
    for path in [*CODE, *ROOT.glob("*.md"), *(ROOT / "knowledge_base").rglob("*.md"), *(ROOT / "skillserver/data").glob("*.toml")]:
        text = path.read_text(encoding="utf-8")
        assert not [place for place in here if place in text], relative(path)

"""A file imports only from lower floors, subjects stay apart, and each foreign package has its border files."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "skillserver"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "_shipped" not in path.parts)

SUBJECTS = ("knowledge", "hardware", "health", "estimate", "measure", "diagnose", "cluster", "workers", "jobs")
FLOORS = {
    **dict.fromkeys(("__init__", "errors", "units", "paths", "progress"), 0),
    **dict.fromkeys(("permissions", "tables", "findings", "topics", "contract", "mistakes", "schemas", "processes", "drawing"), 1),
    **dict.fromkeys(SUBJECTS, 2),
    "procedures": 3,
    "tools": 4,
    "registry": 5,
}
TOP = 6  # server, cli and whatever else faces people and clients
MAY_USE = {("estimate", "hardware"), ("health", "hardware")}
BORDERS = {
    "whoosh": ("knowledge/index.py",),
    "markdown_it": ("knowledge/sections.py",),
    "pynvml": ("hardware/nvml.py",),
    "mcp": ("server.py", "serving.py", "prompts.py", "resources.py", "remote.py", "extensions/"),
    "torch": ("workers/scripts/",),
    "matplotlib": ("diagnose/log_picture.py", "measure/curve_picture.py", "measure/trials_picture.py"),
    "typer": ("cli.py", "sources_cli.py", "compare_cli.py", "study_cli.py"),
    "rich": ("terminal.py", "tool_lists.py"),
    "psutil": ("processes.py", "jobs/", "workers/", "procedures/gpus_here.py"),
    "yaml": ("knowledge/sections.py", "extensions/"),
}


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def unit_of(name: str) -> str:
    """`health` of health/xid.py, `errors` of errors.py, "scripts" of the stand-alone worker scripts."""
    return "scripts" if name.startswith("workers/scripts/") else name.split("/")[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Dotted names of every import anywhere in a file; names imported from a package count as modules of it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own_units(path: Path) -> set[str]:
    units = set()
    for dotted in imports_of(path):
        if dotted.startswith("skillserver."):
            unit = unit_of(dotted.removeprefix("skillserver.").replace(".", "/"))
            if unit in FLOORS or (PACKAGE / f"{unit}.py").exists() or (PACKAGE / unit).is_dir():
                units.add(unit)
    return units


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_imports_only_from_lower_floors(path: Path) -> None:
    unit = unit_of(name_of(path))
    if unit == "scripts":
        assert not own_units(path), "worker scripts stand alone"
        return
    floor = FLOORS.get(unit, TOP)
    wrong = {other for other in own_units(path) - {unit} if FLOORS.get(other, TOP) > floor}
    assert not wrong, f"floor {floor} imports from above: {wrong}"
    if unit in SUBJECTS:
        joined = {other for other in own_units(path) - {unit} if other in SUBJECTS and (unit, other) not in MAY_USE}
        assert not joined, f"subjects are joined in procedures/, not here: {joined}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_foreign_package_is_imported_in_its_border_files_only(path: Path) -> None:
    used = {dotted.split(".")[0] for dotted in imports_of(path)}
    for package, borders in BORDERS.items():
        if package in used:
            assert name_of(path).startswith(borders), f"{package} belongs to {borders}"

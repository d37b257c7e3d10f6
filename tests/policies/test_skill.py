"""SKILL.md is valid for the Agent Skills rules, short enough, and names only tools and sections that exist."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from skillserver import registry
from skillserver.knowledge import library

ROOT = Path(__file__).resolve().parents[2]
SKILL = ROOT / "SKILL.md"
PROMISED = re.compile(
    r"\b(?:diagnose_hang|diagnose_memory|diagnose_training_log|estimate_memory|estimate_inference|describe_model|plan_parallelism|plan_checkpoints|"
    r"compare_accelerators|judge_measurement|check_connectivity|check_node|inspect_slurm|write_launcher|run_(?:bandwidth|storage|inference)_bench)\b"
)


def test_the_checker_accepts_it(tmp_path: Path) -> None:
    (tmp_path / "skillserver").mkdir()
    shutil.copy(SKILL, tmp_path / "skillserver")
    checker = Path(sys.executable).with_name("agentskills")
    done = subprocess.run([checker, "validate", tmp_path / "skillserver"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_body_is_short_enough_to_be_loaded_whole() -> None:
    body = SKILL.read_text(encoding="utf-8").split("---", 2)[2]
    assert len(body.splitlines()) < 500
    assert len(body) / 4 < 5000


def test_it_names_only_sections_that_exist() -> None:
    named = re.findall(r"`([a-z]+/[a-z-]+(?:#[a-z0-9-]+)?)`", SKILL.read_text(encoding="utf-8"))
    assert named
    assert [name for name in named if name not in library.current().sections] == []


def test_texts_for_agents_name_only_tools_that_exist() -> None:
    known = {tool.name for tool in registry.ALL}
    texts = [SKILL, ROOT / "README.md", *(ROOT / "skillserver/data").glob("*.toml"), *(ROOT / "knowledge_base").rglob("*.md")]
    texts += [path for folder in ("tools", "procedures", "health", "estimate", "diagnose") for path in (ROOT / "skillserver" / folder).rglob("*.py")]
    for path in texts:
        missing = set(PROMISED.findall(path.read_text(encoding="utf-8"))) - known
        assert not missing, f"{path.name} sends people to {missing}"

"""Tables of README, SKILL.md and the knowledge base, written from the registry and from data/ between markers.

A number or a tool appears once, in its table; everything between `<!-- table: NAME -->` and `<!-- /table -->` is made
here. `python -m skillserver.generated` writes, `--check` only says what is stale and exits 1.

>>> filled("<!-- table: tools -->\\n<!-- /table -->").count("search_knowledge")
1
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path

from skillserver import desk, tool_lists
from skillserver.hardware import catalogue

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"(<!-- table: ([a-z_]+) -->\n).*?(<!-- /table -->)", re.S)


def tools() -> str:
    """Every tool and when to call it."""
    return tool_lists.markdown(asyncio.run(desk.tools("", None)))


TABLES: dict[str, Callable[[], str]] = {"tools": tools, "accelerators": catalogue.markdown_accelerators, "links": catalogue.markdown_links}


def filled(text: str) -> str:
    """The text with every marked table made anew."""
    return MARKED.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)


def files() -> list[Path]:
    """What may carry a marked table."""
    return [ROOT / "README.md", ROOT / "SKILL.md", *sorted((ROOT / "knowledge_base").rglob("*.md"))]


def main(arguments: list[str]) -> int:
    """Write the stale files, or with --check name them and return 1."""
    stale = [path for path in files() if filled(path.read_text(encoding="utf-8")) != path.read_text(encoding="utf-8")]
    for path in stale:
        if "--check" not in arguments:
            path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{'stale' if '--check' in arguments else 'written'}: {path.relative_to(ROOT)}", file=sys.stderr)
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

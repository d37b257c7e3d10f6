"""Tables of README, SKILL.md and the knowledge base, written from the registry and from data/ between markers, and data/tools.json.

A number, a term, a tool or a recipe of examples/recipes appears once, in its table or file; everything between
`<!-- table: NAME -->` and `<!-- /table -->` is made here. `python -m skillserver.generated` writes, `--check` only says
what is stale and exits 1.

>>> filled("<!-- table: tools -->\\n<!-- /table -->").count("search_knowledge")
1
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from skillserver import desk, paths, registry, tool_lists
from skillserver.hardware import catalogue
from skillserver.knowledge import glossary

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"(<!-- table: ([a-z_]+) -->\n).*?(<!-- /table -->)", re.S)


def tools() -> str:
    """Every tool and when to call it."""
    return tool_lists.markdown(asyncio.run(desk.tools("", None)))


def _accelerators(chosen: Callable[[catalogue.Accelerator], bool]) -> str:
    """Dense peaks, memory, link and power of the chosen parts; a dash is a figure that no source gives."""
    head = ["part", "year", "memory GB", "memory GB/s", "bf16 TFLOPS", "fp8 TFLOPS", "fp32 vector TFLOPS", "link GB/s each way", "TDP W"]
    rows = [[part.id, part.year, part.memory_gb, part.memory_bandwidth_gb_s, catalogue.peak_tflops(part, "bf16"), catalogue.peak_tflops(part, "fp8"),
             part.vector.get("fp32"), part.link_each_way_gb_s, part.tdp_w] for part in catalogue.accelerators() if chosen(part)]  # fmt: skip
    return _markdown(head, rows)


def _is_module(part: catalogue.Accelerator) -> bool:
    """NVIDIA parts of NVSwitch nodes, as large training uses them."""
    return part.vendor == "NVIDIA" and part.id.endswith(("SXM", "GH200-96GB", "GB200-186GB"))


def _is_card(part: catalogue.Accelerator) -> bool:
    return part.vendor == "NVIDIA" and not _is_module(part)


GLANCE = (
    "A100-80GB-SXM",
    "H100-80GB-SXM",
    "H100-80GB-PCIe",
    "H200-141GB-SXM",
    "B200-180GB-SXM",
    "B300-288GB-SXM",
    "MI300X-192GB",
    "MI325X-256GB",
    "MI355X-288GB",
)


def glance() -> str:
    """One line a part for the nine that people compare most."""
    return "\n".join(_line(catalogue.accelerator(name)) for name in GLANCE)


def _line(part: catalogue.Accelerator) -> str:
    peaks = [f"{kind} {peak:g}" for kind in ("bf16", "fp8", "fp4") if (peak := catalogue.peak_tflops(part, kind))]
    link = f"; {part.link} {part.link_each_way_gb_s:g} GB/s each way" if part.link and part.link_each_way_gb_s else ""
    return f"- {part.id}: {', '.join(peaks)} TFLOPS; {part.memory_gb:g} GB at {part.memory_bandwidth_gb_s / 1000:.3g} TB/s{link}"


def links() -> str:
    """Bandwidth of every link, one direction, beside the total that vendors quote."""
    head = ["link", "kind", "GB/s each way", "GB/s quoted, both ways"]
    return _markdown(head, [[link.id, link.kind, link.each_way_gb_s, link.stated_total_gb_s] for link in catalogue.links()])


def _rates(family: str) -> str:
    """One line a generation of a link family, one direction."""
    found = [link for link in catalogue.links() if re.fullmatch(family, link.id)]
    return "\n".join(f"- {re.sub(r'(?<=[a-z])(?=[0-9])', ' ', link.id)}: {link.each_way_gb_s:g} GB/s ({link.note})" for link in found)


def _markdown(head: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _recipe(file: Path) -> str:
    return f"```python\n{file.read_text(encoding='utf-8').rstrip()}\n```"


TABLES: dict[str, Callable[[], str]] = {
    "tools": tools,
    "accelerators": lambda: _accelerators(_is_module),
    "accelerator_cards": lambda: _accelerators(_is_card),
    "accelerator_others": lambda: _accelerators(lambda part: part.vendor != "NVIDIA"),
    "glance": glance,
    "links": links,
    "nvlink": lambda: _rates(r"NVLink\d"),
    "infiniband": lambda: _rates(r"InfiniBand-\w+"),
    **{f"glossary_{subject}": partial(glossary.markdown, subject) for subject in glossary.subjects()},
    **{f"recipe_{file.stem}": partial(_recipe, file) for file in sorted((ROOT / "examples/recipes").glob("*.py"))},
}


def filled(text: str) -> str:
    """The text with every marked table made anew."""
    return MARKED.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)


def files() -> list[Path]:
    """What may carry a marked table."""
    return [ROOT / "README.md", ROOT / "SKILL.md", *sorted((ROOT / "knowledge_base").rglob("*.md"))]


def outputs() -> dict[Path, str]:
    """Every generated file with the text it should have."""
    kept = json.dumps({name: registry.published(registry.load(name)) for name in registry.HOMES}, ensure_ascii=False, separators=(",", ":"))
    texts = {path: filled(path.read_text(encoding="utf-8")) for path in files()}
    return texts | {paths.data(registry.PUBLISHED): kept.replace('},"', '},\n"') + "\n"}


def main(arguments: list[str]) -> int:
    """Write the stale files, or with --check name them and return 1."""
    stale = {path: text for path, text in outputs().items() if not path.is_file() or path.read_text(encoding="utf-8") != text}
    for path, text in stale.items():
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        print(f"{'stale' if '--check' in arguments else 'written'}: {path.relative_to(ROOT)}", file=sys.stderr)
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Lists of tools and arguments for people: on the terminal, and as the Markdown tables of README and SKILL.md.

>>> markdown(tools).splitlines()[0]
'| tool | toolset | when to call it |'
"""

from __future__ import annotations

import difflib
from typing import Any

from rich.table import Table
from rich.text import Text

from skillserver import inputs, terminal
from skillserver.errors import BadRequest


def show(tools: list[dict[str, Any]], name: str, as_json: bool) -> None:
    """All tools, or one with its arguments. Raises BadRequest for an unknown name."""
    chosen = [_named(tools, name)] if name else tools
    if as_json:
        print(inputs.pretty(chosen[0] if name else {"tools": chosen}))
    elif name:
        _one(chosen[0])
    else:
        _all(chosen)


def _named(tools: list[dict[str, Any]], name: str) -> dict[str, Any]:
    names = [tool["name"] for tool in tools]
    if name not in names:
        near = difflib.get_close_matches(name, names, 2)
        raise BadRequest("unknown_tool", f"there is no tool {name!r}", valid=near + [n for n in names if n not in near], next="skillserver tools")
    return tools[names.index(name)]


def _all(tools: list[dict[str, Any]]) -> None:
    table = Table("tool", "toolset", "when to call it", show_edge=False, pad_edge=False)
    for tool in tools:
        table.add_row(tool["name"], tool.get("toolset", ""), Text(first_sentence(tool["description"])))
    terminal.console().print(table)


def _one(tool: dict[str, Any]) -> None:
    out = terminal.console()
    out.print(f"{tool['name']}: {tool['title']}", style="bold", markup=False)
    out.print(tool["description"], markup=False)
    table = Table("argument", "type", "default", "meaning", show_edge=False, pad_edge=False)
    schema = tool["input_schema"]
    for name, argument in schema["properties"].items():
        default = "required" if name in schema.get("required", []) else terminal.plain(argument.get("default"))
        table.add_row(name, kind(argument), default, Text(argument.get("description", "")))
    out.print(table)


def kind(argument: dict[str, Any]) -> str:
    """The type of an argument in a word or its choices: "bf16 | fp16", "integer 1..64"."""
    if "enum" in argument:
        return " | ".join(map(str, argument["enum"]))
    names = argument.get("type") or [kind(part) for part in argument.get("anyOf", [])]
    text = " or ".join(names) if isinstance(names, list) else names
    low = argument.get("minimum", argument.get("exclusiveMinimum"))
    high = argument.get("maximum", argument.get("exclusiveMaximum"))
    if low is None and high is None:
        return text
    return f"{text} {'' if low is None else f'{low:g}'}..{'' if high is None else f'{high:g}'}"


def first_sentence(description: str) -> str:
    """What a table has room for."""
    return description.split(". ")[0].rstrip(".") + "."


def markdown(tools: list[dict[str, Any]]) -> str:
    """The table of README and SKILL.md."""
    rows = [f"| `{tool['name']}` | {tool['toolset']} | {first_sentence(tool['description'])} |" for tool in tools]
    return "\n".join(["| tool | toolset | when to call it |", "|---|---|---|", *rows])

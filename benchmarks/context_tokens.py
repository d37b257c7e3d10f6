"""What an agent pays before its first call: tokens of tools/list (4 characters a token), core set and all.

Promise: at most 3,000 for core, 8,000 for all, 350 a tool.    .venv/bin/python benchmarks/context_tokens.py
"""

import json

from skillserver import contract, prompts, registry


def tokens(tool: registry.Listed) -> float:
    """Name, description and compacted input schema."""
    return len(contract.compact_json({"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema()})) / 4


def main() -> None:
    """Print one line of JSON."""
    each = {tool.name: round(tokens(tool)) for tool in registry.ALL}
    core = sum(each[tool.name] for tool in registry.select())
    print(
        "context_tokens",
        json.dumps({"core": core, "all": sum(each.values()), "instructions_characters": len(prompts.instructions(registry.ALL)), "each": each}),
    )


if __name__ == "__main__":
    main()

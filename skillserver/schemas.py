"""JSON Schema as small as it can be said: an agent pays for every character of it in every session.

Titles that repeat the name go, `anyOf [X, null]` with a null default becomes X, `$ref`s are inlined. Knows JSON Schema; not pydantic, not MCP.

>>> compact({"properties": {"a": {"title": "A", "type": "integer"}}, "title": "x", "type": "object"})
{'type': 'object', 'properties': {'a': {'type': 'integer'}}, 'additionalProperties': False}
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}  # pydantic leaves these raw on validators
ABSURD = 10_000  # a maximum above this guards against nonsense; it is enforced and named in refusals, and not worth publishing


def compact(schema: Schema) -> Schema:
    """Input schema of a tool."""
    definitions = schema.get("$defs", {})
    properties = {name: _small(value, definitions) for name, value in schema.get("properties", {}).items()}
    out: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return out | {"required": schema["required"]} if schema.get("required") else out


def top_level(schema: Schema) -> Schema:
    """Output schema of a result: names, types and descriptions of its fields, nothing of what is inside them."""
    definitions = schema.get("$defs", {})
    properties = {name: _field(value, definitions) for name, value in schema.get("properties", {}).items()}
    return {"type": "object", "properties": properties, "required": sorted(schema.get("required", []))}


def _field(value: Schema, definitions: dict[str, Schema]) -> Schema:
    kinds = [{"type": kind} for kind in sorted(_types(value, definitions))]
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {}


def _types(value: Schema, definitions: dict[str, Schema]) -> set[str]:
    value = _resolved(value, definitions)
    if "anyOf" in value:
        return set().union(*(_types(part, definitions) for part in value["anyOf"]))
    kind = value.get("type")
    found = set(kind) if isinstance(kind, list) else {kind} if kind else set()
    return found | ({"null"} if "number" in found else set())  # a NaN is sent as null


def _resolved(value: Schema, definitions: dict[str, Schema]) -> Schema:
    if "$ref" in value:
        return definitions[value["$ref"].rsplit("/", 1)[-1]] | {key: item for key, item in value.items() if key != "$ref"}
    return value


def _small(value: Schema, definitions: dict[str, Schema]) -> Schema:
    value = {BOUNDS.get(key, key): item for key, item in _resolved(value, definitions).items() if key != "title"}
    if value.get("default", 0) is None:
        del value["default"]
    if value.get("maximum", 0) > ABSURD:
        del value["maximum"]
    if value.get("additionalProperties") is True:
        del value["additionalProperties"]
    if "anyOf" in value:
        value = _without_null(value, definitions)
    if "properties" in value:
        value["properties"] = {name: _small(item, definitions) for name, item in value["properties"].items()}
    if isinstance(value.get("items"), dict):
        value["items"] = _small(value["items"], definitions)
    if "prefixItems" in value:
        value["prefixItems"] = [_small(item, definitions) for item in value["prefixItems"]]
    return value


def _without_null(value: Schema, definitions: dict[str, Schema]) -> Schema:
    """`anyOf` without its null member. A list of types would be shorter, but some model APIs refuse it."""
    parts = [_small(part, definitions) for part in value["anyOf"] if part.get("type") != "null"]
    rest = {key: item for key, item in value.items() if key != "anyOf"}
    if len(parts) == 1:
        return parts[0] | rest
    return {"anyOf": parts} | rest

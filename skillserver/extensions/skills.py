"""SKILL.md over MCP: the extension io.modelcontextprotocol/skills (SEP-2640) for one skill, this product's own.

Hosts without the extension read the same file as the plain resource `skill://skillserver/SKILL.md`. Digests are of the
raw bytes; the manifest is made at the first `skills/*` call, so start-up reads nothing.

>>> build(tools, extensions=[SkillExtension()])
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import mcp.types as types
from mcp.server.extension import Extension, MethodBinding, ResourceBinding
from mcp.server.mcpserver.resources import FunctionResource
from mcp.shared.exceptions import MCPError
from pydantic import Field

from skillserver import paths

MODERN = frozenset({"2026-07-28"})
INVALID_PARAMS = -32602
URI = "skill://skillserver/SKILL.md"
MARKDOWN = "text/markdown"
TTL_MS = 300_000


class UriParams(types.RequestParams):
    """Parameters of skills/get."""

    uri: str


class SkillsList(types.CacheableResult):
    """Answer of skills/list."""

    skills: list[dict[str, Any]]
    next_cursor: str | None = Field(default=None, alias="nextCursor")


class SkillsGet(types.CacheableResult):
    """Answer of skills/get."""

    skill: dict[str, Any]


def text() -> str:
    """SKILL.md as shipped, byte for byte (a digest stands for it)."""
    return paths.shipped("SKILL.md").read_bytes().decode("utf-8")


class SkillExtension(Extension):
    """Serves the one skill to hosts that declare the extension."""

    identifier = "io.modelcontextprotocol/skills"

    @cached_property
    def entry(self) -> dict[str, Any]:
        """The skill's manifest: front matter verbatim, and every file with digest and size."""
        import yaml

        raw = text().encode()
        manifest = [{"uri": URI, "digest": "sha256:" + hashlib.sha256(raw).hexdigest(), "size": len(raw)}]
        return {"uri": URI, "frontmatter": yaml.safe_load(text().split("---")[1]), "resources": manifest}

    def resources(self) -> Sequence[ResourceBinding]:
        """The file as a plain resource, for every host."""
        resource = FunctionResource(uri=URI, name="SKILL.md", title="How to work with skillserver", mime_type=MARKDOWN, fn=text,
                                    description="Which tool answers which question, and the order of work.")  # fmt: skip
        return [ResourceBinding(resource)]

    def methods(self) -> Sequence[MethodBinding]:
        """skills/list and skills/get; 2026-07-28 only. A folder of one file needs no directory listing."""
        return [
            MethodBinding("skills/list", types.PaginatedRequestParams, self._list, MODERN),
            MethodBinding("skills/get", UriParams, self._get, MODERN),
        ]

    async def _list(self, _context: Any, _params: types.PaginatedRequestParams) -> SkillsList:
        return SkillsList(skills=[self.entry], ttl_ms=TTL_MS, cache_scope="public")

    async def _get(self, _context: Any, params: UriParams) -> SkillsGet:
        if params.uri != URI:
            raise MCPError(INVALID_PARAMS, f"No skill is served at {params.uri}. The only one is {URI}.")
        return SkillsGet(skill=self.entry, ttl_ms=TTL_MS, cache_scope="public")

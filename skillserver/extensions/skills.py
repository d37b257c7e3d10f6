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
FOLDER = "skill://skillserver"
URI = f"{FOLDER}/SKILL.md"
MARKDOWN = "text/markdown"
TTL_MS = 300_000


class UriParams(types.RequestParams):
    """Parameters of skills/get and resources/directory/read."""

    uri: str
    cursor: str | None = None


class SkillsList(types.CacheableResult):
    """Answer of skills/list."""

    skills: list[dict[str, Any]]
    next_cursor: str | None = Field(default=None, alias="nextCursor")


class SkillsGet(types.CacheableResult):
    """Answer of skills/get."""

    skill: dict[str, Any]


class Directory(types.Result):
    """Answer of resources/directory/read."""

    resources: list[types.Resource]


def text() -> str:
    """SKILL.md as shipped, byte for byte (a digest stands for it)."""
    return paths.shipped("SKILL.md").read_bytes().decode("utf-8")


class SkillExtension(Extension):
    """Serves the one skill to hosts that declare the extension."""

    identifier = "io.modelcontextprotocol/skills"

    def settings(self) -> dict[str, Any]:
        """What the capability says: folders can be read."""
        return {"directoryRead": True}

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
        """skills/list, skills/get and the folder's listing; 2026-07-28 only."""
        return [
            MethodBinding("skills/list", types.PaginatedRequestParams, self._list, MODERN),
            MethodBinding("skills/get", UriParams, self._get, MODERN),
            MethodBinding("resources/directory/read", UriParams, self._directory, MODERN),
        ]

    async def _list(self, _context: Any, _params: types.PaginatedRequestParams) -> SkillsList:
        return SkillsList(skills=[self.entry], ttl_ms=TTL_MS, cache_scope="public")

    async def _get(self, _context: Any, params: UriParams) -> SkillsGet:
        if params.uri != URI:
            raise MCPError(INVALID_PARAMS, f"No skill is served at {params.uri}. The only one is {URI}.")
        return SkillsGet(skill=self.entry, ttl_ms=TTL_MS, cache_scope="public")

    async def _directory(self, _context: Any, params: UriParams) -> Directory:
        if params.uri != FOLDER:
            raise MCPError(INVALID_PARAMS, f"{params.uri} is not a directory resource. The only one is {FOLDER}.")
        return Directory(resources=[types.Resource(uri=URI, name="SKILL.md", mime_type=MARKDOWN)])

"""The registry as an MCP server: tools, knowledge resources, prompts, completions. One of the few files that know `mcp`.

Speaks both wire revisions (2025-11-25 and 2026-07-28) because mcp's MCPServer does. Knows nothing of any subject;
what a tool does stands in tools/. Transports stand in serving.py.

>>> Client(build(registry.select()))            # an in-memory client for tests
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

from mcp.server import MCPServer
from mcp.server.caching import CacheHint
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.server.mcpserver.tools.base import Tool as SdkTool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

import skillserver
from skillserver import contract, prompts, registry, resources
from skillserver.errors import SkillError
from skillserver.extensions.skills import SkillExtension
from skillserver.jobs import manager
from skillserver.progress import listening

log = logging.getLogger(__name__)
HOUR_MS = 3_600_000


class ContractTool(SdkTool):
    """A tool of ours under the SDK's interface: our schema, our validation, our error texts."""

    listed: Any = Field(exclude=True)

    @cached_property
    def output_schema(self) -> dict[str, Any] | None:
        return self.listed.output_schema()

    async def run(self, arguments: dict[str, Any], context: Any, convert_result: bool = False) -> Any:
        """Call it. A SkillError becomes a ToolError with its own words, once, here; anything else is a bug."""

        async def forward(done: float, total: float | None, message: str) -> None:
            await context.report_progress(done, total, message)

        try:
            with listening(forward):
                answer = await self.listed.call(arguments)
        except SkillError as refused:
            raise ToolError(refused.sentence()) from refused
        except Exception as bug:
            log.exception("tool %s broke", self.name)
            raise UnexpectedToolError(f"internal_error: {self.name} broke ({type(bug).__name__}). Next: see the server's log on stderr.") from bug
        return _answer(answer)


def _answer(answer: Any) -> CallToolResult:
    """Markdown as text; a result as structured content with the same JSON as compact text."""
    if isinstance(answer, str):
        return CallToolResult(content=[TextContent(type="text", text=answer)])
    document = contract.document(answer)
    return CallToolResult(content=[TextContent(type="text", text=contract.compact_json(document))], structured_content=document)


def sdk_tool(tool: registry.Listed, name: str) -> ContractTool:
    """The SDK's view of one of our tools, under its name or an alias."""
    hints = tool.hints
    return ContractTool(
        fn=tool.call, name=name, title=tool.title, description=tool.description, parameters=tool.input_schema(),
        fn_metadata=FuncMetadata(arg_model=ArgModelBase), is_async=True, context_kwarg=None, listed=tool,
        annotations=ToolAnnotations(title=tool.title, read_only_hint=hints.read_only, destructive_hint=hints.destructive,
                                    idempotent_hint=hints.idempotent, open_world_hint=hints.open_world),
    )  # fmt: skip


class Server(MCPServer[None]):
    """The SDK's server, which tells a caller of an unknown name which names there are."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool; raises ToolError with the tools of this server when it has none of that name."""
        offered = [tool.name for tool in await self.list_tools()]
        if name not in offered:
            raise ToolError(registry.unknown(name, offered).sentence())
        return await super().call_tool(name, arguments, context)

    async def get_prompt(self, name: str, arguments: dict[str, str] | None = None, context: Any = None) -> Any:
        """A workflow; an unknown one is the caller's mistake, not a bug of the server."""
        known = [prompt.name for prompt in await self.list_prompts()]
        if name not in known:
            raise MCPError(INVALID_PARAMS, f"unknown_prompt: there is no prompt {name[:60]!r}. Valid: {', '.join(known)}.")
        return await super().get_prompt(name, arguments, context)


@asynccontextmanager
async def _lifespan(_server: Any) -> AsyncIterator[None]:
    """While the server runs, jobs outlive the calls that started them; they end with it."""
    async with manager.keeping():
        yield


def build(tools: Iterable[registry.Listed]) -> MCPServer[None]:
    """An MCPServer with these tools, the knowledge resources, the prompts and the completions."""
    offered = list(tools)
    server = Server(
        "skillserver",
        title="ML engineering skills",
        version=skillserver.__version__,
        instructions=prompts.instructions(offered),
        tools=[sdk_tool(tool, tool.name) for tool in offered],
        cache_hints={"tools/list": CacheHint(ttl_ms=HOUR_MS, scope="public"), "resources/read": CacheHint(ttl_ms=HOUR_MS, scope="public")},
        lifespan=_lifespan,
        extensions=[SkillExtension()],
        log_level="WARNING",
    )
    resources.add_to(server)
    prompts.add_to(server, {tool.name for tool in offered})
    return server


def default() -> MCPServer[None]:
    """The server as `skillserver serve` starts it without options."""
    return build(registry.select())

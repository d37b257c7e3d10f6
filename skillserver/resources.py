"""Knowledge pages as MCP resources, with completions of page ids.

`knowledge:///contents` is the table of contents, `knowledge:///{+page}` a page or section; `study:///path` lists the
days of the path with their ticks, `study:///{day}` is one of them. Nothing is read before it is asked for. SKILL.md is
served by extensions/skills.py.

>>> (await client.read_resource("knowledge:///training/memory")).contents[0].text
"""

from __future__ import annotations

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp.types import Completion, CompletionArgument, ResourceTemplateReference

from skillserver.errors import BadRequest, SkillError

MARKDOWN = "text/markdown"
PAGE_TOKENS = 20_000  # a resource is read whole; the longest page is far below


def _page(page: str) -> str:
    from skillserver.knowledge import reading  # here, because a server that only lists has no use for it

    try:
        return reading.read(page, PAGE_TOKENS)
    except BadRequest as unknown:
        raise ResourceNotFoundError(unknown.sentence()) from unknown


def _day(asked: str) -> str:
    from skillserver import study
    from skillserver.knowledge import days

    language = days.CHINESE if asked.endswith(".zh") else days.ENGLISH
    try:
        return study.listing(language) if asked.removesuffix(".zh") == "path" else days.day(asked.removesuffix(".zh"), language).text(answers=True)
    except SkillError as unknown:
        raise ResourceNotFoundError(unknown.sentence()) from unknown


def add_to(server: MCPServer[None]) -> None:
    """Register the resources, the template and the completion of its page ids."""

    @server.resource("knowledge:///contents", name="contents", title="Table of contents", mime_type=MARKDOWN)
    def contents() -> str:
        """Every page and section of the knowledge base with its id."""
        return _page("")

    @server.resource("knowledge:///{+page}", name="page", title="Knowledge page or section", mime_type=MARKDOWN)
    def page(page: str) -> str:
        """One page (training/memory) or section (training/memory#bytes-per-parameter)."""
        return _page(page)

    @server.resource("study:///path", name="path", title="The path: nineteen days", mime_type=MARKDOWN)
    def path() -> str:
        """The days of the path in English, and which are done; study:///path.zh in Chinese."""
        return _day("path")

    @server.resource("study:///{day}", name="day", title="One day of the path", mime_type=MARKDOWN)
    def day(day: str) -> str:
        """A day with its questions and answers: study:///4, in Chinese study:///4.zh."""
        return _day(day)

    @server.completion()
    async def complete(ref: object, argument: CompletionArgument, context: object) -> Completion | None:
        from skillserver.knowledge import library

        if not isinstance(ref, ResourceTemplateReference) or argument.name != "page":
            return None
        ids = [name for name in library.current().sections if argument.value.lower() in name]
        return Completion(values=ids[:100], total=len(ids), has_more=len(ids) > 100)

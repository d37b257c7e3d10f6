"""The CLI's other half: the same verbs against a running server over streamable HTTP.

Speaks whichever wire revision the server offers. Turns a tool's error text back into a SkillError, so that exit codes
and `--json` are those of a local call. Knows `mcp`; no tool by name.

>>> async with connected("http://127.0.0.1:8000/mcp", token="") as desk: await desk.call("search_knowledge", {"query": "NCCL"}, listener)
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from skillserver.errors import NotHere, SkillError
from skillserver.progress import Listener

UNAUTHORIZED = 401
SENTENCE = re.compile(r"^(?P<code>[a-z_0-9]+): (?P<message>.*?)(?: Valid: (?P<valid>.*?)\.)?(?: Next: (?P<next>.*))?$", re.S)


class Desk:
    """An open connection to one server."""

    def __init__(self, client: Any, url: str) -> None:
        self.client, self.url = client, url

    async def tools(self) -> list[dict[str, Any]]:
        """Name, title, description, arguments and hints of what the server offers."""
        listed = await self.client.list_tools()
        return [{"name": tool.name, "title": tool.title, "description": tool.description, "input_schema": tool.input_schema} for tool in listed.tools]

    async def call(self, name: str, arguments: dict[str, Any], listener: Listener) -> dict[str, Any] | str:
        """The structured document of a result, or its Markdown. Raises SkillError for a refusal."""
        result = await self.client.call_tool(name, arguments, progress_callback=listener)
        text = "\n".join(part.text for part in result.content if part.type == "text")
        if result.is_error:
            raise parsed(text)
        return text if result.structured_content is None else result.structured_content

    def about(self) -> dict[str, Any]:
        """What answers at the other end."""
        info = self.client.server_info
        return {"server": self.url, "name": info and info.name, "version": info and info.version, "protocol": self.client.protocol_version}


def parsed(sentence: str) -> SkillError:
    """The SkillError that `sentence` was made from."""
    found = SENTENCE.match(sentence.strip())
    if not found:
        return SkillError("refused", sentence)
    valid = [choice for choice in (found["valid"] or "").split(", ") if choice]
    return SkillError(found["code"], found["message"], next=found["next"] or "", valid=valid)


@asynccontextmanager
async def connected(url: str, token: str) -> AsyncIterator[Desk]:
    """A Desk at `url`. Raises NotHere when nobody answers there or the token is refused."""
    import httpx2
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    statuses: list[int] = []

    async def note(response: httpx2.Response) -> None:
        statuses.append(response.status_code)

    try:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30, read=300), event_hooks={"response": [note]}) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            yield Desk(client, url)
    except (Exception, BaseExceptionGroup) as problem:
        raise _said(url, _first(problem), statuses[-1] if statuses else 0) from None


def _said(url: str, problem: BaseException, status: int) -> BaseException:
    """Refusals pass; a silent or foreign server is NotHere; anything else is a bug and stays what it is."""
    import httpx2
    from mcp.shared.exceptions import MCPError

    if status == UNAUTHORIZED and not isinstance(problem, SkillError):
        return NotHere("token_refused", f"{url} refused the token, or asks for one", next="pass --token-file FILE, or set SKILLSERVER_TOKEN")
    if isinstance(problem, httpx2.HTTPError | httpx2.InvalidURL | MCPError | OSError):
        return NotHere("no_server", f"{url} did not answer as an MCP server: {problem or type(problem).__name__}",
                       next="check the URL (it ends in /mcp) and the token (--token-file)")  # fmt: skip
    return problem


def _first(group: BaseException) -> BaseException:
    """The innermost first exception of a task group's wrapping."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group

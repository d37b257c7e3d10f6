"""One place to call tools from: in this process, or at a server by URL. Both give the same documents and errors.

A local call waits for its job to end and draws progress; jobs of this process end with it.

>>> asyncio.run(call("search_knowledge", {"query": "NCCL"}, server="", token_file=None))
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeGuard

from skillserver import contract, paths, registry, terminal
from skillserver.progress import listening

LONG_POLL_S = 45


async def tools(server: str, token_file: Path | None) -> list[dict[str, Any]]:
    """Name, title, description, toolset and input schema of every tool."""
    if server:
        from skillserver import remote

        async with remote.connected(server, token(token_file)) as desk:
            return await desk.tools()
    return [{"name": tool.name, "title": tool.title, "toolset": tool.toolset, "description": tool.description, "input_schema": tool.input_schema()}
            for tool in registry.ALL]  # fmt: skip


async def call(name: str, arguments: dict[str, Any], server: str, token_file: Path | None) -> dict[str, Any] | str:
    """The result document, or Markdown. Raises SkillError."""
    with terminal.bar(name) as listener:
        if server:
            from skillserver import remote

            async with remote.connected(server, token(token_file)) as desk:
                answer = await desk.call(name, arguments, listener)
                while _unfinished(answer):
                    answer = await _followed(desk, answer, listener)
                return answer
        with listening(listener):
            return await _here(name, arguments)


def _unfinished(answer: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(answer, dict) and answer.get("state") == "running" and bool(answer.get("job_id")) and "jobs" not in answer


async def _followed(desk: Any, answer: dict[str, Any], listener: Any) -> dict[str, Any]:
    """One long poll of a remote job; the finished job's own result, when it is done."""
    report = await desk.call("wait_job", {"job_id": answer["job_id"], "wait_s": LONG_POLL_S}, listener)
    return _unwrapped(report, answer)


async def _here(name: str, arguments: dict[str, Any]) -> dict[str, Any] | str:
    tool = registry.find(name)
    answer = await tool.call(arguments)
    if isinstance(answer, str):
        return answer
    found = contract.document(answer)
    while _unfinished(found):
        report = await registry.find("wait_job").call({"job_id": found["job_id"], "wait_s": LONG_POLL_S})
        found = _unwrapped(contract.document(report), found)
    return found


def _unwrapped(report: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """A wait_job report -> the document that the job's own tool would have given."""
    if report.get("state") == "running" or not isinstance(report.get("result"), dict):
        return before | {key: report.get(key) for key in ("state", "next") if report.get(key)}
    return report["result"] | {"state": report["state"], "job_id": report["job_id"]}


async def about(server: str, token_file: Path | None) -> dict[str, Any]:
    """What answers at `server`, and the tools it offers."""
    from skillserver import remote

    async with remote.connected(server, token(token_file)) as desk:
        return desk.about() | {"tools": [tool["name"] for tool in await desk.tools()]}


def token(token_file: Path | None) -> str:
    """The bearer token: --token-file, else SKILLSERVER_TOKEN."""
    from skillserver import serving

    if token_file is None:
        return serving.sendable(paths.environment("SKILLSERVER_TOKEN"), "SKILLSERVER_TOKEN")
    return serving.read_token(token_file)

"""The registry through a real MCP client, in memory and on both wire revisions."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from mcp.types import ResourceTemplateReference

from skillserver import contract, registry, server

ERAS = pytest.mark.parametrize("mode", ["legacy", "auto"])


def asked(mode: str, question: Callable[[Client], Awaitable[Any]], **selection: Any) -> Any:
    async def run() -> Any:
        async with Client(server.build(registry.select(**selection)), mode=mode) as client:
            return await question(client)

    return asyncio.run(run())


def call(mode: str, name: str, arguments: dict[str, Any], **selection: Any) -> Any:
    return asked(mode, lambda client: client.call_tool(name, arguments), **selection)


def text_of(result: Any) -> str:
    return "\n".join(part.text for part in result.content)


@ERAS
def test_every_tool_is_listed_with_title_hints_and_our_schema(mode: str) -> None:
    listed = asked(mode, lambda client: client.list_tools(), toolsets=["all"]).tools
    assert [tool.name for tool in listed] == [tool.name for tool in registry.ALL]
    for ours, theirs in zip(registry.ALL, listed, strict=True):
        assert (theirs.title, theirs.input_schema, theirs.output_schema) == (ours.title, ours.input_schema(), ours.output_schema())
        hints = theirs.annotations
        assert (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint) == tuple(vars(ours.hints).values())


@ERAS
def test_knowledge_answers_in_markdown_without_structured_content(mode: str) -> None:
    result = call(mode, "search_knowledge", {"query": "NCCL watchdog timeout"})
    assert not result.is_error
    assert result.structured_content is None
    assert "debugging/hangs" in text_of(result)


@ERAS
def test_a_number_comes_as_structured_content_and_the_same_text(mode: str) -> None:
    result = call(mode, "estimate_gpu_hours", {"params_total": "7B", "tokens": "2T", "accelerator": "H100-80GB-SXM"})
    assert text_of(result) == contract.compact_json(result.structured_content)
    assert result.structured_content["gpu_hours"]["low"] < result.structured_content["gpu_hours"]["high"]


@ERAS
@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("search_knowledge", {"query": "x", "limit": 3}, "unknown argument 'limit'"),
        ("estimate_gpu_hours", {"params_total": "7B", "tokens": -1, "accelerator": "H100-80GB-SXM"}, "tokens"),
        ("estimate_gpu_hours", {"params_total": "7B", "tokens": "2T", "accelerator": "H1000"}, "H100-80GB-SXM"),
        ("read_knowledge", {"id": "training/memry"}, "training/memory"),
        ("run_mamf", {"dtype": "bf61"}, "bf61"),
    ],
)
def test_a_refusal_is_one_sentence_of_ours(mode: str, name: str, arguments: dict[str, Any], said: str) -> None:
    result = call(mode, name, arguments)
    assert result.is_error
    assert said in text_of(result)
    assert "Next:" in text_of(result)
    assert "Error executing tool" not in text_of(result)
    assert "pydantic" not in text_of(result)


@ERAS
def test_an_unknown_tool_is_an_error_the_model_can_read(mode: str) -> None:
    result = call(mode, "run_mamff", {})
    assert result.is_error
    assert text_of(result).startswith("unknown_tool: there is no tool 'run_mamff'. Valid: run_mamf, ")


@ERAS
def test_a_tool_that_is_switched_off_says_how_it_is_switched_on(mode: str) -> None:
    result = call(mode, "run_mamf", {}, read_only=True)
    assert result.is_error
    assert "not_offered: run_mamf is not offered by this server. Valid: search_knowledge, " in text_of(result)
    assert "without --read-only" in text_of(result)


@ERAS
def test_an_unknown_prompt_is_the_callers_mistake_and_names_the_others(mode: str) -> None:
    async def question(client: Client) -> str:
        with pytest.raises(MCPError) as refused:
            await client.get_prompt("no_such_prompt", {})
        return str(refused.value)

    assert "unknown_prompt: there is no prompt 'no_such_prompt'. Valid: run_broke, " in asked(mode, question)


def test_a_bug_says_its_kind_and_keeps_its_text_on_the_server(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("the password is swordfish")

    monkeypatch.setattr(registry.find("read_knowledge").tool, "fn", broken)
    result = call("auto", "read_knowledge", {})
    assert result.is_error
    assert "internal_error" in text_of(result)
    assert "swordfish" not in text_of(result)


def test_read_only_serves_nothing_that_starts_work() -> None:
    names = [tool.name for tool in asked("auto", lambda client: client.list_tools(), read_only=True).tools]
    assert "search_knowledge" in names
    assert not {"run_mamf", "run_all_reduce_bench", "wait_job"} & set(names)


@ERAS
def test_pages_are_resources_with_contents_and_completions(mode: str) -> None:
    async def question(client: Client) -> Any:
        contents = (await client.read_resource("knowledge:///contents")).contents[0].text
        page = (await client.read_resource("knowledge:///training/memory")).contents[0].text
        done = await client.complete(ResourceTemplateReference(uri="knowledge:///{+page}"), {"name": "page", "value": "training/mem"})
        return contents, page, done.completion.values, [t.uri_template for t in (await client.list_resource_templates()).resource_templates]

    contents, page, values, templates = asked(mode, question)
    assert "training/memory" in contents
    assert "Bytes per parameter" in page
    assert values[0] == "training/memory"
    assert templates == ["knowledge:///{+page}", "study:///{day}"]


@ERAS
@pytest.mark.parametrize("page", ["training/nothing", "../../etc/passwd", "..%2F..%2Fetc%2Fpasswd"])
def test_a_page_that_is_not_there_is_a_protocol_error(mode: str, page: str) -> None:
    async def question(client: Client) -> str:
        with pytest.raises(MCPError) as refused:
            await client.read_resource(f"knowledge:///{page}")
        return str(refused.value)

    assert page.split("/")[-1] in asked(mode, question)


@ERAS
def test_the_skill_is_a_resource_and_workflows_are_prompts(mode: str) -> None:
    async def question(client: Client) -> Any:
        skill = (await client.read_resource("skill://skillserver/SKILL.md")).contents[0].text
        names = [prompt.name for prompt in (await client.list_prompts()).prompts]
        said = (await client.get_prompt("run_broke", {"what": "job 17"})).messages[0].content.text
        return skill, names, said

    skill, names, said = asked(mode, question)
    assert skill.startswith("---\nname: skillserver")
    assert names == ["run_broke", "diagnose_hang", "diagnose_slow_training", "diagnose_loss_spike", "set_up_cluster", "plan_training", "study"]
    assert "job 17" in said


def test_a_workflow_is_offered_with_its_tools_only_and_names_no_tool_that_is_off() -> None:
    async def question(client: Client) -> Any:
        names = [prompt.name for prompt in (await client.list_prompts()).prompts]
        return {name: (await client.get_prompt(name, {})).messages[0].content.text for name in names}

    few = asked("auto", question, toolsets=[], names=["diagnose_training_log", "search_knowledge"])
    assert list(few) == ["diagnose_slow_training", "diagnose_loss_spike"]
    everything = asked("auto", question, toolsets=["all"])
    for offered, texts in ((("diagnose_training_log", "search_knowledge"), few), (tuple(registry.BY_NAME), everything)):
        for text in texts.values():
            assert [tool.name for tool in registry.ALL if tool.name in text and tool.name not in offered and tool.name != "read_knowledge"] == []
            assert "Ask the user first" in text
            assert "\nStop: " in text
    assert "diagnose_numerics" in everything["diagnose_loss_spike"]
    assert "1. diagnose_training_log" in few["diagnose_loss_spike"]


def test_a_selection_names_what_it_does_not_know() -> None:
    from skillserver.errors import BadRequest

    with pytest.raises(BadRequest, match="there is no toolset 'cor'"):
        registry.select(toolsets=["cor"])
    with pytest.raises(BadRequest, match=r"there is no tool 'run_mamff'.* Valid: run_mamf,"):
        registry.select(names=["run_mamff"])
    with pytest.raises(BadRequest, match="leave no tool"):
        registry.select(toolsets=[], names=["run_mamf"], read_only=True)

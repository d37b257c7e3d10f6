"""`skillserver`: the verbs for people, the server for agents. Thin: every verb calls a tool or a server.

Exit 0 done, 1 refused, failed or ended early (one line on stderr; with --json the error document on stdout), 2 wrong
usage, 3 with --fail-on when the verdict is that bad. With --server URL the same verbs ask a running server.

    skillserver search "NCCL timeout"
    skillserver call estimate_gpu_hours model=llama-3-8b tokens=15T accelerator=H100-80GB-SXM
"""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import skillserver
from skillserver import compare_cli, inputs, permissions, sources_cli, study_cli
from skillserver.errors import BadRequest, NotHere, SkillError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
                  context_settings={"help_option_names": ["-h", "--help"]},
                  help="Know-how and tools for GPU clusters and large-model training.")  # fmt: skip
app.add_typer(sources_cli.app, name="sources")
app.command()(compare_cli.compare)
app.command()(study_cli.study)

WRONG_USAGE = 2

Server = Annotated[str, typer.Option("--server", envvar="SKILLSERVER_URL", help="Ask this running server (http://HOST:PORT/mcp) instead.")]
TokenFile = Annotated[Path | None, typer.Option("--token-file", help="File with the bearer token of that server.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the one result document as JSON.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", help="Budget of the answer, in tokens.")]

MaxNodes = Annotated[int, typer.Option("--max-nodes", help="Most nodes that a run through SLURM may take.", min=1)]
Account = Annotated[str, typer.Option("--account", help="SLURM account that runs are submitted under.")]
Partition = Annotated[str, typer.Option("--partition", help="SLURM partition that runs are submitted to.")]
Qos = Annotated[str, typer.Option("--qos", help="SLURM quality of service of the runs submitted.")]
Profiles = Annotated[list[str] | None, typer.Option("--profile", help="NAME=WORDS before the interpreter, e.g. apptainer exec IMAGE; repeatable.")]
EnvFiles = Annotated[list[str] | None, typer.Option("--env-file", help="NAME=FILE that bash sources before workers of that name; repeatable.")]
AllowHost = Annotated[list[str] | None, typer.Option("--allow-host", help="A host that run_inference_bench may call; repeatable.")]


def _given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value not in (None, "")}


@app.command()
def search(query: Annotated[list[str], typer.Argument(help="Words, a sentence or a pasted error line; English or Chinese.")],
           max_tokens: MaxTokens = None,
           part: Annotated[str, typer.Option(help="Only this page or chapter, e.g. training or training/memory.")] = "",
           kind: Annotated[str, typer.Option(help="Only sections with a table, code, or a failure explained.")] = "",
           source: Annotated[str, typer.Option(help="Only `ours`, or an added folder by name.")] = "",
           server: Server = "", token_file: TokenFile = None) -> None:  # fmt: skip
    """Search the knowledge base; prints whole sections, best first."""
    given = _given(query=" ".join(query), max_tokens=max_tokens, part=part, kind=kind, source=source)
    if server:
        print(_call("search_knowledge", given, server, token_file))
        return
    from skillserver.tools.knowledge import search_knowledge  # without the other tools: 0.15 s of a cold start

    print(search_knowledge(**given))


@app.command()
def read(section: Annotated[str, typer.Argument(help="A page or section id; nothing for the table of contents.")] = "",
         max_tokens: MaxTokens = None, server: Server = "", token_file: TokenFile = None) -> None:  # fmt: skip
    """Read a page or section of the knowledge base."""
    print(_call("read_knowledge", _given(id=section, max_tokens=max_tokens), server, token_file))


@app.command()
def tools(name: Annotated[str, typer.Argument(help="One tool, with its arguments.")] = "", as_json: AsJson = False,
          server: Server = "", token_file: TokenFile = None) -> None:  # fmt: skip
    """List the tools, or one tool with its arguments."""
    from skillserver import desk, tool_lists

    with _errors(as_json):
        listed = asyncio.run(desk.tools(server, token_file))
        tool_lists.show(listed, name, as_json)


@app.command()
def call(name: Annotated[str, typer.Argument(help="The tool.")],
         given: Annotated[list[str] | None, typer.Argument(help="JSON, @file, - for stdin, or name=value pairs.")] = None,
         input_: Annotated[str, typer.Option("--input", help="The arguments as JSON, @file, or - for stdin.")] = "",
         as_json: AsJson = False,
         fail_on: Annotated[str, typer.Option("--fail-on", help="Exit 3 when the verdict is this bad: warning or critical.")] = "",
         server: Server = "", token_file: TokenFile = None,
         allow_busy: Annotated[bool, typer.Option("--allow-busy", help="Run on a device that others use.")] = False,
         allow_login_node: Annotated[bool, typer.Option("--allow-login-node", help="Run on a SLURM login node.")] = False,
         max_minutes: Annotated[float, typer.Option("--max-minutes", help="Longest run.", min=0.1)] = 30.0,
         max_nodes: MaxNodes = 1, account: Account = "", partition: Partition = "", qos: Qos = "",
         allow_host: AllowHost = None, profile: Profiles = None, env_file: EnvFiles = None) -> None:  # fmt: skip
    """Call one tool and print its result."""
    if fail_on not in ("", "warning", "critical"):
        raise typer.BadParameter(f"{fail_on!r} is not warning or critical", param_hint="--fail-on")
    permissions.grant(permissions.Permissions(busy=allow_busy, login_node=allow_login_node, max_minutes=max_minutes, max_nodes=max_nodes,
                                              account=account or None, partition=partition or None, qos=qos or None,
                                              hosts=tuple(allow_host or ()), profiles=inputs.profiles(profile or [], env_file or [])))  # fmt: skip
    with _errors(as_json):
        arguments = inputs.arguments([*(given or []), *([input_] if input_ else [])])
        answer = _call(name, arguments, server, token_file)
    raise typer.Exit(_print(answer, as_json, fail_on, told_to_end=arguments.get("cancel") is True))


@app.command()
def serve(http: Annotated[bool, typer.Option("--http", help="Streamable HTTP instead of stdio.")] = False,
          host: Annotated[str, typer.Option(help="Address for --http; beyond loopback a token is required.")] = "127.0.0.1",
          port: Annotated[int, typer.Option(help="Port for --http.")] = 8000,
          token_file: Annotated[Path | None, typer.Option(help="File with the bearer token that clients must send.")] = None,
          toolsets: Annotated[str, typer.Option(envvar="SKILLSERVER_TOOLSETS", help="core, estimate, ... or all; comma-separated.")] = "core",
          tools: Annotated[str, typer.Option(envvar="SKILLSERVER_TOOLS", help="Single tools beside the toolsets; comma-separated.")] = "",
          read_only: Annotated[bool, typer.Option("--read-only", help="Serve nothing that starts work.")] = False,
          allow_run: Annotated[bool, typer.Option("--allow-run", help="HTTP: let clients run benchmarks and live checks here.")] = False,
          allow_path: Annotated[list[Path] | None, typer.Option(help="HTTP: a folder whose files clients may name; repeatable.")] = None,
          python: Annotated[list[str] | None, typer.Option(help="NAME=PATH of a training environment for workers; repeatable.")] = None,
          profile: Profiles = None, env_file: EnvFiles = None,
          allow_busy: Annotated[bool, typer.Option("--allow-busy", help="Run on devices that others use.")] = False,
          allow_login_node: Annotated[bool, typer.Option("--allow-login-node", help="Run on a SLURM login node.")] = False,
          max_nodes: MaxNodes = 1,
          max_minutes: Annotated[float, typer.Option(help="Longest run, in minutes.", min=0.1)] = 30.0,
          account: Account = "", partition: Partition = "", qos: Qos = "", allow_host: AllowHost = None,
          log_level: Annotated[str, typer.Option(help="debug, info, warning or error; logs go to stderr.")] = "warning") -> None:  # fmt: skip
    """Serve agents over MCP: stdio by default."""
    from skillserver import serving

    listener = serving.Listener(host, port, serving.read_token(token_file)) if http else None
    environments = inputs.profiles(profile or [], env_file or [])
    granted = permissions.Permissions(
        run=allow_run or not http, read_roots=tuple(allow_path or ()) if http else None, busy=allow_busy, login_node=allow_login_node,
        max_nodes=max_nodes, max_minutes=max_minutes, account=account or None, partition=partition or None, qos=qos or None,
        pythons=inputs.pythons(python or [], environments), profiles=environments, pythons_by_name_only=http,
        hosts=tuple(allow_host or ()), private_hosts=not http)  # fmt: skip
    permissions.grant(granted)
    serving.log_to_stderr(inputs.log_level(log_level))
    _serve(toolsets, tools, read_only, granted.run, listener)


def _serve(toolsets: str, tools: str, read_only: bool, run: bool, listener: Any) -> None:
    from skillserver import registry, server, serving

    chosen = registry.select(toolsets=toolsets.split(","), names=[name for name in tools.split(",") if name], read_only=read_only, run=run)
    if read_only:
        permissions.grant(permissions.without_running(permissions.current()))
    if listener:
        serving.over_http(server.build(chosen), listener)
    else:
        serving.over_stdio(server.build(chosen))


@app.command()
def doctor(as_json: AsJson = False, server: Server = "", token_file: TokenFile = None) -> None:
    """Say what this host offers, and the next step for what it lacks."""
    from skillserver import desk, terminal
    from skillserver.procedures import host_report

    with _errors(as_json):
        report = asyncio.run(desk.about(server, token_file)) if server else host_report.document()
        print(inputs.pretty(report)) if as_json else terminal.show(report)


@app.command()
def index(into: Annotated[Path | None, typer.Option("--into", help="Build into this folder, for images and read-only homes.")] = None,
          as_json: AsJson = False) -> None:  # fmt: skip
    """Build the search index now, so that the first search need not."""
    from skillserver import paths, terminal
    from skillserver.knowledge import library, sources

    with _errors(as_json):
        place = into or paths.cache()
        built = library.at(sources.folders(), place)
        if not any(place.glob("index-*")):
            raise NotHere("not_written", "; ".join(built.notes) or f"no index stands in {place}", next="name a writable folder with --into")
        report = {"folder": str(place), "pages": len(built.pages), "sections": len(built.sections), "notes": built.notes}
        print(inputs.pretty(report)) if as_json else terminal.show(report)


def _call(name: str, arguments: dict[str, Any], server: str, token_file: Path | None) -> Any:
    from skillserver import desk
    from skillserver.cluster import slurm_submit

    slurm_submit.end_jobs_with_us()
    return asyncio.run(desk.call(name, arguments, server, token_file))


def _print(answer: Any, as_json: bool, fail_on: str, told_to_end: bool) -> int:
    from skillserver import terminal

    if isinstance(answer, str):
        print(inputs.pretty({"text": answer}) if as_json else answer)
        return 0
    print(inputs.pretty(answer)) if as_json else terminal.show(answer)
    return inputs.exit_code(answer, fail_on, told_to_end=told_to_end)


@contextmanager
def _errors(as_json: bool) -> Iterator[None]:
    """Inside it a SkillError also becomes the JSON document that a script reads."""
    try:
        yield
    except SkillError as refused:
        if as_json:
            print(inputs.pretty(refused.document()))
        raise


def _version(wanted: bool) -> None:
    if wanted:
        print(f"skillserver {skillserver.__version__}")
        raise typer.Exit


@app.callback()
def _options(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    pass


def main() -> None:
    """The console script. Characters that a stream cannot show are escaped: a log may hold any, a terminal be of any kind."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except SystemExit as ended:
        if ended.code == WRONG_USAGE and "--json" in sys.argv:
            print(
                inputs.pretty(BadRequest("bad_usage", "the command line was not understood; stderr says why", next="skillserver --help").document())
            )
        raise
    except SkillError as refused:
        from skillserver import terminal

        print(terminal.printable(refused.sentence()), file=sys.stderr)
        raise SystemExit(WRONG_USAGE if isinstance(refused, BadRequest) and refused.code == "bad_usage" else 1) from None


if __name__ == "__main__":
    main()

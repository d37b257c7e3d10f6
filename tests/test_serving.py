"""The real process: clean stdout, HTTP's limits, tokens, both kinds of remote call."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from skillserver import desk, remote, serving
from skillserver.errors import BadRequest, NotHere, SkillError

TOKEN = "a-secret-of-good-length"
SERVE = [sys.executable, "-m", "skillserver", "serve"]


def environment(home: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "SKILLSERVER_HOME": str(home), **more}


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@contextmanager
def http_server(home: Path, *options: str) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [*SERVE, "--http", "--port", str(port), *options], env=environment(home), stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stderr
        url = process.stderr.readline().removeprefix("skillserver: ").strip()
        assert url == f"http://127.0.0.1:{port}/mcp"
        wait_until_listening(port, process)
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=20)


def wait_until_listening(port: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise AssertionError(f"the server ended with {process.returncode}")


async def nobody(done: float, total: float | None, message: str) -> None:
    pass


def call(url: str, name: str, arguments: dict[str, Any], token: str = "") -> Any:
    async def run() -> Any:
        async with remote.connected(url, token) as desk:
            return await desk.call(name, arguments, nobody)

    return asyncio.run(run())


def test_stdout_carries_the_protocol_and_nothing_else(tmp_path: Path) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}
    searched = {"name": "search_knowledge", "arguments": {"query": "ZeRO stages"}}
    asked = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": searched},
    ]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(SERVE, env=environment(tmp_path), text=True, **pipes)
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write("".join(json.dumps(message) + "\n" for message in asked))
    process.stdin.flush()
    answers = [json.loads(process.stdout.readline()) for _ in (1, 2)]
    rest, errors = process.communicate(timeout=30)
    assert [answer["id"] for answer in answers] == [1, 2]
    assert (rest, errors, process.returncode) == ("", "", 0)


def test_http_answers_text_and_refuses_what_runs_or_reads_here(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("RuntimeError: CUDA error: an illegal memory access was encountered\n")
    with http_server(tmp_path) as url:
        assert "debugging/hangs" in call(url, "search_knowledge", {"query": "NCCL watchdog timeout"})
        assert call(url, "explain_error", {"text": log.read_text()})["causes"]
        for name, arguments in (("check_gpu_health", {}), ("explain_error", {"path": str(log)}), ("run_mamf", {})):
            with pytest.raises(SkillError, match=r"not_permitted|path_not_permitted|not_offered"):
                call(url, name, arguments)


def test_http_reads_files_only_below_the_permitted_roots(tmp_path: Path) -> None:
    inside, outside = tmp_path / "logs", tmp_path / "private"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "train.log").write_text("RuntimeError: CUDA error: an illegal memory access was encountered\n")
    (inside / "link.log").symlink_to(outside / "train.log")
    with http_server(tmp_path / "home", "--allow-path", str(inside)) as url:
        assert call(url, "explain_error", {"path": str(inside / "train.log")})["causes"]
        for path in (outside / "train.log", inside / "../private/train.log", inside / "link.log"):
            with pytest.raises(SkillError, match="path_not_permitted"):
                call(url, "explain_error", {"path": str(path)})


def test_http_with_a_token_refuses_everybody_without_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    with http_server(tmp_path, "--token-file", str(tmp_path / "token")) as url:
        assert "mamf" in call(url, "search_knowledge", {"query": "MAMF"}, TOKEN).lower()
        for wrong in ("", TOKEN + "x", TOKEN[:-1]):
            with pytest.raises(NotHere, match=r"token_refused: .* Next: pass --token-file"):
                call(url, "search_knowledge", {"query": "MAMF"}, wrong)


def test_another_host_name_is_refused_against_rebinding(tmp_path: Path) -> None:
    with http_server(tmp_path) as url:
        answer = httpx2.post(url, headers={"Host": "evil.example"}, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert answer.status_code in (403, 421)


def test_beyond_loopback_a_token_is_required(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="token_required"):
        serving.Listener("0.0.0.0", 8000)
    done = subprocess.run([*SERVE, "--http", "--host", "0.0.0.0"], env=environment(tmp_path), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "--token-file" in done.stderr


def test_a_short_or_missing_token_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("1234")
    for file, said in ((tmp_path / "short", "4 characters"), (tmp_path / "none", "cannot be read")):
        with pytest.raises(BadRequest, match=said):
            serving.read_token(file)


def test_nobody_at_the_url_is_said_in_one_sentence() -> None:
    with pytest.raises(NotHere, match="did not answer as an MCP server"):
        call(f"http://127.0.0.1:{free_port()}/mcp", "search_knowledge", {"query": "x"})


def test_an_error_sentence_comes_back_as_the_error_it_was() -> None:
    error = BadRequest("unknown_dtype", "dtype 'bf61' is not known.", valid=["bf16", "fp16"], next="pass dtype='bf16'.")
    assert remote.parsed(error.sentence()).document() == error.document()


def test_a_server_without_stdin_or_stdout_says_so_and_ends(tmp_path: Path) -> None:
    for closed in ("<&-", ">&-", "<&- >&-"):
        done = subprocess.run(f"exec {' '.join(SERVE)} {closed}", shell=True, env=environment(tmp_path), capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (1, "no_stdio: stdin or stdout is closed. Next: start it from an MCP client, or serve --http.\n")


@pytest.mark.parametrize("secret", ["geheimnis-mit-zeichen-é中", "two-lines-of-secret\nsecond-line-of-it"])
def test_a_token_that_no_header_can_carry_is_refused_without_repeating_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    (tmp_path / "token").write_text(secret, encoding="utf-8")
    monkeypatch.setenv("SKILLSERVER_TOKEN", secret)
    for read in (lambda: serving.read_token(tmp_path / "token"), lambda: desk.token(None)):
        with pytest.raises(BadRequest, match="no HTTP header carries") as refused:
            read()
        assert secret[:10] not in str(refused.value)


def test_an_address_that_is_taken_or_not_ours_is_refused_before_it_is_announced(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for options in (["--port", str(taken.getsockname()[1])], ["--host", "192.0.2.1", "--token-file", str(tmp_path / "token")]):
            done = subprocess.run([*SERVE, "--http", *options], env=environment(tmp_path), capture_output=True, text=True)
            assert (done.returncode, done.stdout, done.stderr.split(":")[0]) == (1, "", "cannot_listen")

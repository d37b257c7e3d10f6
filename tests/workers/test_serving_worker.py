"""The client of inference servers and the serving benchmark, against a server that misbehaves in every usual way."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_server import scripted

SCRIPTS = Path(__file__).resolve().parents[2] / "skillserver/workers/scripts"
sys.path.insert(0, str(SCRIPTS))
import openai_client  # noqa: E402
import serving_load  # noqa: E402


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    """One stand-in server for all tests."""
    with scripted() as running:
        yield running


def place(server: Any, mode: str) -> dict[str, Any]:
    return {"scheme": "http", "host": "localhost", "address": "127.0.0.1", "port": server.server_port, "prefix": f"/{mode}/v1"}


def client(server: Any, mode: str, **more: Any) -> openai_client.Server:
    found = openai_client.Server(place(server, mode), **more)
    found.model = "one"
    return found


def run(server: Any, mode: str, **settings: Any) -> dict[str, Any]:
    """The last line of the worker."""
    settings = {"place": place(server, mode), "prompt_tokens": [32, 64], "output_tokens": [4], "concurrency": [1, 2], "budget_s": 1} | settings
    command = [sys.executable, str(SCRIPTS / "serving_bench.py"), "--settings", json.dumps(settings)]
    env = {"PATH": os.environ["PATH"], openai_client.KEY: "sk-secret"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize(("mode", "code", "words"), [
    ("limited", "rate_limited", "limits its requests (429, retry after 7 s): too many requests"),
    ("broken", "server_error", "answers 500: CUDA out of memory"),
    ("redirect", "redirected", "answers 307 and points to http://169.254.169.254/latest; redirects are not followed"),
    ("html", "not_a_stream", "answers with text/html instead of a stream of events"),
    ("silent", "broken_stream", "it ended without [DONE]"),
    ("cut", "broken_stream", "broke after 1 pieces (it ended without [DONE] and without a finish_reason)"),
    ("erring", "server_error", "broke off with: engine died"),
    ("odd", "broken_stream", "broke after 2 pieces (AttributeError)"),
])  # fmt: skip
def test_each_way_to_fail_is_one_sentence(server: Any, mode: str, code: str, words: str) -> None:
    with pytest.raises(openai_client.Refused) as caught:
        client(server, mode).ask("a b c", 2 if mode != "silent" else 0)
    if mode == "silent":  # [DONE] without any text
        assert caught.value.code == "empty_answer"
        return
    assert caught.value.code == code
    assert words in caught.value.message


def test_a_server_that_is_silent_too_long_and_one_that_is_not_there(server: Any) -> None:
    with pytest.raises(openai_client.Refused, match=r"said nothing for 0.2 s"):
        client(server, "slow", timeout_s=0.2).ask("a", 1)
    plain = openai_client.Server({**place(server, "fine"), "scheme": "https"})
    with pytest.raises(openai_client.Refused) as caught:
        plain.models()
    assert (caught.value.code, caught.value.kind) == ("tls", "bad_request")
    nowhere = openai_client.Server({**place(server, "fine"), "port": 1})
    with pytest.raises(openai_client.Refused, match=r"nothing listens at http://localhost:1/fine/v1"):
        nowhere.models()


@pytest.mark.parametrize(("mode", "words"), [
    ("endless", "sends on and on: 73 pieces of text and no end, for 2 tokens asked"),
    ("unending", "a line of it is longer than 1048576 bytes"),
    ("breathing", "broke after 0 pieces (no text came for 0.2 s)"),
])  # fmt: skip
def test_an_answer_without_an_end_is_ended(server: Any, mode: str, words: str) -> None:
    with pytest.raises(openai_client.Refused) as caught:
        client(server, mode, timeout_s=0.2 if mode == "breathing" else 60.0).ask("a", 2)
    assert words in caught.value.message


def test_the_key_goes_into_the_header_and_never_into_words(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(openai_client.KEY, "sk-secret")
    with pytest.raises(openai_client.Refused) as caught:
        client(server, "unauthorized").ask("a", 1)
    assert server.seen[-1]["authorization"] == "Bearer sk-secret"
    assert (caught.value.code, "sk-secret" in f"{caught.value.message} {caught.value.next}") == ("not_authorized", False)
    assert "the key that it was sent was refused" in caught.value.message
    monkeypatch.delenv(openai_client.KEY)
    with pytest.raises(openai_client.Refused, match="no key was sent"):
        client(server, "unauthorized").models()


def test_an_answer_carries_the_server_s_counts_or_says_that_they_are_its_own(server: Any) -> None:
    told = client(server, "fine").ask("a b c", 5)
    assert (told["prompt_tokens"], told["output_tokens"], told["chunks"], told["reported"]) == (11, 5, 5, True)
    assert told["sent"] < told["times"][0] <= told["times"][-1]
    told = client(server, "uncounted").ask("a b c", 5)
    assert (told["prompt_tokens"], told["output_tokens"], told["reported"]) == (None, 5, False)
    told = client(server, "lying").ask("a b c", 5)  # counts that none can be are no counts
    assert (told["prompt_tokens"], told["output_tokens"], told["reported"], told["cached_tokens"]) == (None, 5, False, None)


def test_prompts_have_the_wanted_length_by_the_server_s_own_counts_and_share_no_start() -> None:
    prompts = serving_load.Prompts(seed=1)
    prompts.learn(16, 2 * 16 + 5, 80, 2 * 80 + 5)
    assert [2 * len(prompts.text(tokens).split()) + 5 for tokens in (25, 125, 1025)] == [25, 125, 1025]
    fresh, again = (text.split() for text in prompts.pair(1005))
    assert fresh[:450] == again[:450]
    assert fresh[450:] != again[450:]
    assert len({prompts.text(64)[:40] for _ in range(20)}) == 20


def test_a_whole_run_measures_every_length_and_level_and_keeps_every_answer(server: Any, tmp_path: Path) -> None:
    told = run(server, "fine", raw_file=str(tmp_path / "samples.json"), ttft_ms=1000)
    assert told["type"] == "result"
    payload = told["payload"]
    assert [(row["tokens"], row["counted"]) for row in payload["by_prompt"]] == [(32, 33.0), (64, 65.0)]
    assert payload["by_output"][0]["tpot_ms"]["n"] >= 3
    assert [(row["concurrency"], row["share_in_target"]) for row in payload["levels"]] == [(1, 1.0), (2, 1.0)]
    assert all(row["output_tokens_s"] > 0 for row in payload["levels"])
    assert payload["counts"] == {"reported": True, "prompts": True}
    raw = json.loads((tmp_path / "samples.json").read_text())
    assert [row["what"] for row in raw] == ["prompt", "prompt", "output", "prefix", "load", "load"]
    assert len(raw[-1]["answers"]) == payload["levels"][1]["n"]
    assert "sk-secret" not in (tmp_path / "samples.json").read_text() + json.dumps(told)


@pytest.mark.parametrize(("mode", "settings", "code", "words"), [
    ("two", {}, "no_model", "it serves 2 models: one, two"),
    ("two", {"model": "three"}, "no_such_model", "'three' is not served at"),
    ("unlisted", {}, "no_model", "it does not list its models"),
    ("limited", {}, "rate_limited", "retry after 7 s"),
    ("unauthorized", {"model": "one"}, "not_authorized", "was refused"),
])  # fmt: skip
def test_a_run_that_cannot_begin_says_why(server: Any, mode: str, settings: dict[str, Any], code: str, words: str) -> None:
    told = run(server, mode, **settings)
    assert (told["type"], told["code"]) == ("failure", code)
    assert words in told["message"]


def test_fields_and_endpoints_that_a_server_does_not_take_are_done_without(server: Any) -> None:
    strict = run(server, "strict")["payload"]
    assert (strict["dropped"], strict["counts"]) == (["ignore_eos", "stream_options"], {"reported": False, "prompts": False})
    chat = run(server, "chatty")["payload"]
    assert (chat["api"], chat["counts"]["reported"]) == ("chat", True)
    unlisted = run(server, "unlisted", model="any")["payload"]
    assert unlisted["model"] == "any"


def test_a_prompt_that_the_model_cannot_hold_is_left_out_with_the_server_s_words(server: Any) -> None:
    payload = run(server, "too_long", prompt_tokens=[32, 1024])["payload"]
    assert [row["tokens"] for row in payload["by_prompt"]] == [32]
    assert "prompts of 1024 tokens" in payload["skipped"][0]
    assert "maximum context length is 256 tokens" in payload["skipped"][0]

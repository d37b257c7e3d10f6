"""What an OpenAI-compatible server gives: TTFT by prompt length, TPOT by output length, load, and what a prefix cache saves.

    python serving_bench.py --settings '{"place": {"scheme": "http", "host": "localhost", "address": "127.0.0.1",
        "port": 8000, "prefix": "/v1"}, "budget_s": 30}'

Settings: place (where), model (the only one served), api (auto, completions, chat), prompt_tokens, output_tokens,
concurrency (lists), ttft_ms and tpot_ms (targets of goodput), budget_s, timeout_s, raw_file, seed.

First a warm-up, which also finds out what the server takes and how it counts. Then rounds, each with every prompt length
and every output length once in a new order, alone; then pairs of a new prompt and one that shares its start; then the
levels of concurrency, up and down again. Standard library only; does not know what a good number is.
"""

import json
import random
import sys
import time
from pathlib import Path

import conditions
import openai_client
import protocol
import serving_load
from openai_client import Refused

PROMPTS, OUTPUTS, LEVELS = (128, 512, 2048), (16, 64), (1, 2, 4, 8)
BUDGET_S, TIMEOUT_S = 30.0, 60.0
SHARES = {"alone": 0.4, "prefix": 0.15, "levels": 0.45}
LEAST_ROUNDS, LEAST_PAIRS = 3, 3
SHORT = 2  # output tokens of a request that only asks for TTFT
OPTIONAL = ("ignore_eos", "stream_options")  # dropped in this order when a server does not take them
FEW_WORDS, MORE_WORDS = 16, 80


class Bench:
    """The settings, the server, and what was found so far."""

    def __init__(self, settings):
        self.server = openai_client.Server(settings["place"], float(settings.get("timeout_s") or TIMEOUT_S))
        self.lengths = {
            "prompt": sorted(set(settings.get("prompt_tokens") or PROMPTS)),
            "output": sorted(set(settings.get("output_tokens") or OUTPUTS)),
        }
        self.levels = sorted(set(settings.get("concurrency") or LEVELS))
        self.ttft_ms, self.tpot_ms = settings.get("ttft_ms"), settings.get("tpot_ms")
        self.budget_s = float(settings.get("budget_s") or BUDGET_S)
        self.seed = settings.get("seed") or random.SystemRandom().randrange(2**32)
        self.prompts = serving_load.Prompts(self.seed)
        self.alone = {("prompt", length): [] for length in self.lengths["prompt"]}
        self.alone.update({("output", length): [] for length in self.lengths["output"]})
        self.pairs, self.done, self.skipped, self.dropped = [], {}, [], []

    def middle(self, what):
        """The length that the load is made of."""
        return self.lengths[what][len(self.lengths[what]) // 2]


def chosen(bench, model, api):
    """Find the model and the way to ask for it; ends the worker with the list when there is no choice."""
    served = bench.server.models()
    if not model and (served is None or len(served) != 1):
        listed = (
            "it does not list its models" if served is None else "it serves {0} models: {1}".format(len(served), ", ".join(served[:20]) or "none")
        )
        raise Refused("no_model", "no model was named and {0}".format(listed), "pass model= with one of them", "bad_request")
    bench.server.model = model or served[0]
    if served is not None and bench.server.model not in served:
        words = "{0!r} is not served at {1}; served: {2}".format(model[:100], bench.server.url, ", ".join(served[:20]) or "none")
        raise Refused("no_such_model", words, "pass one of these as model", "bad_request")
    apis = ["completions", "chat"] if api in (None, "", "auto") else [api]
    for number, name in enumerate(apis):
        bench.server.api = name
        try:
            return accepted(bench)
        except Refused as refused:
            if refused.status not in (404, 405) or number == len(apis) - 1:
                raise
    return None


def accepted(bench):
    """One short answer, without the optional fields that this server does not take."""
    for name in (*OPTIONAL, None):
        try:
            return bench.server.ask(" ".join(bench.prompts.words(FEW_WORDS)), SHORT)
        except Refused as refused:
            if refused.status not in (400, 422) or name is None:
                raise
        bench.dropped.append(name)
        del bench.server.extras[name]
    return None


def warmed(bench):
    """Learn the length of words, then one request of the longest kind."""
    few, more = (bench.server.ask(" ".join(bench.prompts.words(count)), SHORT) for count in (FEW_WORDS, MORE_WORDS))
    bench.prompts.learn(FEW_WORDS, few["prompt_tokens"], MORE_WORDS, more["prompt_tokens"])
    for length in list(reversed(bench.lengths["prompt"])):
        try:
            bench.server.ask(bench.prompts.text(length), bench.lengths["output"][-1])
            return
        except Refused as refused:
            if refused.status not in (400, 413, 422) or len(bench.lengths["prompt"]) == 1:
                raise
            bench.lengths["prompt"].remove(length)
            del bench.alone["prompt", length]
            bench.skipped.append("prompts of {0} tokens: {1}".format(length, refused.message))


def rounds(bench, seconds):
    """Every length once a round, in a new order each time."""
    began, order, number = time.monotonic(), list(bench.alone), 0
    while not protocol.stopping() and (number < LEAST_ROUNDS or time.monotonic() - began < seconds):
        if number and time.monotonic() - began > 2 * seconds:
            break
        bench.prompts.choose.shuffle(order)
        for what, length in order:
            prompt, output = (length, SHORT) if what == "prompt" else (bench.lengths["prompt"][0], length)
            bench.alone[what, length].append(bench.server.ask(bench.prompts.text(prompt), output))
            if protocol.stopping():
                return
        number += 1
        protocol.progress(number, None, "round {0}, one request at a time".format(number), partial=report(bench, {}))


def prefix(bench, seconds):
    """Pairs: a new prompt, then one with the same first nine tenths."""
    began, length = time.monotonic(), bench.lengths["prompt"][-1]
    while not protocol.stopping() and (len(bench.pairs) < LEAST_PAIRS or time.monotonic() - began < seconds):
        if bench.pairs and time.monotonic() - began > 2 * seconds:
            break
        fresh, again = bench.prompts.pair(length)
        bench.pairs.append((bench.server.ask(fresh, SHORT), bench.server.ask(again, SHORT)))


def load(bench, seconds):
    """Levels of concurrency, up and down again, so that drift does not look like load."""
    levels = [serving_load.Level(bench.server, bench.prompts, count, bench.middle("prompt"), bench.middle("output")) for count in bench.levels]
    each, ends = seconds / (2 * len(levels)), time.monotonic() + 2 * seconds
    for level in [*levels, *reversed(levels)]:
        if protocol.stopping() or time.monotonic() > ends:
            break
        protocol.progress(level.concurrency, bench.levels[-1], "{0} requests at once".format(level.concurrency), partial=report(bench, {}))
        level.run(each)
        bench.done[level.concurrency] = level
    left = [level.concurrency for level in levels if level.concurrency not in bench.done]
    if left and not protocol.stopping():
        bench.skipped.append("concurrency {0}: the time was over".format(", ".join(map(str, left))))


def report(bench, seen):
    """The payload; also what is known so far."""
    told = {"base_url": bench.server.url, "model": bench.server.model, "api": bench.server.api, "by_prompt": [], "by_output": []}
    for (what, length), answers in bench.alone.items():
        if answers:
            told["by_" + what].append(one_length(what, length, answers))
    told["prefix"] = pairs_told(bench)
    told["levels"] = [bench.done[count].report(bench.ttft_ms, bench.tpot_ms) for count in bench.levels if count in bench.done]
    refused = [one for level in bench.done.values() for one in level.refused]
    told["refused"] = [{"code": one.code, "message": one.message} for one in refused[:3]]
    told["counts"] = {"reported": all(one["reported"] for answers in bench.alone.values() for one in answers), "prompts": bench.prompts.known}
    told.update(targets={"ttft_ms": bench.ttft_ms, "tpot_ms": bench.tpot_ms}, dropped=bench.dropped, skipped=bench.skipped, seed=bench.seed)
    return dict(told, partial=protocol.stopping(), conditions=dict(seen, server=bench.server.software) if seen else {})


def one_length(what, length, answers):
    """The row of a prompt or output length, requests alone."""
    said = [one["prompt_tokens" if what == "prompt" else "output_tokens"] for one in answers]
    told = {"tokens": length, "counted": sum(said) / len(said) if None not in said else None}
    if what == "prompt":
        return dict(told, ttft_ms=serving_load.row([serving_load.ttft_s(one) for one in answers]))
    return dict(told, tpot_ms=serving_load.row([each for each in map(serving_load.tpot_s, answers) if each is not None]),
                pieces=sum(one["chunks"] for one in answers) / len(answers))  # fmt: skip


def pairs_told(bench):
    """TTFT of new prompts beside that of a known start; the ratio is the median of the pairs."""
    if not bench.pairs:
        return None
    fresh, again = ([serving_load.ttft_s(pair[place]) for pair in bench.pairs] for place in (0, 1))
    ratios = [second / first for first, second in zip(fresh, again)]  # noqa: B905
    cached = [pair[1]["cached_tokens"] for pair in bench.pairs]
    return {"prompt_tokens": bench.lengths["prompt"][-1], "fresh_ttft_ms": serving_load.row(fresh), "shared_ttft_ms": serving_load.row(again),
            "ratio": serving_load.row(ratios, 1.0), "cached_tokens": max(cached) if None not in cached else None}  # fmt: skip


def keep_raw(name, bench):
    """Every answer as JSON, written aside and renamed; times from the sending of each request."""
    if not name:
        return

    def plain(one):
        return dict(one, times=[round(moment - one["sent"], 6) for moment in one["times"]], sent=None)

    told = [{"what": what, "tokens": length, "answers": [plain(one) for one in answers]} for (what, length), answers in bench.alone.items()]
    told.append({"what": "prefix", "pairs": [[plain(one) for one in pair] for pair in bench.pairs]})
    told += [{"what": "load", "concurrency": count, "answers": [plain(one) for one in level.answers]} for count, level in bench.done.items()]
    part = Path(name + ".part")
    part.write_text(json.dumps(told))
    part.replace(name)


def main(argv=None):
    """Find, warm up, measure; one result."""
    settings = protocol.start(argv)
    bench = Bench(settings)
    try:
        protocol.progress(0, None, "asking {0} what it serves".format(bench.server.url))
        chosen(bench, settings.get("model") or "", settings.get("api"))
        warmed(bench)
        watch = conditions.Watch("cpu")
        for work, name in ((rounds, "alone"), (prefix, "prefix"), (load, "levels")):
            if not protocol.stopping():
                work(bench, SHARES[name] * bench.budget_s)
    except Refused as refused:
        protocol.failure(refused.code, refused.message, refused.next, refused.kind)
    keep_raw(settings.get("raw_file"), bench)
    protocol.result(report(bench, watch.close()))


if __name__ == "__main__":
    sys.exit(main())

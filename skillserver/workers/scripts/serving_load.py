"""The load of a serving benchmark: prompts of a wanted length, and answers turned into TTFT, TPOT and tokens a second.

TTFT = first piece of text - request sent (the connection stands by then). TPOT = (last - first piece) / (tokens - 1).
Prompts are random common words, different from the first word on, so that no prefix cache knows them; how many words a
token needs is learnt from the server's own counts. Does not know HTTP.

>>> prompts = Prompts(seed=1); prompts.learn(16, 22, 64, 70); len(prompts.text(128).split())
122
"""

import random
import threading
import time

import openai_client
import protocol
import samples

TEXT = (
    "apple river stone cloud green window paper music garden silver table road winter summer bread water light night morning house city field "
    "horse train letter bridge island ocean valley forest mountain market kitchen doctor teacher student engine metal glass cotton sugar coffee "
    "butter orange yellow purple circle square number story dream voice hand heart shoulder finger king queen soldier farmer sailor driver writer "
    "painter singer actor north south east west spring autumn storm thunder snow rain fire earth wind wood iron gold copper salt pepper honey "
    "milk cheese carrot onion potato tomato lemon cherry plum "
)
WORDS = TEXT.split()
QUANTILES = (("p50", 50.0), ("p95", 95.0), ("p99", 99.0))


class Prompts:
    """Text of about so many tokens."""

    def __init__(self, seed):
        self.choose, self.lock = random.Random(seed), threading.Lock()
        self.tokens_a_word, self.fixed, self.known = 1.0, 0.0, False

    def learn(self, words, tokens, more_words, more_tokens):
        """From the server's counts of two prompts; a template of a chat adds a fixed number."""
        if tokens and more_tokens and more_tokens > tokens:
            self.tokens_a_word = (more_tokens - tokens) / (more_words - words)
            self.fixed, self.known = tokens - words * self.tokens_a_word, True

    def words(self, count):
        """Random words."""
        with self.lock:
            return [self.choose.choice(WORDS) for _ in range(max(1, count))]

    def count(self, tokens):
        """Words for so many tokens."""
        return max(1, round((tokens - self.fixed) / self.tokens_a_word))

    def text(self, tokens):
        """A prompt that nobody saw before."""
        return " ".join(self.words(self.count(tokens)))

    def pair(self, tokens):
        """(a new prompt, another that shares its first nine tenths)."""
        words = self.words(self.count(tokens))
        shared = words[: len(words) * 9 // 10]
        return " ".join(words), " ".join(shared + self.words(len(words) - len(shared)))


def ttft_s(answer):
    """Seconds from the request to the first piece."""
    return answer["times"][0] - answer["sent"]


def tpot_s(answer):
    """Seconds a token after the first; None for a single one or a single piece."""
    times, tokens = answer["times"], answer["output_tokens"]
    return (times[-1] - times[0]) / (tokens - 1) if tokens > 1 and len(times) > 1 else None


def row(values, unit=1e3):
    """p50 with its interval, p95 and p99 in ms, of seconds."""
    if not values:
        return None
    low, high, coverage = samples.median_interval(values)
    told = {name: samples.percentile(values, percent) * unit for name, percent in QUANTILES}
    return dict(told, ci_low=low * unit, ci_high=high * unit, coverage=coverage, n=len(values))


class Level:
    """So many requests at once, each followed by the next, until the time is over."""

    def __init__(self, server, prompts, concurrency, prompt_tokens, output_tokens):
        self.server, self.prompts, self.concurrency = server, prompts, concurrency
        self.prompt_tokens, self.output_tokens = prompt_tokens, output_tokens
        self.answers, self.refused, self.rates = [], [], []

    def run(self, seconds):
        """One pass. Tokens count from the start until the first of the streams stops asking: all are busy until then."""
        began, passed, stopped = time.perf_counter(), [], []
        ends = began + seconds

        def work():
            while True:
                try:
                    passed.append(self.server.ask(self.prompts.text(self.prompt_tokens), self.output_tokens))
                except openai_client.Refused as refused:
                    self.refused.append(refused)
                    time.sleep(0.05)  # a server that refuses at once is not to be hammered
                if time.perf_counter() >= ends or protocol.stopping():
                    stopped.append(time.perf_counter())
                    return

        threads = [threading.Thread(target=work, daemon=True) for _ in range(self.concurrency)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until = min(stopped)
        tokens = sum(sum(began <= moment <= until for moment in one["times"]) * one["output_tokens"] / one["chunks"] for one in passed)
        self.answers += passed
        self.rates.append(tokens / (until - began))

    def report(self, ttft_ms, tpot_ms):
        """The row of this level; goodput counts requests that meet both targets."""
        told = {"concurrency": self.concurrency, "n": len(self.answers), "refused": len(self.refused), "prompt_tokens": self.prompt_tokens,
                "output_tokens": self.output_tokens, "passes": len(self.rates)}  # fmt: skip
        if not self.answers:
            return told
        tokens = sum(one["output_tokens"] for one in self.answers) / len(self.answers)
        rate = sum(self.rates) / len(self.rates)
        told.update(output_tokens_s=rate, output_tokens_s_each=self.rates, requests_s=rate / tokens)
        told.update(ttft_ms=row([ttft_s(one) for one in self.answers]), tpot_ms=row([each for each in map(tpot_s, self.answers) if each is not None]))
        if ttft_ms or tpot_ms:
            told["share_in_target"] = sum(meets(one, ttft_ms, tpot_ms) for one in self.answers) / (len(self.answers) + len(self.refused))
            told["goodput_requests_s"] = told["share_in_target"] * told["requests_s"]
        return told


def meets(answer, ttft_ms, tpot_ms):
    """Whether one answer keeps both targets; a missing target is kept."""
    each = tpot_s(answer)
    return (not ttft_ms or ttft_s(answer) * 1e3 <= ttft_ms) and (not tpot_ms or each is None or each * 1e3 <= tpot_ms)

"""One streamed request to an OpenAI-compatible server, with the time of every piece; standard library only.

It connects to the address that was permitted, whatever the name resolves to by now, follows no redirect, uses no proxy,
and sends the key of SKILLSERVER_INFERENCE_KEY, when it was given one, in the header and nowhere else. What a server
refuses is one sentence: `Refused`. Does not know what is measured with it.

>>> Server({"scheme": "http", "host": "localhost", "address": "127.0.0.1", "port": 8000, "prefix": "/v1"}).models()
['my-model']
"""

import http.client
import json
import os
import socket
import ssl
import time

KEY = "SKILLSERVER_INFERENCE_KEY"
LONGEST = 200  # characters of a server's own words
MOST_BODY, MOST_LINE = 2**20, 2**20  # bytes
MOST_TOKENS = 2**31
PIECES_A_TOKEN, PIECES_MORE = 4, 64  # a piece is a token or more; a server that splits them still stays below
PATHS = {"completions": "/completions", "chat": "/chat/completions"}
SET_KEY = "ask your user to set {0} where skillserver starts; it is sent to loopback and to hosts named by --allow-host only".format(KEY)


class Refused(Exception):
    """A request that gave no answer: code, message, next, and kind as protocol.failure wants them; `status` of HTTP or 0."""

    def __init__(self, code, message, next="", kind="failed", status=0):
        super().__init__(message)
        self.code, self.message, self.next, self.kind, self.status = code, message, next, kind, status


class Connection(http.client.HTTPConnection):
    """To one fixed address, under the name of the host."""

    def __init__(self, place, timeout):
        super().__init__(place["host"], place["port"], timeout=timeout)
        self.place = place

    def connect(self):
        """TCP, then TLS for https."""
        self.sock = socket.create_connection((self.place["address"], self.place["port"]), self.timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.place["scheme"] == "https":
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.place["host"])


class Server:
    """One base URL; `api` is completions or chat, `extras` the optional fields that it was found to take."""

    def __init__(self, place, timeout_s=60.0):
        self.place, self.timeout_s = place, timeout_s
        host = "[{0}]".format(place["host"]) if ":" in place["host"] else place["host"]
        self.url = "{0}://{1}:{2}{3}".format(place["scheme"], host, place["port"], place["prefix"])
        self.key, self.software = os.environ.get(KEY, ""), ""
        self.model, self.api = "", "completions"
        self.extras = {"ignore_eos": True, "stream_options": {"include_usage": True}}

    def headers(self):
        """What every request carries."""
        told = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json", "User-Agent": "skillserver",
                "Connection": "close"}  # fmt: skip
        return dict(told, Authorization="Bearer " + self.key) if self.key else told

    def models(self):
        """The names it serves; None when it does not list them."""
        try:
            with_body = self.opened("GET", "/models", None)
            return [str(row["id"]) for row in json.loads(with_body[1].read(MOST_BODY))["data"]]
        except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
            return None
        except Refused as refused:
            if refused.status in (404, 405, 501):
                return None
            raise

    def opened(self, method, path, body):
        """(the moment the request was sent, the response). Raises Refused unless it answers 200."""
        connection = Connection(self.place, self.timeout_s)
        try:
            connection.connect()
            sent = time.perf_counter()
            connection.request(method, self.place["prefix"] + path, body=body, headers=self.headers())
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as problem:
            connection.close()
            raise self.lost(problem) from problem
        self.software = response.getheader("Server") or self.software
        if response.status != 200:
            refused = self.refusal(response, path)
            connection.close()
            raise refused
        response.owner = connection  # closed with the response, and kept as long
        return sent, response

    def lost(self, problem):
        """Why there was no answer."""
        if isinstance(problem, ConnectionRefusedError):
            return Refused("no_server", "nothing listens at {0}".format(self.url), "start the server, or correct base_url", "not_here")
        if isinstance(problem, socket.timeout):
            return Refused("server_timeout", "{0} said nothing for {1:g} s".format(self.url, self.timeout_s),
                           "pass shorter prompt_tokens, or look at the server's log and its load")  # fmt: skip
        if isinstance(problem, ssl.SSLError):
            return Refused("tls", "{0}: {1}".format(self.url, problem.reason or problem), "use http:// or correct the certificate", "bad_request")
        if isinstance(problem, http.client.HTTPException) and not isinstance(problem, http.client.RemoteDisconnected):
            return Refused(
                "not_http", "{0} does not answer in HTTP ({1})".format(self.url, type(problem).__name__), "correct base_url", "bad_request"
            )
        words = "{0} cannot be reached: {1}".format(self.url, getattr(problem, "strerror", None) or problem or type(problem).__name__)
        return Refused("unreachable", words, "check host, port and network", "not_here")

    def refusal(self, response, path):
        """What a status other than 200 means."""
        status, words = response.status, self.said(response)
        if status in (401, 403):
            had = "the key that it was sent was refused" if self.key else "no key was sent"
            return Refused("not_authorized", "{0} answers {1}: {2}".format(self.url, status, had), SET_KEY, "not_here", status)
        if 300 <= status < 400:
            to = response.getheader("Location") or "elsewhere"
            return Refused("redirected", "{0} answers {1} and points to {2}; redirects are not followed".format(self.url, status, to[:LONGEST]),
                           "pass that URL as base_url, when you trust it", "bad_request", status)  # fmt: skip
        if status == 429:
            wait = response.getheader("Retry-After")
            after = ", retry after {0} s".format(wait) if wait else ""
            return Refused("rate_limited", "{0} limits its requests (429{1}): {2}".format(self.url, after, words),
                           "measure without a limit, or with lower concurrency", "failed", status)  # fmt: skip
        if status == 404:
            return Refused("not_found", "{0}{1} is not there (404): {2}".format(self.url, path, words),
                           "base_url ends before /completions, mostly in /v1", "bad_request", status)  # fmt: skip
        kind = "bad_request" if status in (400, 413, 422) else "failed"
        return Refused("server_refused" if kind == "bad_request" else "server_error", "{0} answers {1}: {2}".format(self.url, status, words),
                       "", kind, status)  # fmt: skip

    def said(self, response):
        """The server's own words on one line, without the key, should it repeat it."""
        try:
            text = response.read(MOST_BODY).decode(errors="replace")
        except (OSError, http.client.HTTPException):
            return "no reason given"
        try:
            document = json.loads(text)
            error = document.get("error", document) if isinstance(document, dict) else document
            text = str(error.get("message") or error.get("detail") or error) if isinstance(error, dict) else str(error)
        except ValueError:
            pass
        plain = " ".join(text.split())[:LONGEST] or "no reason given"
        return plain.replace(self.key, "***") if self.key else plain

    def body(self, prompt, output_tokens):
        """The request."""
        told = {"model": self.model, "max_tokens": output_tokens, "temperature": 0, "stream": True}
        told.update(self.extras)
        asked = {"prompt": prompt} if self.api == "completions" else {"messages": [{"role": "user", "content": prompt}]}
        return json.dumps(dict(told, **asked)).encode()

    def ask(self, prompt, output_tokens):
        """One answer: {sent, times, chunks, prompt_tokens, output_tokens, cached_tokens}; times in s of perf_counter. Raises Refused."""
        sent, response = self.opened("POST", PATHS[self.api], self.body(prompt, output_tokens))
        try:
            kind = response.getheader("Content-Type") or "nothing"
            if "text/event-stream" not in kind:
                words = "{0} answers with {1} instead of a stream of events".format(self.url, kind.split(";")[0])
                raise Refused("not_a_stream", words, "check that base_url is an OpenAI-compatible server", "bad_request")
            return self.followed(sent, response, output_tokens)
        finally:
            response.close()
            response.owner.close()

    def followed(self, sent, response, output_tokens):
        """Read the stream to its end, or to where it goes on longer than any answer of that length would."""
        told, ended, most = {"sent": sent, "times": [], "usage": None}, False, PIECES_A_TOKEN * output_tokens + PIECES_MORE
        try:
            for raw in iter(lambda: response.readline(MOST_LINE), b""):
                now = time.perf_counter()
                self.bounded(told, raw, now, most)
                if not raw.startswith(b"data:"):
                    continue
                text = raw[5:].strip()
                if text == b"[DONE]":
                    ended = True
                    break
                ended = self.piece(json.loads(text), now, told) or ended
        except socket.timeout as problem:
            raise self.broken(told, "nothing more came for {0:g} s".format(self.timeout_s)) from problem
        except (OSError, ValueError, AttributeError, TypeError, http.client.HTTPException) as problem:  # also events of another shape
            raise self.broken(told, type(problem).__name__) from problem
        if not ended:
            raise self.broken(told, "it ended without [DONE] and without a finish_reason")
        if not told["times"]:
            raise Refused("empty_answer", "{0} answered without any text".format(self.url), "try another prompt length, or look at the server's log")
        return counted(told, output_tokens)

    def bounded(self, told, raw, now, most):
        """Raises Refused for a line without an end, more text than was asked for, and signs of life without text."""
        if len(raw) == MOST_LINE:
            raise self.broken(told, "a line of it is longer than {0} bytes".format(MOST_LINE))
        if now - (told["times"] or [told["sent"]])[-1] > self.timeout_s:
            raise self.broken(told, "no text came for {0:g} s".format(self.timeout_s))
        if len(told["times"]) > most:
            asked = (most - PIECES_MORE) // PIECES_A_TOKEN
            words = "{0} sends on and on: {1} pieces of text and no end, for {2} tokens asked".format(self.url, len(told["times"]), asked)
            raise Refused("endless_answer", words, "use a server that keeps max_tokens")

    def piece(self, event, now, told):
        """Take one event; True when it ends a choice."""
        if not isinstance(event, dict) or event.get("error"):
            error = event.get("error") if isinstance(event, dict) else event
            words = error.get("message", error) if isinstance(error, dict) else error
            raise Refused("server_error", "{0} broke off with: {1}".format(self.url, str(words)[:LONGEST]), "look at the server's log")
        told["usage"] = event.get("usage") or told["usage"]
        ended = False
        for choice in event.get("choices") or []:
            delta = choice.get("delta") or {}
            if choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning"):
                told["times"].append(now)
            ended = ended or bool(choice.get("finish_reason"))
        return ended

    def broken(self, told, why):
        """A stream that did not come to its end."""
        words = "the stream from {0} broke after {1} pieces ({2})".format(self.url, len(told["times"]), why)
        return Refused("broken_stream", words, "look at the server's log, and at proxies between")


def counted(told, output_tokens):
    """With token counts: the server's own where they can be, else one token a piece for the answer and none for the prompt."""
    usage = told.pop("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    said = whole(usage.get("completion_tokens"), PIECES_A_TOKEN * output_tokens + PIECES_MORE)
    return dict(told, chunks=len(told["times"]), reported=bool(said), prompt_tokens=whole(usage.get("prompt_tokens"), MOST_TOKENS),
                output_tokens=said or len(told["times"]),
                cached_tokens=whole(details.get("cached_tokens"), MOST_TOKENS, 0) if isinstance(details, dict) else None)  # fmt: skip


def whole(value, most, least=1):
    """A count as a server reports it; None for what cannot be one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else None

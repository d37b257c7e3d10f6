"""A stand-in for an OpenAI-compatible server that misbehaves in one way, by the first part of its path (/slow/v1 ...)."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REFUSALS: dict[str, tuple[int, Any]] = {
    "unauthorized": (401, {"error": {"message": "Incorrect API key provided: {key}"}}),
    "limited": (429, {"error": {"message": "too many requests"}}),
    "broken": (500, {"detail": "CUDA out of memory"}),
    "redirect": (307, ""),
    "too_long": (400, {"error": {"message": "maximum context length is 256 tokens"}}),
}


class Handler(BaseHTTPRequestHandler):
    """Answers by the first part of the path; `seen` keeps what was asked."""

    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""

    @property
    def mode(self) -> str:
        """What it does wrong."""
        return self.path.split("/")[1]

    def do_GET(self) -> None:
        """The models."""
        if self.mode == "unlisted":
            return self.plain(404, {"detail": "Not Found"})
        if self.mode == "unauthorized":
            return self.refuse()
        names = ["one", "two"] if self.mode == "two" else ["one"]
        return self.plain(200, {"data": [{"id": name} for name in names]})

    def do_POST(self) -> None:
        """One answer."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append({"path": self.path, "authorization": self.headers["Authorization"], **asked})
        if self.mode == "strict" and {"ignore_eos", "stream_options"} & set(asked):
            return self.plain(422, {"error": {"message": "unknown field"}})
        if self.mode == "chatty" and not self.path.endswith("/chat/completions"):
            return self.plain(404, {"detail": "Not Found"})
        if self.mode == "too_long" and len(asked["prompt"].split()) < 200:
            return self.stream(asked)
        if self.mode in REFUSALS:
            return self.refuse()
        if self.mode == "html":
            return self.plain(200, "<html>welcome</html>", "text/html")
        if self.mode == "slow":
            time.sleep(1.5)
        return self.stream(asked)

    def refuse(self) -> None:
        """The status of this mode."""
        status, body = REFUSALS[self.mode]
        text = json.dumps(body).replace("{key}", str(self.headers["Authorization"]).removeprefix("Bearer "))
        self.plain(status, json.loads(text))

    def plain(self, status: int, body: Any, kind: str = "application/json") -> None:
        """A whole answer."""
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if status == 429:
            self.send_header("Retry-After", "7")
        if status == 307:
            self.send_header("Location", "http://169.254.169.254/latest")
        self.end_headers()
        self.wfile.write(data)

    def stream(self, asked: dict[str, Any]) -> None:
        """Pieces of text; without usage, or cut off, where the mode wants it."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()  # no length and no chunks: the end of the connection ends it
        self.close_connection = True
        if self.mode in ("endless", "unending", "breathing"):
            return self.without_end()
        chat = self.path.endswith("/chat/completions")
        count = 0 if self.mode == "silent" else asked["max_tokens"]
        for number in range(count):
            if self.mode == "cut" and number:
                return None
            piece = {"delta": {"content": "x"}} if chat else {"text": "x"}
            self.event({"choices": [dict(piece, finish_reason="length" if number == count - 1 else None)]})
        if self.mode == "odd":
            return self.event({"choices": ["not an object"]})
        if self.mode == "erring":
            return self.event({"error": {"message": "engine died"}})
        if (asked.get("stream_options") or {}).get("include_usage") and self.mode != "uncounted":
            words = len((asked["messages"][0]["content"] if chat else asked["prompt"]).split())
            usage = {"prompt_tokens": 2 * words + 5, "completion_tokens": count}
            lies = {"prompt_tokens": -5, "completion_tokens": 1e30, "prompt_tokens_details": 7}
            self.event({"choices": [], "usage": lies if self.mode == "lying" else usage})
        self.wfile.write(b": comment\n\ndata: [DONE]\n\n")
        return None

    def without_end(self) -> None:
        """Text for ever, one line for ever, or signs of life without text."""
        data = {"endless": b'data: {"choices": [{"text": "x"}]}\n\n', "unending": b"x" * 65536, "breathing": b": still here\n\n"}[self.mode]
        while True:  # until the client goes away, which handle_error passes over
            self.wfile.write(data)
            self.wfile.flush()
            time.sleep(0.01 if self.mode == "breathing" else 0)

    def event(self, document: dict[str, Any]) -> None:
        """One event."""
        self.wfile.write(b"data: " + json.dumps(document).encode() + b"\n\n")
        self.wfile.flush()


@contextmanager
def scripted() -> Iterator[Any]:
    """A running server; `seen` lists the requests, `server_port` is where."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # a client that goes away is no error here
    server.seen = []
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

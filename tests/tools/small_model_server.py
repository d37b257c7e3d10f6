"""An OpenAI-compatible server over a small transformer with random weights, a real KV cache and a real prefix cache.

    python small_model_server.py            # prints its port

A word is a token. One step of one sequence at a time, in turns, as a server without batching would. Serves /v1/models,
/v1/completions and /v1/chat/completions as streams; knows ignore_eos and stream_options.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from torch import nn

VOCABULARY, WIDTH, HEADS, LAYERS, LONGEST = 512, 256, 4, 4, 4096
KEPT_PROMPTS = 4
turn = threading.Lock()


class Layer(nn.Module):
    """Attention over the cache and a feed-forward block."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, cache: "torch.Tensor | None") -> tuple[torch.Tensor, torch.Tensor]:
        """x [tokens, width], cache [2, heads, seen, width of a head] or None -> (x, longer cache)."""
        q, k, v = self.qkv(self.first(x)).view(len(x), 3, HEADS, WIDTH // HEADS).permute(1, 2, 0, 3)
        kv = torch.stack([k, v]) if cache is None else torch.cat([cache, torch.stack([k, v])], dim=2)
        seen = kv.shape[2]
        mask = torch.ones(len(x), seen, dtype=torch.bool).tril(seen - len(x))
        mixed = nn.functional.scaled_dot_product_attention(q, kv[0], kv[1], attn_mask=mask)
        x = x + self.out(mixed.transpose(0, 1).reshape(len(x), WIDTH))
        return x + self.down(torch.relu(self.up(self.second(x)))), kv


class Model(nn.Module):
    """The transformer; `extend` feeds tokens behind a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.layers, self.head = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.Linear(WIDTH, VOCABULARY)

    def extend(self, tokens: list[int], caches: "list[torch.Tensor] | None") -> tuple[int, list[torch.Tensor]]:
        """(most likely next token, the caches with these tokens)."""
        seen = caches[0].shape[2] if caches else 0
        x = self.embedding(torch.tensor(tokens)) + self.places(torch.arange(seen, seen + len(tokens)))
        longer = []
        for number, layer in enumerate(self.layers):
            x, cache = layer(x, caches[number] if caches else None)
            longer.append(cache)
        return int(self.head(x[-1]).argmax()), longer


class Engine:
    """The model with the caches of the last prompts."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model, self.kept = Model().eval(), []

    def known(self, prompt: list[int]) -> "tuple[int, list[torch.Tensor] | None]":
        """The longest start of this prompt that is cached; the last token is always computed."""
        best, found = 0, None
        for tokens, caches in self.kept:
            same = next((place for place, (a, b) in enumerate(zip(tokens, prompt, strict=False)) if a != b), min(len(tokens), len(prompt)))
            same = min(same, len(prompt) - 1)
            if same > best:
                best, found = same, [cache[:, :, :same] for cache in caches]
        return best, found

    def answer(self, prompt: list[int], count: int):
        """Yields (token, cached tokens of the prompt), one step at a time, in turns with others."""
        with turn, torch.inference_mode():
            cached, caches = self.known(prompt)
            token, caches = self.model.extend(prompt[cached:], caches)
            self.kept = [(prompt, caches), *self.kept][:KEPT_PROMPTS]
        for _ in range(count):
            yield token, cached
            with turn, torch.inference_mode():
                token, caches = self.model.extend([token], caches)


engine = Engine()


class Handler(BaseHTTPRequestHandler):
    """The three endpoints."""

    protocol_version = "HTTP/1.1"
    server_version = "small-model"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""

    def do_GET(self) -> None:
        """The one model."""
        body = json.dumps({"object": "list", "data": [{"id": "small", "object": "model"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """A stream of tokens."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chat = self.path.endswith("/chat/completions")
        text = asked["messages"][0]["content"] if chat else asked["prompt"]
        prompt = [hash(word) % VOCABULARY for word in text.split()]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        made, cached = 0, 0
        for token, known in engine.answer(prompt, asked["max_tokens"]):
            made, cached = made + 1, known
            piece = {"delta": {"content": f" w{token}"}} if chat else {"text": f" w{token}"}
            self.event({"choices": [dict(piece, index=0, finish_reason="length" if made == asked["max_tokens"] else None)]})
        if (asked.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": len(prompt), "completion_tokens": made, "prompt_tokens_details": {"cached_tokens": cached}}
            self.event({"choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, document: dict) -> None:
        """One event of the stream."""
        self.chunk(b"data: " + json.dumps(document).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        """One chunk of HTTP, at once."""
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


if __name__ == "__main__":
    torch.set_num_threads(1)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()

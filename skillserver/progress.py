"""How far a long call has come, said to whoever listens: an MCP progress token, a terminal bar, or nobody.

The listener is a context variable, so tools stay plain functions. Knows nothing of MCP or terminals.

>>> with listening(bar.update):
...     await report(3, 100, "shape 3 of 100, best 1.9 TFLOPS")
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[float, float | None, str], Awaitable[None]]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Everything reported inside goes to `listener(done, total, message)`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


async def report(done: float, total: float | None, message: str) -> None:
    """Say it; without a listener this does nothing."""
    if listener := _listener.get():
        await listener(done, total, message)

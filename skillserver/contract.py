"""`@tool`: one plain typed function becomes one validated tool for Python, CLI and MCP alike.

The signature is the schema: `Annotated[int, Field(ge=1, description="GPUs")] = 8`. The docstring's first paragraph is
the description a model reads; what follows is for people. Calls from anywhere pass `validate`, so a bad argument is
one BadRequest that names every bad field. Knows pydantic; not MCP, not any subject.

>>> @tool(toolset="core", title="Add", read_only=True)
... def add(a: Annotated[int, Field(ge=0, description="first addend")], b: int = 1) -> Sum: "Add two integers."
>>> add(a=2).total, add.input_schema()["required"]
(3, ['a'])
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Generic, ParamSpec, TypeVar

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo

from skillserver import mistakes, schemas
from skillserver.errors import BadRequest

P = ParamSpec("P")
R = TypeVar("R")

LISTED = 8  # bad values worth naming in one sentence
TOOLSETS = ("core", "estimate", "measure", "health", "diagnose", "cluster")


@dataclass(frozen=True)
class Hints:
    """The four MCP hints; all are always said, because an absent one means the worst."""

    read_only: bool
    destructive: bool
    idempotent: bool
    open_world: bool


class Tool(Generic[P, R]):
    """A tool: call it like the function it was made from; `arguments` is its input model."""

    def __init__(self, fn: Callable[P, R], *, title: str, toolset: str, hints: Hints, runs: bool, aliases: tuple[str, ...]) -> None:
        if toolset not in TOOLSETS:
            raise ValueError(f"toolset {toolset!r} is not one of {TOOLSETS}")
        self.fn: Callable[..., Any] = fn
        self.title, self.toolset, self.hints, self.runs, self.aliases = title, toolset, hints, runs, aliases
        self.name: str = fn.__name__
        self.__doc__ = fn.__doc__
        self.is_async = inspect.iscoroutinefunction(fn)
        self.signature = inspect.signature(fn)

    @cached_property
    def description(self) -> str:
        """The docstring's first paragraph; its first line says when to call."""
        return inspect.cleandoc(self.__doc__ or "").split("\n\n")[0].replace("\n", " ")

    @cached_property
    def arguments(self) -> type[BaseModel]:
        """The input model: extra forbidden, NaN and infinity refused."""
        hints = typing.get_type_hints(self.fn, include_extras=True)
        fields: dict[str, Any] = {
            name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
            for name, parameter in self.signature.parameters.items()
        }
        config = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
        return create_model(f"{self.name}_arguments", __config__=config, **fields)

    @cached_property
    def returns(self) -> Any:
        """The declared result type: a pydantic model, or str for Markdown."""
        return typing.get_type_hints(self.fn)["return"]

    @property
    def is_markdown(self) -> bool:
        """Whether the answer is Markdown for a reader and not a structured result."""
        return self.returns is str

    def input_schema(self) -> dict[str, Any]:
        """Compact JSON Schema of the arguments."""
        return schemas.compact(self.arguments.model_json_schema())

    def output_schema(self) -> dict[str, Any] | None:
        """Top-level fields of the result only (a nested schema costs more than the tool), None for Markdown."""
        return None if self.is_markdown else schemas.top_level(self.returns.model_json_schema(mode="serialization"))

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Typed arguments. Raises one BadRequest that names every bad field with the value seen and its bound."""
        try:
            model = self.arguments.model_validate(self._unwrapped(arguments))
        except ValidationError as problem:
            raise mistakes.refusal(self.name, list(self.signature.parameters), problem) from problem
        return {name: getattr(model, name) for name in type(model).model_fields}

    def _unwrapped(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Some clients send lists and objects as JSON text; unwrap them where text makes no sense."""
        if not isinstance(arguments, Mapping):
            raise BadRequest("bad_arguments", f"{self.name} takes a JSON object, not {type(arguments).__name__}", valid=self.signature.parameters)
        unwrapped = {name: _from_json(value, self.arguments.model_fields.get(name)) for name, value in arguments.items()}
        for name, value in unwrapped.items():
            field = self.arguments.model_fields.get(name)
            if isinstance(value, bool) and field and bool not in set(_leaves(field.annotation)):  # pydantic would take True for 1
                raise BadRequest(
                    "bad_arguments",
                    f"{self.name}: {name}: {value} is neither a number nor text",
                    next=f"{self.name} takes {', '.join(self.signature.parameters)}",
                )
        reasons: list[str] = []
        _finite(
            {name: value for name, value in unwrapped.items() if isinstance(value, dict | list)}, "", reasons
        )  # a number itself is seen by its field
        if reasons:
            raise BadRequest("bad_arguments", f"{self.name}: {'; '.join(reasons[:LISTED])}", next="pass finite numbers")
        return unwrapped

    def _bound(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            given = self.signature.bind_partial(*args).arguments | kwargs
        except TypeError as problem:
            raise BadRequest("bad_arguments", f"{self.name}: {problem}", valid=self.signature.parameters) from problem
        return self.validate(given)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Validate, then run the function; a coroutine when the tool is async."""
        result: R = self.fn(**self._bound(*args, **kwargs))
        return result

    def sync(self, *args: Any, **kwargs: Any) -> Any:
        """The same for a script without an event loop: waits for an async tool."""
        arguments = self._bound(*args, **kwargs)
        return asyncio.run(self.fn(**arguments)) if self.is_async else self.fn(**arguments)

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """For servers: validate, run plain functions in a thread, await async ones."""
        validated = self.validate(arguments)
        if self.is_async:
            return await self.fn(**validated)
        return await anyio.to_thread.run_sync(partial(self.fn, **validated))


def tool(*, toolset: str, title: str, read_only: bool, destructive: bool = False, idempotent: bool = True, open_world: bool = False,
         runs: bool = False, aliases: tuple[str, ...] = ()) -> Callable[[Callable[P, R]], Tool[P, R]]:  # fmt: skip
    """Make a tool of a function. `runs` = it starts work on this host and needs permission for it."""
    hints = Hints(read_only, destructive, idempotent, open_world)
    return lambda fn: Tool(fn, title=title, toolset=toolset, hints=hints, runs=runs, aliases=aliases)


def document(result: BaseModel) -> dict[str, Any]:
    """The one JSON document of a result: finite, with the reason of every null that stood for NaN or infinity."""
    dumped = result.model_dump(mode="python")
    reasons: list[str] = []
    clean = json.loads(json.dumps(_finite(dumped, "", reasons), default=_plain, ensure_ascii=False))
    return clean | {"not_finite": reasons} if reasons else clean


def _finite(value: Any, where: str, reasons: list[str]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        reasons.append(f"{where}: {value} is not a number a reader could use")
        return None
    if isinstance(value, dict):
        return {key: _finite(item, f"{where}.{key}" if where else str(key), reasons) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item, f"{where}[{number}]", reasons) for number, item in enumerate(value)]
    return value


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)


def _from_json(value: Any, field: FieldInfo | None) -> Any:
    if field is None or not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    if str in set(_leaves(field.annotation)):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _leaves(annotation: Any) -> Iterator[Any]:
    """The alternatives of `str | list[int] | None`, Annotated stripped."""
    if typing.get_origin(annotation) is typing.Annotated:
        yield from _leaves(typing.get_args(annotation)[0])
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for part in typing.get_args(annotation):
            yield from _leaves(part)
    else:
        yield annotation


def compact_json(value: dict[str, Any]) -> str:
    """One line without spaces: what an agent pays for."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

"""One function, one schema, one validation for Python, CLI and MCP."""

import asyncio
import math
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from skillserver import contract
from skillserver.contract import tool
from skillserver.errors import BadRequest
from skillserver.units import Count, Seconds


class Total(BaseModel):
    total: float
    parts: list[float] = []
    note: str | None = None


@tool(toolset="core", title="Add", read_only=True)
def add(
    a: Annotated[Count, Field(gt=0, description="first addend")],
    dtype: Annotated[Literal["bf16", "fp16"], Field(description="dtype")] = "bf16",
    shapes: Annotated[list[tuple[int, int, int]] | None, Field(description="m, n, k")] = None,
    budget: Annotated[Seconds, Field(gt=0, le=60, description="seconds")] = 5,
) -> Total:
    """Add two numbers
    when asked to.

    This paragraph is for readers of the code.
    """
    return Total(total=a, parts=[float(sum(shape)) for shape in shapes or []])


@tool(toolset="core", title="Wait", read_only=True)
async def slowly(seconds: float = 0.0) -> Total:
    """Wait."""
    await asyncio.sleep(seconds)
    return Total(total=seconds)


def test_the_schema_is_the_signature_without_noise() -> None:
    assert add.input_schema() == {
        "type": "object",
        "properties": {
            "a": {"anyOf": [{"type": "number"}, {"type": "string"}], "description": "first addend", "exclusiveMinimum": 0},
            "dtype": {"default": "bf16", "description": "dtype", "enum": ["bf16", "fp16"], "type": "string"},
            "shapes": {
                "description": "m, n, k",
                "type": "array",
                "items": {"maxItems": 3, "minItems": 3, "prefixItems": [{"type": "integer"}] * 3, "type": "array"},
            },
            "budget": {
                "anyOf": [{"type": "number"}, {"type": "string"}],
                "default": 5,
                "description": "seconds",
                "exclusiveMinimum": 0,
                "maximum": 60,
            },
        },
        "additionalProperties": False,
        "required": ["a"],
    }


def test_the_description_is_the_first_paragraph() -> None:
    assert add.description == "Add two numbers when asked to."


def test_python_positional_and_mcp_calls_agree() -> None:
    by_name = asyncio.run(add.call({"a": "70B", "shapes": [[1, 2, 3]]}))
    assert add(70e9, shapes=[(1, 2, 3)]) == add.sync("70B", shapes=[[1, 2, 3]]) == by_name == Total(total=70e9, parts=[6.0])


def test_lists_that_arrive_as_json_text_are_unwrapped() -> None:
    assert add.validate({"a": 1, "shapes": "[[1, 2, 3]]"})["shapes"] == [(1, 2, 3)]


def test_an_async_tool_has_a_sync_twin() -> None:
    assert slowly.sync(seconds=0) == Total(total=0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"a": -1}, "add: a: -1 should be greater than 0"),
        ({"a": math.nan}, "a: nan: nan is not a finite number"),
        ({"a": 1, "dtype": "bf61"}, "dtype: 'bf61' is not one of 'bf16', 'fp16'"),
        ({}, "a is required"),
        ({"a": 1, "dtyp": "bf16"}, "unknown argument 'dtyp', did you mean 'dtype'?"),
        ({"a": 1, "budget": "2 days"}, "budget: '2 days' should be less than or equal to 60"),
        ({"a": 1, "shapes": [[1, 2]]}, "shapes[0][2] is required"),
        ({"a": 1, "budget": True}, "budget: True is neither a number nor text"),
        ({"a": 0, "dtype": "x"}, "a: 0 should be greater than 0; dtype: 'x'"),
    ],
)
def test_a_bad_call_is_one_sentence_that_names_every_bad_field(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        add.validate(arguments)
    assert said in str(refused.value)
    assert "http" not in str(refused.value)
    assert str(refused.value).endswith("Next: add takes a, dtype, shapes, budget.")


def test_a_huge_bad_value_is_not_repeated_whole() -> None:
    with pytest.raises(BadRequest) as refused:
        add.validate({"a": "x" * 50_000})
    assert len(str(refused.value)) < 400


def test_arguments_that_are_no_object_are_refused() -> None:
    with pytest.raises(BadRequest, match="takes a JSON object, not list"):
        add.validate([1])  # type: ignore[arg-type]


def test_nan_in_a_result_becomes_null_with_its_reason() -> None:
    document = contract.document(Total(total=math.nan, parts=[1.0, math.inf]))
    assert document["total"] is None
    assert document["parts"] == [1.0, None]
    assert document["not_finite"] == ["total: nan is not a number a reader could use", "parts[1]: inf is not a number a reader could use"]


def test_output_schemas_name_top_level_fields_only() -> None:
    assert add.output_schema() == {
        "type": "object",
        "properties": {
            "total": {"anyOf": [{"type": "null"}, {"type": "number"}]},
            "parts": {"type": "array"},
            "note": {"anyOf": [{"type": "null"}, {"type": "string"}]},
        },
        "required": ["total"],
    }


def test_text_that_is_json_nested_too_deeply_is_refused_as_the_text_it_is() -> None:
    @tool(toolset="core", title="Sum", read_only=True)
    def add(numbers: list[int]) -> str:
        """Add."""
        return str(sum(numbers))

    with pytest.raises(BadRequest, match=r"numbers: .*should be a valid list"):
        add.validate({"numbers": "[" * 200_000})


def test_one_value_where_a_list_belongs_is_shown_as_the_list_it_should_be() -> None:
    with pytest.raises(BadRequest, match=r"shapes: '64MiB' should be a valid list, such as \[\"64MiB\"\]"):
        add.validate({"a": 1, "shapes": "64MiB"})


def test_an_error_that_repeats_a_value_of_any_length_stays_short() -> None:
    error = BadRequest("unknown_job", f"there is no job {'x' * 100_000!r}", next="call wait_job() without an id")
    assert len(error.sentence()) < 1000
    assert "characters left out" in error.message
    assert error.sentence().endswith("Next: call wait_job() without an id.")


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_a_number_inside_an_object_must_be_finite_too(number: float) -> None:
    @tool(toolset="core", title="Size", read_only=True)
    def size(model: dict[str, Any]) -> str:
        """Size."""
        return str(int(model["layers"][0]["hidden"]))

    with pytest.raises(BadRequest, match=r"size: model\.layers\[0\]\.hidden: .* is not a number"):
        size.validate({"model": {"layers": [{"hidden": number}]}})
    assert size.validate({"model": {"layers": [{"hidden": 4096.0}]}})["model"]["layers"] == [{"hidden": 4096.0}]

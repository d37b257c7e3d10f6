"""Sizes, counts and durations as people write them."""

import math

import pytest
from pydantic import TypeAdapter, ValidationError

from skillserver import units


@pytest.mark.parametrize(
    ("text", "value"),
    [("70B", 70e9), ("15T", 15e12), ("1.5 trillion tokens", 1.5e12), ("7_000_000", 7e6), ("1,000", 1000),
     ("2e12", 2e12), (3, 3), ("2万亿", 2e12), ("70b params", 70e9)],
)  # fmt: skip
def test_counts_are_decimal(text: object, value: float) -> None:
    assert units.parse_count(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("3 days", 259200), ("90s", 90), ("1.5h", 5400), ("250ms", 0.25), ("2天", 172800), (7, 7), ("10 minutes", 600)]
)
def test_durations_are_seconds(text: object, value: float) -> None:
    assert units.parse_seconds(text) == value


@pytest.mark.parametrize(("text", "value"), [("64MiB", 2**26), ("1GB", 10**9), ("8M", 2**23), (4096, 4096), ("1.5 GiB", 3 * 2**29)])
def test_sizes_tell_binary_from_decimal(text: object, value: int) -> None:
    assert units.parse_bytes(text) == value


@pytest.mark.parametrize("parse", [units.parse_count, units.parse_seconds, units.parse_bytes])
@pytest.mark.parametrize("bad", ["", "seven", "7 parsecs", math.nan, math.inf, "1e999", True, None, [1]])
def test_what_is_no_quantity_is_refused_with_a_sentence(parse: object, bad: object) -> None:
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        parse(bad)  # type: ignore[operator]


def test_the_schema_of_a_count_takes_numbers_and_text() -> None:
    schema = TypeAdapter(units.Count).json_schema()
    assert schema == {"anyOf": [{"type": "number"}, {"type": "string"}]}
    with pytest.raises(ValidationError):
        TypeAdapter(units.Count).validate_python("many")


def test_quantities_are_shown_as_people_write_them() -> None:
    assert [units.show_count(70e9), units.show_bytes(2**26), units.show_seconds(5400), units.show_seconds(3e-6)] == ["70B", "64 MiB", "1.5 h", "3 us"]

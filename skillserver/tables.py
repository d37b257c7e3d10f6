"""data/*.toml -> records. A table has a head (`about`: source, date, licence) and one `[[record]]` a row.

Knows TOML and pydantic; not what the rows mean. A row that does not fit is DataBroken with file, row and field.

>>> load("accelerators.toml", Accelerator)[0].id
'V100-16GB-SXM'
"""

from __future__ import annotations

import functools
import tomllib
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from skillserver import paths
from skillserver.errors import DataBroken


class Record(BaseModel):
    """A row: frozen, no unknown keys, and it names its source."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class About(Record):
    """The head of a table."""

    title: str
    source: str
    date: str
    licence: str


R = TypeVar("R", bound=Record)  # Python 3.11 has no `def load[R]`


@functools.cache
def read(name: str) -> dict[str, Any]:
    """The parsed TOML of one table, head checked. Raises DataBroken."""
    try:
        parsed = tomllib.loads(paths.data(name).read_text(encoding="utf-8"))
        About.model_validate(parsed.get("about"))
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as problem:
        raise DataBroken("table_broken", f"data/{name}: {problem}", next="reinstall skillserver") from problem
    return parsed


@functools.cache
def load(name: str, record: type[R]) -> tuple[R, ...]:
    """Every `[[record]]` of a table, in order. Raises DataBroken naming row and field."""
    rows = []
    for number, row in enumerate(read(name).get("record", []), 1):
        try:
            rows.append(record.model_validate(row))
        except ValidationError as problem:
            error = problem.errors()[0]
            where = ".".join(map(str, error["loc"]))
            raise DataBroken("table_broken", f"data/{name}: record {number}: {where}: {error['msg']}", next="reinstall skillserver") from problem
    return tuple(rows)

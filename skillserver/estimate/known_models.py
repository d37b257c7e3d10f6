"""What a caller calls a model -> its config as understood: a known name, a config dict, its JSON text, or a config.json.

Knows data/models.toml and which files may be read. Never downloads: a name it has no row for is refused with the
nearest ones.

>>> reading_of("meta-llama/Llama-2-7b-hf").shape.layers
32
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skillserver import permissions, tables
from skillserver.errors import BadRequest
from skillserver.estimate import hf_config
from skillserver.estimate.hf_config import Reading

PATH_STARTS = ("/", "./", "../", "~", ".\\")
LARGEST_CONFIG = 4_000_000  # bytes; the largest config.json on public pages are below 1 MB


class Known(tables.Record):
    """One row of models.toml."""

    id: str
    aliases: list[str]
    params_published: int | None = None
    config: dict[str, Any]
    source: str


def known() -> tuple[Known, ...]:
    """Every model that has a name here."""
    return tables.load("models.toml", Known)


def named(model: str | Mapping[str, Any]) -> Known | None:
    """The row of a known name, in any spelling that differs by owner, case, `-hf`, `-base` or `-instruct` only."""
    if not isinstance(model, str) or _is_path(model):
        return None
    plain = _plain(model)
    return next((row for row in known() if plain in map(_plain, (row.id, *row.aliases))), None)


def reading_of(model: str | Mapping[str, Any]) -> Reading:
    """The config of what was named or given. Raises BadRequest, or NotHere for a file that may not be read."""
    if isinstance(model, Mapping):
        return hf_config.read(model)
    if model.lstrip().startswith("{"):
        return hf_config.read(parsed(model, "model looks like JSON and"))
    if row := named(model):
        return hf_config.read(row.config)
    if _is_path(model):
        return hf_config.read(parsed(_text_of(model), f"{model!r}"))
    names, plain = [row.id for row in known()], _plain(model)
    near = difflib.get_close_matches(plain, names, 5, 0.5)
    raise BadRequest(
        "unknown_model",
        f"model {model!r} is not among the {len(names)} known ones",
        valid=near + [name for name in names if name not in near],
        next="pass its Hugging Face config.json as model, or params_total (with params_active for experts)",
    )


def _is_path(model: str) -> bool:
    """A folder that happens to have a known name is still read from the disk."""
    return model.endswith(".json") or model.startswith(PATH_STARTS)


def _plain(name: str) -> str:
    """`meta-llama/Llama-2-7b-hf` -> `llama-2-7b`."""
    return re.sub(r"[-_ ]+", "-", re.sub(r"-(hf|base|instruct)$", "", name.lower().strip().rsplit("/", 1)[-1]))


def _text_of(path: str) -> str:
    """A config.json, or the one in a model's folder."""
    given = Path(path)  # readable expands ~ and refuses a user who does not exist
    found = permissions.readable(given if given.suffix == ".json" else given / "config.json")
    if found.stat().st_size > LARGEST_CONFIG:
        raise BadRequest("bad_config", f"{path!r} has {found.stat().st_size:,} bytes, which no config.json has", next="pass the model's config.json")
    return found.read_text(encoding="utf-8", errors="replace")


def parsed(text: str, what: str) -> Mapping[str, Any]:
    """The JSON object of a text. Raises BadRequest that begins with `what`."""
    try:
        config = json.loads(text)
    except ValueError as problem:
        raise BadRequest("bad_config", f"{what} is not valid: {problem}", next="pass the config as an object") from problem
    if not isinstance(config, dict):
        raise BadRequest("bad_config", f"{what} holds a JSON {type(config).__name__}, not an object", next="pass the model's config.json")
    return config

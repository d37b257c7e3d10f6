"""`skillserver sources`: the folders of Markdown that are searched beside the shipped pages.

    skillserver sources add ~/handbooks/ml-engineering
    skillserver sources list --json

Thin: the record is kept by `knowledge/sources.py`, the index by `knowledge/library.py`. Files stay where they are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillserver import inputs
from skillserver.errors import BadRequest, SkillError

if TYPE_CHECKING:
    from skillserver.knowledge.library import Library

app = typer.Typer(no_args_is_help=True, help="Folders of Markdown searched beside the shipped pages.")
AsJson = Annotated[bool, typer.Option("--json", help="Print the one result document as JSON.")]
Name = Annotated[str, typer.Argument(help="A folder by its name.")]


@app.command()
def add(path: Annotated[Path, typer.Argument(help="A folder with *.md files: a checkout, a team's runbooks.")],
        name: Annotated[str, typer.Option(help="What its ids start with; else the folder's own name.")] = "",
        licence: Annotated[str, typer.Option(help="Its licence; else the one that its licence file names.")] = "",
        as_json: AsJson = False) -> None:  # fmt: skip
    """Search this folder too, from now on; indexes it."""
    from skillserver.knowledge import sources

    with _told(as_json):
        folder = sources.add(path, licence, name)
        report = _indexed()
        _show(report | {"sources": [row for row in report["sources"] if row["name"] == folder.name]}, as_json)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """The folders that are searched, with pages, commit, licence and the files that are broken."""
    with _told(as_json):
        _show({"sources": [_row(_library(), folder) for folder in _library().folders]}, as_json)


@app.command()
def update(name: Annotated[str, typer.Argument(help="A folder by its name; nothing for all.")] = "", as_json: AsJson = False) -> None:
    """Index what changed, and look for the licence again. A running server does so by itself within seconds."""
    from skillserver.knowledge import sources

    with _told(as_json):
        known = sources.added()
        if name and name not in [folder.name for folder in known]:
            raise BadRequest("unknown_source", f"no added folder is named {name!r}", valid=[folder.name for folder in known], next="name one of them")
        sources.refresh(name)
        _show(_indexed(), as_json)


@app.command()
def remove(name: Name, as_json: AsJson = False) -> None:
    """Search this folder no more; its files stay."""
    from skillserver.knowledge import sources

    with _told(as_json):
        sources.remove(name)
        _show({"removed": name, "sources": [folder.name for folder in sources.added()]}, as_json)


def _library() -> Library:
    from skillserver.knowledge import library

    return library.current()


def _indexed() -> dict[str, Any]:
    """Build or open the index of all folders now, and say what that took."""
    started = time.perf_counter()
    shelf = _library()
    took = round(time.perf_counter() - started, 2)
    rows = [_row(shelf, folder) for folder in shelf.folders]
    return {"pages_indexed": shelf.indexed_pages, "seconds": took, "notes": shelf.notes, "sources": rows}


def _row(shelf: Library, folder: Any) -> dict[str, Any]:
    from skillserver.knowledge import sources

    held = [section for section in shelf.sections.values() if shelf.folder_of(section) == folder]
    return {
        "name": folder.name or "ours", "path": folder.path, "licence": folder.licence or "none found", "commit": sources.commit(folder.root),
        "pages": len({section.page for section in held}), "sections": len(held), "ids_start_with": folder.prefix,
        "broken": [{"file": file, "problem": problem} for file, problem in sorted(shelf.broken.get(folder.name, {}).items())],
        "missing": not folder.root.is_dir()}  # fmt: skip


def _show(report: dict[str, Any], as_json: bool) -> None:
    from skillserver import terminal

    typer.echo(inputs.pretty(report)) if as_json else terminal.show(report)


@contextmanager
def _told(as_json: bool) -> Iterator[None]:
    """Inside it a SkillError also becomes the JSON document that a script reads."""
    try:
        yield
    except SkillError as refused:
        if as_json:
            typer.echo(inputs.pretty(refused.document()))
        raise

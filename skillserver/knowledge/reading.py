"""Read by id: a section with what is nested under it, a page from a given line on, a chapter, the table of contents.

Ids are forgiving in form (`knowledge:///`, `.md`, capitals), never in substance: an unknown id is an error that names
the nearest. Knows the library and a budget; not searching.

>>> print(read("training/memory#zero-stages").splitlines()[0])
## ZeRO stages [training/memory#zero-stages]
"""

from __future__ import annotations

import difflib

from skillserver.errors import BadRequest
from skillserver.knowledge import library, sections
from skillserver.knowledge.library import Library
from skillserver.knowledge.sections import Page, Section
from skillserver.knowledge.showing import CHARACTERS_A_TOKEN, LEAST_TOKENS, fitting, open_fences, shown

NEAREST = 6
LONGEST = 200  # characters of an unknown id worth comparing
NOTE_ROOM = 200  # characters kept for the line that says how to read on


def read(id: str = "", max_tokens: int = 2000, offset: int = 0) -> str:
    """Markdown of a section, page or chapter, from line `offset` of its text on; without id the table of contents.

    Raises BadRequest with the nearest ids when there is no such id, or when `offset` is past the end.
    """
    return text_of(library.current(), id, max_tokens, offset)


def text_of(shelf: Library, id: str, max_tokens: int = 2000, offset: int = 0) -> str:
    """The same on a given library."""
    wanted = resolved(shelf, id)
    budget = max(LEAST_TOKENS, max_tokens) * CHARACTERS_A_TOKEN
    if wanted in shelf.sections:
        return _cut(_section(shelf, wanted), wanted, budget, offset)
    listed = sections.contents(shelf.pages, wanted, depth=2 if wanted else 1)
    head = f"# {'Sections under ' + wanted if wanted else 'Pages'}: read_knowledge with one of these ids\n\n"
    if not wanted and len(head) + len(listed) > budget:  # the titles of all pages say more than the summaries of some
        head += "Titles only: a larger max_tokens shows the summaries, a chapter's id its sections.\n\n"
        listed = sections.contents(shelf.pages, summaries=False)
    return _cut(head + listed, wanted, budget, offset)


def resolved(shelf: Library, id: str) -> str:
    """The id as the library writes it, old names followed. Raises BadRequest naming the nearest ids."""
    asked = id.strip().strip("`").removeprefix("knowledge:///").removeprefix("knowledge_base/").strip("/")
    page, mark, part = asked.partition("#")
    asked = page.removesuffix(".md") + mark + part
    chapters = {"/".join(page.id.split("/")[:depth]) for page in shelf.pages for depth in range(1, page.id.count("/") + 1)}
    for name in (asked, asked.lower(), f"{page.removesuffix('.md').lower()}#{sections.slug(part)}"):
        name = shelf.aliases.get(name, name)
        if not asked or name in shelf.sections or name in chapters:
            return name
    raise _unknown(shelf, id, asked.lower())


def _unknown(shelf: Library, id: str, asked: str) -> BadRequest:
    """The nearest ids: those that hold the same part after "#" first, then those spelled alike."""
    part = asked.rpartition("#")[2]
    same = [known for known in shelf.sections if known.rpartition("#")[2] == part or known.startswith(f"{asked}#")]
    near = difflib.get_close_matches(asked[:LONGEST], shelf.sections, NEAREST, 0.5)
    return BadRequest(
        "unknown_section", f"no section, page or chapter has the id {id[:80]!r}; the nearest are listed",
        valid=list(dict.fromkeys([*same, *near]))[:NEAREST], next="read_knowledge without an id lists all pages")  # fmt: skip


def _section(shelf: Library, wanted: str) -> str:
    """A page whole, a section with the sections nested under it; where it stands, and the sources at the end."""
    section = shelf.sections[wanted]
    page = next(page for page in shelf.pages if page.id == section.page)
    folder = shelf.folder_of(section)
    held = list(page.sections) if wanted == page.id else _nested(page, section)
    place = f"{section.file}:{section.first_line}-{held[-1].last_line}" + (f" · {shelf.origin(folder)}" if not folder.ours else "")
    trail = f"{' > '.join(section.trail[:-1])} · " if section.trail[:-1] else ""
    blocks = [f"## {section.title} [{section.id}]\n_{trail}{place}_\n\n{shown(shelf, section)}"]
    blocks += [f"{'#' * max(3, inner.level)} {inner.title} [{inner.id}]\n\n{shown(shelf, inner)}" for inner in held[1:]]
    if section.sources:
        blocks.append("Sources:\n" + "\n".join(f"- {source}" for source in section.sources))
    return "\n\n".join(block.strip() for block in blocks)


def _nested(page: Page, section: Section) -> list[Section]:
    after = page.sections[page.sections.index(section) + 1 :]
    end = next((number for number, other in enumerate(after) if other.level <= section.level), len(after))
    return [section, *after[:end]]


def _cut(text: str, wanted: str, budget: int, offset: int) -> str:
    """Whole lines from `offset` on, as many as fit, and the offset to go on from."""
    lines = text.split("\n")
    if not 0 <= offset < len(lines):
        raise BadRequest(
            "offset_past_end", f"offset {offset} is not below {len(lines)}, the number of lines of {wanted or 'the list'}", next="offset=0"
        )
    opened = open_fences("\n".join(lines[:offset]))
    rest = "\n".join([*opened, *lines[offset:]])
    if len(rest) <= budget:
        return rest
    kept, whole = fitting(rest, budget - NOTE_ROOM)
    done = max(0, whole - len(opened))
    how = f"read_knowledge with {f'id={wanted}, ' if wanted else ''}offset={offset + done} or a larger max_tokens"
    return f"{kept}\n\n({len(lines) - offset - done} lines more: {how if done else 'read_knowledge with a larger max_tokens'}.)"

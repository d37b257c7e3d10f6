"""Markdown pages -> sections: the unit that is indexed, ranked, cited and read.

A page is a file with YAML front matter; every heading starts a section `page#slug`, and what stands before the first
`##` is the section `page` itself. HTML comments are never shown; two kinds under a heading carry search words:
`<!-- zh: 中文标题; 关键词 关键词 -->` and `<!-- keywords: a, b -->`. A page with `part_of: PAGE` is one step of a longer
way: only its lead is searched, the rest is read by id. The only file that imports markdown-it. Knows nothing of searching.

>>> page = parse("training/memory", "---\\ntitle: Memory\\n---\\nLead.\\n\\n## ZeRO stages\\nThree.\\n")
>>> [(section.id, section.trail) for section in page.sections]
[('training/memory', ('Memory',)), ('training/memory#zero-stages', ('Memory', 'ZeRO stages'))]
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillserver.errors import DataBroken

if TYPE_CHECKING:  # both are imported where an index is built: a server that only lists its tools has no use for them
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

LARGEST_FILE = 4_000_000  # bytes; a page that is larger is data
TABLE = re.compile(r"^\|.*\n\|[ :|-]+\|", re.M)
CODE = re.compile(r"^ {0,3}(?:```|~~~)", re.M)
FAILURE = re.compile(
    r"error|exception|fail|timeout|timed out|killed|abort|crash|hang|stuck|mismatch|corrupt|leak|out of memory|oom\b|xid|nan\b|spike|assert|unable|"
    r"cannot|not found|refused|denied|undefined|invalid|missing|slow|drain|deadlock|desync",
    re.I,
)
COMMENT = re.compile(r"<!--\s*(zh|keywords)\s*:(.*?)-->", re.S)
SEPARATORS = re.compile(r"[\s,，、]+")
TEXTS = ("title", "title_zh", "summary", "checked", "part_of")
LISTS = ("keywords", "keywords_zh", "sources")
KNOWN_KEYS = (*TEXTS, *LISTS, "aliases")


@dataclass(frozen=True)
class Section:
    """One idea. `text` is without its heading and comments; lines count from 1 and include the heading."""

    id: str
    page: str
    title: str
    trail: tuple[str, ...]
    file: str
    first_line: int
    last_line: int
    level: int
    text: str
    title_zh: str = ""
    keywords: tuple[str, ...] = ()
    keywords_zh: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    part_of: str = ""

    @property
    def searched(self) -> bool:
        """Whether a question may find it: of a page that is part of another, the lead stands for all."""
        return not self.part_of or self.id == self.page

    @property
    def kinds(self) -> frozenset[str]:
        """What it offers: a `table` of figures, `code` to run, a `failure` explained (its heading or search words name one)."""
        said = " ".join([self.title, *self.keywords])
        held = {"table": TABLE.search(self.text), "code": CODE.search(self.text), "failure": FAILURE.search(said)}
        return frozenset(name for name, found in held.items() if found)


@dataclass(frozen=True)
class Page:
    """One file: its front matter and its sections in order, the lead first."""

    id: str
    title: str
    summary: str
    sections: tuple[Section, ...]
    aliases: dict[str, str] = field(default_factory=dict)
    part_of: str = ""


@dataclass(frozen=True)
class _Heading:
    level: int
    title: str
    line: int  # of the heading, from 0
    body: int  # first line after it


def slug(title: str) -> str:
    """The heading's part of an id: lower case, words joined by "-", other punctuation dropped; "TP/PP & DP" -> "tp-pp-dp"."""
    spaced = re.sub(r"[\s_/&+=–—-]+", " ", title.lower())
    return "-".join(re.sub(r"[^\w ]", "", spaced).split())


def parse(page: str, text: str, file: str = "", *, strict: bool = True) -> Page:
    """The page `page` made of `text`. Broken front matter is DataBroken with file and line, or ignored when not `strict`."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    head, skipped = _front_matter(text, file or page, strict)
    lines = text.split("\n")
    tokens = _blocks("\n".join(lines[skipped:]))
    headings = _headings(tokens, skipped)
    hidden = _comments(tokens, skipped)
    first = headings[0] if headings and headings[0].level == 1 else None
    title = str(head.get("title") or (first.title if first else page.rsplit("/", 1)[-1]))
    lead = _Heading(1, title, first.line if first else skipped, first.body if first else skipped)
    parsed = _sections(page, file or page, lines, lead, headings[1:] if first else headings, hidden, head)
    return Page(page, title, str(head.get("summary") or ""), tuple(parsed), _aliases(page, head), str(head.get("part_of") or ""))


def contents(pages: list[Page], under: str = "", *, depth: int = 1, summaries: bool = True) -> str:
    """Table of contents in Markdown: pages with their summaries; their sections too when `depth` is 2.

    The steps of a longer way stand in their own chapter's list only, by title.
    """
    out = []
    for page in pages:
        if not (page.id == under or page.id.startswith(f"{under}/") or (not under and not page.part_of)):
            continue
        out.append(f"- `{page.id}` {page.title}" + (f": {page.summary}" if summaries and page.summary and not page.part_of else ""))
        if depth > 1 and not page.part_of:
            out += [f"  - `{section.id}` {section.title}" for section in page.sections[1:]]
    return "\n".join(out)


def _sections(
    page: str, file: str, lines: list[str], lead: _Heading, headings: list[_Heading], hidden: dict[int, str], head: dict[str, Any]
) -> list[Section]:
    found: list[Section] = []
    taken: dict[str, int] = {}
    sources, trail = tuple(head.get("sources", ())), [(0, lead.title)]
    for number, heading in enumerate([lead, *headings]):
        end = headings[number].line if number < len(headings) else len(lines)
        if number:
            trail = [step for step in trail if step[0] < heading.level] if heading.level > 1 else trail[:1]
            trail = [*(trail or [(0, lead.title)]), (heading.level, heading.title)]
        body, told = _body(lines, heading.body, end, hidden)
        section = Section(
            id=page if not number else _unique(f"{page}#{slug(heading.title) or 'section'}", taken), page=page, title=heading.title,
            trail=tuple(title for _, title in trail), file=file, first_line=heading.line + 1, last_line=_last_line(lines, heading.line, end),
            level=heading.level, text=body, sources=sources, part_of=str(head.get("part_of") or ""), **told)  # fmt: skip
        found.append(section)
    found[0] = _with_head(found[0], head)
    return found


def _with_head(lead: Section, head: dict[str, Any]) -> Section:
    """The lead carries the page's own search words, and its summary where it has no text."""
    return replace(
        lead,
        text=lead.text or str(head.get("summary") or ""),
        title_zh=lead.title_zh or str(head.get("title_zh") or ""),
        keywords=(*lead.keywords, *head.get("keywords", ())),
        keywords_zh=(*lead.keywords_zh, *head.get("keywords_zh", ())),
    )


def _unique(wanted: str, taken: dict[str, int]) -> str:
    taken[wanted] = taken.get(wanted, 0) + 1
    return wanted if taken[wanted] == 1 else f"{wanted}-{taken[wanted]}"


def _last_line(lines: list[str], start: int, end: int) -> int:
    while end > start + 1 and not lines[end - 1].strip():
        end -= 1
    return end


def _body(lines: list[str], start: int, end: int, hidden: dict[int, str]) -> tuple[str, dict[str, Any]]:
    """The shown text of a span, and what its comments say."""
    told: dict[str, Any] = {}
    for line in range(start, end):
        for kind, value in COMMENT.findall(hidden.get(line, "")):
            if kind == "zh":
                title, _, rest = value.strip().replace("；", ";").partition(";")
                told |= {"title_zh": title.strip(), "keywords_zh": tuple(filter(None, SEPARATORS.split(rest.replace(";", " "))))}
            else:
                told["keywords"] = tuple(filter(None, (word.strip() for word in re.split("[,;，；]", value))))
    shown = [lines[line] for line in range(start, end) if line not in hidden]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(shown)).strip("\n").rstrip(), told


def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark")


def _blocks(text: str) -> list[Token]:
    """Block tokens only; parsing the inline text of whole books costs seconds and is not needed."""
    parser = _parser()
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser.parse(text)


def _headings(tokens: list[Token], shift: int) -> list[_Heading]:
    """Headings of the document itself, not of a quotation or list."""
    found = []
    for number, token in enumerate(tokens):
        if token.type == "heading_open" and token.level == 0 and token.map:
            first, last = token.map
            found.append(_Heading(int(token.tag[1]), _plain(tokens[number + 1].content), first + shift, last + shift))
    return found


def _plain(inline: str) -> str:
    """A heading without its marks: "The `srun` **trap**" -> "The srun trap"."""
    children = _parser().parseInline(inline)[0].children or []
    return "".join(child.content if child.type in ("text", "code_inline") else " " * (child.type == "softbreak") for child in children).strip()


def _comments(tokens: list[Token], shift: int) -> dict[int, str]:
    """Line -> comment for every line of an HTML comment; the comment's text stands at its first line."""
    found: dict[int, str] = {}
    for token in tokens:
        if token.type == "html_block" and token.level == 0 and token.map and token.content.lstrip().startswith("<!--"):
            first, last = token.map
            found |= {line + shift: "" for line in range(first, last)} | {first + shift: token.content}
    return found


def _front_matter(text: str, file: str, strict: bool) -> tuple[dict[str, Any], int]:
    """(front matter, number of lines it takes)."""
    import yaml

    lines = text.split("\n")
    if lines[0].rstrip() != "---":
        return {}, 0
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), 0)
    try:
        if not end:
            raise _broken(file, 1, "the front matter is opened with --- and never closed")
        return _checked(yaml.safe_load("\n".join(lines[1:end])), file), end + 1
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        said = getattr(problem, "problem", None) or str(problem)
        if strict:
            raise _broken(file, mark.line + 2 if mark else 1, f"the front matter is not YAML: {said}") from problem
    except DataBroken:
        if strict:
            raise
    return {}, end + 1 if end else 0


def _checked(head: Any, file: str) -> dict[str, Any]:
    if not isinstance(head, dict):
        raise _broken(file, 2, f"the front matter is {type(head).__name__}, not `key: value` lines")
    out = dict(head)
    for key, value in head.items():
        if key in LISTS:
            words = value if isinstance(value, list) else re.split("[,;，；、]", str(value or ""))
            out[key] = [text for word in words if (text := _said(word))]
        elif key in TEXTS and isinstance(value, dict | list):
            raise _broken(file, 2, f"{key} is {type(value).__name__}, not text; quote a title that holds a colon")
        elif key not in KNOWN_KEYS and (near := difflib.get_close_matches(str(key), KNOWN_KEYS, 1, 0.8)):
            raise _broken(file, 2, f"unknown key {key!r}, did you mean {near[0]!r}?")
    return out


def _said(value: Any) -> str:
    """One entry of a list; a source may be {title, url}."""
    if isinstance(value, dict):
        return " ".join(str(value[key]).strip() for key in ("title", "url") if value.get(key))
    return "" if value is None else str(value).strip()


def _aliases(page: str, head: dict[str, Any]) -> dict[str, str]:
    """Old id -> new id; a plain list of old ids means this page."""
    given = head.get("aliases") or {}
    return {str(old): str(new) for old, new in given.items()} if isinstance(given, dict) else {str(old): page for old in given}


def _broken(file: str, line: int, problem: str) -> DataBroken:
    return DataBroken("page_broken", f"{file}:{line}: {problem}", next="correct the page, or reinstall skillserver")


@dataclass(frozen=True)
class Files:
    """What was read below a folder: relative name -> text, and relative name -> why it was not read."""

    texts: dict[str, str]
    unread: dict[str, str]


def files(root: Path) -> Files:
    """Every Markdown file below `root`, sorted; hidden ones and links that lead out of it are left out."""
    found, unread = {}, {}
    for path in pages_of(root):
        name = path.relative_to(root).as_posix()
        try:
            if path.stat().st_size > LARGEST_FILE:
                unread[name] = f"{path.stat().st_size:,} bytes are more than {LARGEST_FILE:,}"
            else:
                found[name] = path.read_text(encoding="utf-8", errors="replace")
        except OSError as problem:
            unread[name] = problem.strerror or str(problem)
    return Files(found, unread)


def pages_of(root: Path) -> list[Path]:
    """Paths of the Markdown files below `root`, sorted."""
    whole = root.resolve()
    return [
        path
        for path in sorted(root.rglob("*.md"))
        if not any(part.startswith(".") for part in path.relative_to(root).parts) and path.resolve().is_relative_to(whole) and path.is_file()
    ]

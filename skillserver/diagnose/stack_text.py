"""Stack dumps of any kind -> one thread list a process: who, which threads, which frames, innermost first.

Reads py-spy (text, --json, --native), Python's faulthandler, the stack files of torch's debug server, and pastes in
which one stack follows a list of threads ("4 in: Thread 1 .. Thread 4 .."). The rank is taken from a heading or line
before the stack (`rank 3`, `RANK=3`, `[rank3]:`), else from the file's name; a guess is marked. Knows the formats; what
the frames mean is `stacks`.

>>> [p.rank for p in of_text("== node1 pid 7 rank 2\\nThread 7 (idle): \\"MainThread\\"\\n    f (a.py:3)\\n", "paste")]
[2]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Frame = tuple[str, str, int]  # function, file, line (0 = unknown)

PREFIX = re.compile(r"^\s*\[?(?:rank|default)(\d{1,6})\]?:\s?")
PROCESS = re.compile(r"^Process (\d{1,10}): ?(.*)$")
THREAD = re.compile(r'^Thread (0x[0-9A-Fa-f]{1,16}|\d{1,10}) ?(?:\(([\w+, ]{1,40})\))?(?:: ?"([^"]{0,80})")?\s*$')
FAULT = re.compile(r"^(Current thread|Thread) (0x[0-9a-f]{4,16})(?: \[([^\]]{1,40})\])? \((?:most recent call first|no Python frame)\)?:?")
SPY_FRAME = re.compile(r"^\s{2,}(\S.{0,3000}?) \(([^()\n]{1,400}?)(?::(\d{1,7}))?\)\s*$")
FAULT_FRAME = re.compile(r'^\s+File "([^"\n]{1,400})", line (\d{1,7}|\?{3}) in (.{1,200})$')
RANK = re.compile(r"\b(?:rank|RANK|Rank)(?:[ _=:#-]{1,2}|(?=\d))(\d{1,6})\b")
NODE = re.compile(r"^\s*(?:Node|Host|node|host)[ :]+([\w.-]{1,60}):?\s*$|^=+ ?([\w.-]{2,60})(?: pid \d+)?")
PID = re.compile(r"\bpid[ =:]{1,2}(\d{1,10})\b", re.I)
NAMED_RANK = re.compile(r"rank[_\-. ]?(\d{1,6})(?!\d)", re.I)
NUMBER = re.compile(r"(\d{1,6})(?!.*\d)")
JSON = re.compile(r"\s*\[\s*\{")  # [rank3]: begins with a bracket too
LINES = 400_000
HEAD = re.compile(r"^[=#\-*]{2,}|^(?:Node|Host|Rank|rank|RANK)\b|^\s*\d{1,6} in:")


@dataclass
class Thread:
    """One thread; `main` when the dump says so."""

    id: str = ""
    name: str = ""
    state: str = ""
    frames: list[Frame] = field(default_factory=list)
    current: bool = False

    @property
    def python(self) -> list[Frame]:
        """Frames of Python code only."""
        return [frame for frame in self.frames if frame[1].endswith(".py") or frame[1].startswith("<")]


@dataclass
class Process:
    """One process of a dump; `label` names it where its rank is unknown."""

    label: str
    rank: int | None = None
    guessed: bool = False
    pid: str = ""
    where: str = ""
    command: str = ""
    threads: list[Thread] = field(default_factory=list)

    def main(self) -> Thread | None:
        """The main thread: named so, else the one whose outermost frame is the program and not a thread's bootstrap."""
        named = [thread for thread in self.threads if thread.name == "MainThread" and thread.frames]
        if named:
            return named[0]
        inside = [thread for thread in self.threads if thread.python and not _bootstrapped(thread)]
        outermost = [thread for thread in inside if thread.python[-1][0] == "<module>"]
        return next(iter(outermost or inside), None)


def of_file(name: str, text: str) -> list[Process]:
    """Processes of one file, its rank from the text, else from its name."""
    found = of_text(text, name)
    alone = len(found) == 1
    for process in found:
        if process.rank is None and alone:
            process.rank, process.guessed = rank_in(name)
            if process.guessed and str(process.rank) in (process.pid, *(thread.id for thread in process.threads)):
                process.rank, process.guessed = None, False  # the file is named by its pid
    return found


def rank_in(name: str) -> tuple[int | None, bool]:
    """(rank in a file's name, whether it is only its last number)."""
    if found := NAMED_RANK.findall(name):
        return int(found[-1]), False
    guess = NUMBER.search(name.rpartition(".")[0] or name)
    return (int(guess[1]), True) if guess else (None, False)


def of_text(text: str, name: str) -> list[Process]:
    """Processes of a text of any mixture; empty when it holds no stack."""
    if JSON.match(text):
        return _of_json(text, name)
    return [process for process in _Reader(name).read(text) if any(thread.frames for thread in process.threads)]


def _of_json(text: str, name: str) -> list[Process]:
    """py-spy --json; several arrays may follow each other."""
    found, place, decoder = [], 0, json.JSONDecoder()
    while (start := text.find("[", place)) >= 0:
        try:
            rows, place = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            break
        threads = [_thread(row) for row in rows if isinstance(row, dict) and isinstance(row.get("frames"), list)]
        if threads:
            pid = str(next((row.get("pid") for row in rows if isinstance(row, dict) and row.get("pid")), ""))
            found.append(Process(f"pid {pid}" if pid else name, pid=pid, threads=threads))
    return found


def _thread(row: dict[str, Any]) -> Thread:
    frames = [(str(f.get("name", "?")), str(f.get("filename") or f.get("short_filename") or ""), int(f.get("line") or 0))
              for f in row["frames"] if isinstance(f, dict)]  # fmt: skip
    return Thread(str(row.get("os_thread_id") or row.get("thread_id") or ""), str(row.get("thread_name") or ""),
                  "active" if row.get("active") else "idle", frames)  # fmt: skip


class _Reader:
    """Line by line. A thread belongs to the process whose heading came last; a stack to all headings before it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.where = ""
        self.rank: int | None = None
        self.pid = ""
        self.done: list[Process] = []
        self.open: Process | None = None
        self.waiting: list[tuple[Process, Thread]] = []  # threads whose frames are still to come
        self.fed = False
        self.prefixed: dict[int, list[str]] = {}

    def read(self, text: str) -> list[Process]:
        """All processes, those of prefixed lines ([rank3]: ...) included."""
        for number, line in enumerate(text.splitlines()):
            if number > LINES:
                break
            if prefix := PREFIX.match(line):
                self.prefixed.setdefault(int(prefix[1]), []).append(line[prefix.end() :])
            else:
                self._line(line.rstrip())
        for rank, lines in self.prefixed.items():
            for process in _Reader(self.name).read("\n".join(lines)):
                process.rank = rank if process.rank is None else process.rank
                self.done.append(process)
        return self.done

    def _line(self, line: str) -> None:
        if frame := _frame(line):
            self.fed = True
            for _process, thread in self.waiting:
                thread.frames.append(frame)
        elif match := PROCESS.match(line):
            self._open(pid=match[1], command=match[2])
        elif match := FAULT.match(line):
            process = self.open or self._open()
            self._add(process, Thread(match[2], match[3] or "", "", current=match[1].startswith("Current")))
        elif match := THREAD.match(line.strip()):
            self._spy_thread(match)
        elif line.strip() and not line.startswith((" ", "\t")):
            self._heading(line)

    def _spy_thread(self, match: re.Match[str]) -> None:
        """In a paste without `Process` lines every MainThread is a process of its own."""
        thread = Thread(match[1], match[3] or "", match[2] or "")
        another = thread.name != "MainThread" and bool(self.open and self.open.threads)
        first = bool(self.open and (self.open.command or self.open.pid) and not self.open.threads)
        if self.open and (another or first):
            self._add(self.open, thread)
            return
        kept = self.waiting if not self.fed else []
        self._add(self._open(label=f"thread {match[1]}", keep=kept), thread)

    def _heading(self, line: str) -> None:
        """A line that is neither thread nor frame: it may name a node, a rank, a pid, and it ends the process before."""
        rank, pid, node = RANK.search(line), PID.search(line), NODE.match(line)
        if not (HEAD.match(line) or rank or pid) or len(line) > 300:
            return
        if node and not rank and not pid:
            self.where = node[1] or node[2] or ""
        self.open, self.waiting, self.fed = None, [], False
        self.rank = int(rank[1]) if rank else None
        self.pid = pid[1] if pid else ""
        if node and (rank or pid):
            self.where = node[1] or node[2] or self.where

    def _open(self, pid: str = "", command: str = "", label: str = "", keep: list[tuple[Process, Thread]] | None = None) -> Process:
        pid = pid or self.pid
        process = Process(label or (f"pid {pid}" if pid else self.name), self.rank, pid=pid, where=self.where, command=command)
        self.done.append(process)
        self.open, self.waiting, self.fed = process, keep or [], False
        return process

    def _add(self, process: Process, thread: Thread) -> None:
        if self.fed:
            self.waiting, self.fed = [], False
        process.threads.append(thread)
        self.waiting.append((process, thread))


def _frame(line: str) -> Frame | None:
    if match := FAULT_FRAME.match(line):
        return match[3], match[1], int(match[2]) if match[2].isdigit() else 0
    match = SPY_FRAME.match(line)
    return (match[1], match[2], int(match[3] or 0)) if match else None


def _bootstrapped(thread: Thread) -> bool:
    return thread.python[-1][0] in ("_bootstrap", "_bootstrap_inner") and "threading" in thread.python[-1][1]


def processes(pairs: Iterator[tuple[str, str]]) -> list[Process]:
    """Processes of several (name, text)."""
    return [process for name, text in pairs for process in of_file(name, text)]

"""What one folder gives to the three kinds of IO that training does: data loading, checkpoints, code and environments.

    python storage_bench.py --settings '{"folder": "/scratch/me", "bytes": 1073741824, "budget_s": 30}'

Settings: folder, bytes (of the one large file; 1 GiB), budget_s (seconds of measuring; 30), parts (data_loading,
checkpoints, code; default all), plain (true: without fio even where it is), raw_file.

Large blocks and random blocks by fio (storage_fio.py), else by plain Python (storage_plain.py); past the page cache
where the file system lets us. Small files, imports and git by storage_files.py. Where it writes, and why nothing stays:
storage_place.py. One client: not what a file system gives to many. Standard library only; does not know what a good
number is.
"""

import json
import os
import sys
from pathlib import Path

import conditions
import protocol
import storage_files
import storage_fio
import storage_place
import storage_plain
import storage_sample

PARTS = ("data_loading", "checkpoints", "code")
BYTES, BUDGET_S = 2**30, 30.0
BLOCK = 8 * 2**20
SMALL_BYTES = 64 * 2**20  # room for the small files
FILES_SHARE = 0.2  # of the budget, when code is asked for
LEAST_S = 1.0
CODE_STEPS = 4


class Bench:
    """One run: the settings, the large file, and what was found so far."""

    def __init__(self, settings, mount):
        self.folder, self.mount = settings["folder"], mount
        self.parts = [part for part in PARTS if part in (settings.get("parts") or PARTS)]
        self.bytes = int(settings.get("bytes") or BYTES) // BLOCK * BLOCK
        self.budget_s = max(4.0, float(settings.get("budget_s") or BUDGET_S))
        self.fio, self.version = ("", "") if settings.get("plain") else storage_fio.find()
        self.patterns = [one for one in storage_fio.PATTERNS if one["part"] in self.parts or one["name"] == "sequential write"]
        if "checkpoints" in self.parts and "data_loading" not in self.parts:  # a checkpoint is also read back
            self.patterns.insert(1, storage_fio.PATTERNS[1])
        share = 1.0 - (FILES_SHARE if "code" in self.parts else 0.0)
        seconds = max(LEAST_S, share * self.budget_s / len(self.patterns))
        self.run = {"bytes": self.bytes, "seconds": seconds, "engine": storage_fio.engine(self.fio) if self.fio else "", "direct": False}
        self.found = {"rows": [], "failed": {}, "files": None, "package": None, "git": None, "torch": None}
        self.raw = {}


def blocks(bench):
    """Every pattern on one nameless file."""
    file = storage_sample.nameless(bench.folder)
    try:
        os.ftruncate(file, bench.bytes)
        direct, bench.run["direct"] = past_cache(file)
        for number, pattern in enumerate(bench.patterns):
            if protocol.stopping() or (number and not bench.run["bytes"]):
                break
            before = CODE_STEPS if "code" in bench.parts else 0
            protocol.progress(before + number, before + len(bench.patterns), pattern["name"], partial=report(bench, {}))
            one_pattern(bench, pattern, file, direct)
        if direct != file:
            os.close(direct)
    finally:
        os.close(file)


def past_cache(file):
    """(descriptor for plain reads, whether this file system lets us go past the page cache)."""
    os.pwrite(file, bytes(4096), 0)
    os.fsync(file)
    return storage_sample.reader(file)


def one_pattern(bench, pattern, file, direct):
    """Measure one pattern and keep its row; the first says how much there is to read."""
    try:
        row, written = by_fio(bench, pattern, file) if bench.fio else plainly(bench, pattern, file, direct)
    except OSError as problem:
        if problem.errno in storage_place.FULL:
            storage_place.refuse_for(bench.folder, problem)
        bench.found["failed"][pattern["name"]] = str(problem.strerror or problem)
        row, written = None, 0
    if row:
        bench.found["rows"].append(dict(row, name=pattern["name"]))
    if pattern is bench.patterns[0]:
        bench.run["bytes"] = min(bench.run["bytes"], written // BLOCK * BLOCK)  # fio writes it again and again while its time lasts
        os.ftruncate(file, bench.run["bytes"])


def by_fio(bench, pattern, file):
    """({"fio": document}, bytes written)."""
    document = storage_fio.measure(bench.fio, pattern, file, bench.run)
    if document is None:
        return None, 0
    if document.get("full"):
        storage_place.refuse_for(bench.folder, OSError(28, document["failed"]))
    if "failed" in document:
        bench.found["failed"][pattern["name"]] = document["failed"]
        return None, 0
    bench.raw[pattern["name"]] = document
    options = " ".join(storage_fio.options(pattern, bench.run))
    return {"fio": storage_fio.cut(document), "options": options}, storage_fio.written_bytes(document)


def plainly(bench, pattern, file, direct):
    """(row, bytes written)."""
    row = storage_plain.measure(pattern, file if "write" in pattern["rw"] else direct, bench.run)
    return row, (row or {}).get("bytes", 0)


def code(bench):
    """What a developer waits for."""
    place = storage_place.Place(bench.folder)
    bench.found["swept"], bench.found["left"] = place.removed, place.left
    steps = [
        ("files", lambda: storage_files.small_files(place.folder, FILES_SHARE * bench.budget_s / 2)),
        ("package", lambda: storage_files.package(place.folder)),
        ("git", lambda: storage_files.git(place.folder)),
        ("torch", storage_files.torch_import),
    ]
    try:
        for number, (name, step) in enumerate(steps):
            if protocol.stopping():
                break
            protocol.progress(number, CODE_STEPS + len(bench.patterns), name, partial=report(bench, {}))
            bench.found[name] = step()
    except OSError as problem:
        if problem.errno in storage_place.FULL:
            storage_place.refuse_for(bench.folder, problem)
        bench.found["failed"]["small files"] = "{0}: {1}".format(type(problem).__name__, problem.strerror)
    finally:
        bench.found["not_removed"] = place.close()


def report(bench, seen):
    """The payload; also what is known so far."""
    room, run = os.statvfs(bench.folder), bench.run
    told = {"folder": bench.folder, "mount": bench.mount, "used_share": 1.0 - room.f_bavail / max(1, room.f_blocks), "parts": bench.parts}
    told.update(bench.found, bytes=run["bytes"], direct=run["direct"], engine=run["engine"], seconds_each=run["seconds"])
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return dict(told, partial=protocol.stopping(), conditions=dict(seen, fio=bench.version, memory_bytes=memory) if seen else {})


def keep_raw(name, bench):
    """Every document of fio and every rate as JSON, written aside and renamed."""
    if not name:
        return
    part = Path(name + ".part")
    part.write_text(json.dumps([*({"what": what, "fio": document} for what, document in bench.raw.items()), {"what": "all", "found": bench.found}]))
    part.replace(name)


def main(argv=None):
    """Refuse, measure, clean; one result."""
    settings = protocol.start(argv)
    unknown = [part for part in settings.get("parts") or [] if part not in PARTS]
    if unknown:
        protocol.failure("unknown_part", "part {0!r} is not known. Valid: {1}".format(unknown[0], ", ".join(PARTS)), kind="bad_request")
    folder, size = settings.get("folder") or "", int(settings.get("bytes") or BYTES)
    bench = Bench(settings, storage_place.refuse(folder, max(size, BLOCK) + SMALL_BYTES))
    watch = conditions.Watch("cpu")
    if "code" in bench.parts:  # first: a large file that was just removed keeps the journal busy
        code(bench)
    if not protocol.stopping():
        blocks(bench)
    keep_raw(settings.get("raw_file"), bench)
    protocol.result(report(bench, watch.close()))


if __name__ == "__main__":
    sys.exit(main())

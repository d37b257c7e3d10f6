"""Many small files, as a developer meets them: create, flush, stat, list, read, rename, delete; import, git, torch.

One process, one operation after the other, so each rate is 1 / latency: that is how Python opens modules and git looks
at a work tree. Data pages are dropped before the cold reads where the kernel lets us; names and attributes stay cached
(only root could drop those), which flatters network storage. Every step ends with its share of the time.

>>> small_files("/scratch/me/.skillserver-storage-7c1x0a", 5.0)["rates"]["create"]
31000.0
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import mounts
import protocol
import samples

FILES, FOLDERS, FILE_BYTES = 2000, 20, 16384
FLUSHED = 50  # files created with an fsync each
MODULES, TRACKED = 300, 500
LIMIT_S = 60.0
IMPORT = "import sys, time; sys.path.insert(0, sys.argv[1]); began = time.perf_counter(); import {0}; print(time.perf_counter() - began)"
CODE = "def function_{0}(value):\n    '''One of many.'''\n    return [value * {0} + each for each in range(10)]\n\n\n"
GIT_SETTINGS = ["-c", "user.name=none", "-c", "user.email=none@localhost", "-c", "commit.gpgsign=false", "-c", "core.fsmonitor=false",
                "-c", "core.untrackedCache=false", "-c", "gc.auto=0", "-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null"]  # fmt: skip


def small_files(folder, seconds):
    """Rates per second of every operation over files of 16 KiB, and the milliseconds of a create with fsync."""
    root = os.path.join(folder, "files")  # noqa: PTH118
    places = [os.path.join(root, "d{0}".format(number)) for number in range(FOLDERS)]  # noqa: PTH118
    for place in places:
        os.makedirs(place)  # noqa: PTH103
    data, each = os.urandom(FILE_BYTES), seconds / 4
    wanted = [os.path.join(places[number % FOLDERS], "f{0}".format(number)) for number in range(FILES)]  # noqa: PTH118
    created, rates = timed(lambda path: written(path, data), wanted, each)
    told = {"create": rates}
    flushed, _ = timed(lambda path: written(path + ".flushed", data, flush=True), wanted[:FLUSHED], each, keep=True)
    dropped(created)
    told["open_read"] = timed(lambda path: read(path), created, each)[1]
    told["stat"] = timed(os.stat, created, each)[1]
    told["list"] = listed(places)
    told["rename"] = timed(lambda path: os.rename(path, path + ".renamed"), created, each)[1]  # noqa: PTH104
    told["delete"] = timed(removed, created, each)[1]
    shutil.rmtree(root, ignore_errors=True)
    return {"files": len(created), "file_bytes": FILE_BYTES, "rates": told, "fsync_ms": samples.summary(flushed)["p50"] * 1e3 if flushed else None}


def timed(action, paths, seconds, keep=False):
    """(paths done within the time, operations a second); with `keep` the seconds of each instead of the paths."""
    done, each, began = [], [], time.perf_counter()
    for path in paths:
        start = time.perf_counter()
        if done and (start - began > seconds or protocol.stopping()):
            break
        action(path)
        each.append(time.perf_counter() - start)
        done.append(path)
    spent = time.perf_counter() - began
    return (each if keep else done), (len(done) / spent if spent > 0 else None)


def written(path, data, flush=False):
    """One new file."""
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        os.write(file, data)
        if flush:
            os.fsync(file)
    finally:
        os.close(file)


def read(path):
    """All of one file, in blocks of 4 KiB as `import` reads small modules."""
    file = os.open(path, os.O_RDONLY)
    try:
        while os.read(file, 4096):
            pass
    finally:
        os.close(file)


def removed(path):
    """One file less, whatever it is called by now."""
    try:
        os.unlink(path + ".renamed")  # noqa: PTH108
    except FileNotFoundError:
        os.unlink(path)  # noqa: PTH108


def listed(places):
    """Entries a second of scandir."""
    began = time.perf_counter()
    count = sum(len(list(os.scandir(place))) for place in places)
    return count / max(1e-9, time.perf_counter() - began)


def dropped(paths):
    """Flush the files and drop their pages, so that the next read goes to the storage; memory file systems keep them."""
    for path in paths:
        if protocol.stopping():
            return
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            pass
        finally:
            os.close(file)


def package(folder):
    """Seconds to import a package of 300 modules from the folder: pages dropped, then again."""
    place = Path(folder) / "site" / "skillserver_sample"
    place.mkdir(parents=True)
    names = ["module_{0}".format(number) for number in range(MODULES)]
    for number, name in enumerate(names):
        (place / (name + ".py")).write_text(CODE.format(number) * 10)
    (place / "__init__.py").write_text("".join("from . import {0}\n".format(name) for name in names))
    dropped([str(path) for path in place.iterdir()])
    first, again = (imported("skillserver_sample", str(place.parent)) for _ in range(2))
    return {"modules": MODULES, "first_s": first, "again_s": again}


def imported(name, folder=""):
    """Seconds that a fresh Python takes for one import, without its own start; None when it fails."""
    done = child([sys.executable, "-B", "-c", IMPORT.format(name), folder or os.getcwd()])  # noqa: PTH109
    try:
        return float(done.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None


def torch_import():
    """Seconds of `import torch` in this Python, twice, and where it lies; None without torch."""
    from importlib import util

    spec = util.find_spec("torch")
    if spec is None or not spec.origin:
        return None
    first, again = (imported("torch") for _ in range(2))
    mount = mounts.of(spec.origin)
    return {"first_s": first, "again_s": again, "file_system": mount["type"], "mount": mount["mount"]}


def git(folder):
    """Milliseconds of `git status` over 500 tracked files, the median of five; None without git."""
    binary = shutil.which("git")
    if not binary:
        return None
    place = Path(folder) / "clone"
    for number in range(TRACKED):
        file = place / "d{0}".format(number % FOLDERS) / "f{0}.py".format(number)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(CODE.format(number))
    ours = [binary, "-C", str(place), *GIT_SETTINGS]
    home = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(place), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    for words in (["init", "--quiet", "--template="], ["add", "."], ["commit", "--quiet", "--message=all"]):
        child([*ours, *words], home)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        child([*ours, "status", "--porcelain"], home)
        times.append((time.perf_counter() - began) * 1e3)
    return {"tracked_files": TRACKED, "status_ms": samples.median(times), "first_status_ms": times[0]}


def child(command, environment=None):
    """What a short program printed; "" when it failed. It ends with this process."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True,
                              env=environment, timeout=LIMIT_S, preexec_fn=protocol.die_with_parent, check=True)  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout

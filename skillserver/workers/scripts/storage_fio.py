"""One pattern after the other by fio, on a file without a name.

fio opens the file through /proc/self/fd, which works for a file that no folder lists any more, so a kill leaves nothing.
The first pattern writes the file; if its time ends first, the others use only what was written: reading the rest would
be reading holes. Its jobs are threads: forked ones would outlive a killed fio. Each document of fio is kept whole in the raw
file and cut to what is judged in the result. Does not
know what a good number is.

>>> command("/usr/bin/fio", PATTERNS[0], 7, {"bytes": 2**30, "direct": True, "engine": "libaio", "seconds": 5})
['/usr/bin/fio', '--output-format=json', '--name=sequential write', '--filename=/proc/self/fd/7', ...]
"""

import json
import shutil
import subprocess
import tempfile
import time

import protocol
import storage_place

# name: needs it speaks to; options. In flight = iodepth x numjobs: a low queue measures latency and not the storage.
PATTERNS = [
    {"name": "sequential write", "part": "checkpoints", "rw": "write", "bs": "8m", "iodepth": 4, "numjobs": 1},
    {"name": "sequential read", "part": "data_loading", "rw": "read", "bs": "8m", "iodepth": 4, "numjobs": 1},
    {"name": "random read 64k", "part": "data_loading", "rw": "randread", "bs": "64k", "iodepth": 16, "numjobs": 4},
    {"name": "random read 4k", "part": "code", "rw": "randread", "bs": "4k", "iodepth": 32, "numjobs": 4},
    {"name": "random write 4k", "part": "code", "rw": "randwrite", "bs": "4k", "iodepth": 32, "numjobs": 4},
]
ENGINES = ("libaio", "io_uring", "posixaio")  # the first that fio has; all keep several requests in flight
SPARE_S = 20.0  # over the time a pattern may take: start, and the flush at the end
POLL_S = 0.05
KEPT = ("io_bytes", "bw_bytes", "bw", "iops", "runtime")


def find():
    """(path of fio, its version), or ("", "") without one."""
    binary = shutil.which("fio")
    if not binary:
        return "", ""
    said = subprocess.run([binary, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True, timeout=20, check=False)
    return (binary, said.stdout.strip()) if said.returncode == 0 else ("", "")


def engine(binary):
    """The asynchronous engine that this fio has, "psync" without one."""
    said = subprocess.run([binary, "--enghelp"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True, timeout=20, check=False)
    names = said.stdout.split()
    return next((name for name in ENGINES if name in names), "psync")


def options(pattern, run):
    """The options that decide what is measured: what anybody would give fio by hand."""
    told = ["--rw=" + pattern["rw"], "--bs=" + pattern["bs"], "--iodepth={0}".format(pattern["iodepth"]), "--numjobs={0}".format(pattern["numjobs"]),
            "--ioengine=" + run["engine"], "--direct={0}".format(int(run["direct"])), "--size={0}".format(run["bytes"]),
            "--time_based", "--runtime={0}".format(max(1, round(run["seconds"]))), "--overwrite=1", "--group_reporting",
            "--thread"]  # fmt: skip
    return told + (["--end_fsync=1"] if pattern["rw"] == "write" else ["--randrepeat=0", "--norandommap"] if "rand" in pattern["rw"] else [])


def command(binary, pattern, file, run):
    """fio on the open file."""
    return [binary, "--output-format=json", "--name=" + pattern["name"], "--filename=/proc/self/fd/{0}".format(file), *options(pattern, run)]


def measure(binary, pattern, file, run):
    """fio's document, {"failed": words} when it gave none, or None when we are told to stop."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(command(binary, pattern, file, run), stdin=subprocess.DEVNULL, stdout=out, stderr=err, pass_fds=[file],
                                 preexec_fn=protocol.die_with_parent)  # fmt: skip
        late = not awaited(child, run["seconds"] + SPARE_S)
        if protocol.stopping():
            return None
        out.seek(0)
        err.seek(0)
        text, words = out.read().decode(errors="replace"), err.read().decode(errors="replace").strip()
    if late:
        return {"failed": "gave no answer {0:.0f} s after its time was over".format(SPARE_S)}
    return read(text, words, child.returncode)


def awaited(child, seconds):
    """Whether it ended by itself in time; otherwise it is ended, also when we are told to stop."""
    ends = time.monotonic() + seconds
    while child.poll() is None:
        if protocol.stopping() or time.monotonic() > ends:
            child.kill()
            child.wait()
            return False
        time.sleep(POLL_S)
    return True


def read(text, words, status):
    """The document in fio's output; notes may stand before it."""
    last = words.splitlines()[-1] if words else ""
    try:
        document = json.loads(text[text.index("{") :])
    except ValueError:
        return {"failed": "ended with status {0}: {1}".format(status, last or "no output")}
    code = next((job["error"] for job in document.get("jobs", []) if job.get("error")), 0)
    if code:
        known = storage_place.FULL.get(code)
        return {"failed": "error {0}: {1}".format(code, known or last), "full": bool(known)}
    return document


def written_bytes(document):
    """What the writing pattern wrote."""
    return sum(job["write"]["io_bytes"] for job in document["jobs"])


def cut(document):
    """The document with only what is judged."""
    jobs = []
    for job in document["jobs"]:
        told = {name: job.get(name) for name in ("jobname", "error", "job options")}
        for way in ("read", "write"):
            side = {name: job[way].get(name) for name in KEPT}
            percentiles = job[way].get("clat_ns", {}).get("percentile", {})
            side["clat_ns"] = {"percentile": {name: percentiles[name] for name in ("50.000000", "99.000000") if name in percentiles}}
            side["lat_ns"] = {"mean": job[way].get("lat_ns", {}).get("mean")}
            told[way] = side
        jobs.append(told)
    return {"fio version": document["fio version"], "global options": document.get("global options", {}), "jobs": jobs}

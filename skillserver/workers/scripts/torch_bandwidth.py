"""What the memories and copies of this host carry, and whether its matmuls repeat bit for bit.

    python torch_bandwidth.py --settings '{"devices": ["cpu"], "parts": ["memory", "correctness"], "budget_s": 10}'

Settings: devices (["cpu"], ["cuda:0", "cuda:1"]; default: every accelerator, else the CPU), parts (memory, transfers,
peers, correctness; default all), budget_s (seconds in all; 20), copy_bytes (of a copy between memories; 256 MiB),
raw_file (every sample as JSON).

memory: the STREAM kernels triad a = b + s*c and copy a = b over arrays four times the last cache, 3 and 2 arrays counted a
pass, no write-allocate. transfers: host to device and back, from pinned and from pageable memory, one direction at a
time. peers: a copy from each accelerator to each other one. correctness: see exact.py. Every rate is bytes / the median
time, GB/s = 10^9. Does not know what a good number is.
"""

import json
import sys
import time
from pathlib import Path

import conditions
import cores
import devices
import exact
import processor
import protocol
import samples
import torch

BUDGET_S, LEAST_S = 20.0, 0.05
PARTS = ("memory", "transfers", "peers", "correctness")
COPY_BYTES = 256 * 2**20
LEAST, MOST = 5, 200
CACHES = 4  # times the last-level cache, as STREAM's rules ask
ARRAY_BYTES = {"cpu": (64 * 2**20, 2**30), "other": (2**30, 2**30)}  # least and most of one array
MEMORY_SHARE = 0.1  # of what is free, for one array
NEEDED = {"transfers": 1, "peers": 2}  # accelerators
RAW = "seconds_each"


class Host:
    """The devices looked at, and the time each measurement may take."""

    def __init__(self, settings):
        names = settings.get("devices") or every_device()
        self.devices = [devices.find(name) for name in names]
        self.accelerators = [device for device in self.devices if device.kind != "cpu"]
        self.parts = [part for part in PARTS if part in (settings.get("parts") or PARTS)]
        self.copy_bytes = int(settings.get("copy_bytes") or COPY_BYTES)
        torch.set_num_threads(cores.usable()["threads"])
        self.budget_s = max(1.0, float(settings.get("budget_s") or BUDGET_S))
        self.slice_s = self.budget_s / max(1, len([part for part in self.parts if len(self.accelerators) >= NEEDED.get(part, 0)]))
        self.done, self.skipped = {}, {}
        self.driver = conditions.driver() if self.devices[0].backend == "cuda" else None

    def steps(self):
        """How many slices a part is cut into, so that all of it ends in time."""
        count = len(self.devices)
        return {"memory": 2 * count, "transfers": 4 * count, "peers": max(1, count * (count - 1)), "correctness": count}


def every_device():
    """Every accelerator that torch sees, else the CPU."""
    first = devices.find("auto")
    count = getattr(torch, first.kind).device_count() if first.kind in ("cuda", "xpu") else 1
    return ["{0}:{1}".format(first.kind, number) for number in range(count)] if count > 1 else [first.name]


def rate(device, moved, action, seconds):
    """GB/s of an action that moves `moved` bytes: summary over calls for at most `seconds`."""
    action()
    settle(device)
    times, ends = [], time.monotonic() + max(LEAST_S, seconds)
    while len(times) < MOST and not protocol.stopping() and (len(times) < LEAST or time.monotonic() < ends):
        began = time.perf_counter()
        action()
        settle(device)
        times.append(time.perf_counter() - began)
    if not times:
        return None
    told = samples.summary([moved / each / 1e9 for each in times])
    return {"gb_s": told["p50"], "p5_gb_s": told["p5"], "p95_gb_s": told["p95"], "n": told["n"], RAW: [round(each, 6) for each in times]}


def settle(device):
    """Wait for this device; a copy between two ends on either's stream, so a list waits for all."""
    for one in device if isinstance(device, list) else [device]:
        devices.synchronize(one)


def memory(_host, device, seconds):
    """The triad and a copy inside the device's memory."""
    least, most = ARRAY_BYTES["cpu" if device.kind == "cpu" else "other"]
    wanted = max(least, CACHES * processor.last_cache_bytes()) if device.kind == "cpu" else least
    free = devices.free_bytes(device)
    size = int(min(wanted, most, wanted if free is None else MEMORY_SHARE * free)) // 4
    a, b, c = (torch.full((size,), value, dtype=torch.float32, device=device.place) for value in (0.0, 1.0, 2.0))
    found = {"array_bytes": 4 * size, "cached": 4 * size < wanted,
             "triad": rate(device, 12 * size, lambda: torch.add(b, c, alpha=3.0, out=a), seconds)}  # fmt: skip
    found["correct"] = bool((a == 7.0).all())
    found["copy"] = rate(device, 8 * size, lambda: a.copy_(b), seconds)
    return found


def transfers(host, device, seconds):
    """Host to device and back, pinned and pageable; the device must return what it was given."""
    count = host.copy_bytes // 4
    there = torch.empty(count, dtype=torch.float32, device=device.place)
    found = {}
    for kind in ("pinned", "pageable"):
        here = torch.arange(count, dtype=torch.float32)
        here = here.pin_memory() if kind == "pinned" else here
        back = torch.zeros_like(here).pin_memory() if kind == "pinned" else torch.zeros_like(here)
        busy = kind == "pinned"
        found["to_device_" + kind] = rate(device, 4 * count, lambda h=here, n=busy: there.copy_(h, non_blocking=n), seconds)
        found["to_host_" + kind] = rate(device, 4 * count, lambda b=back, n=busy: b.copy_(there, non_blocking=n), seconds)
        found["correct"] = found.get("correct", True) and torch.equal(here, back)
    return found


def peers(host, seconds):
    """A row for each ordered pair of accelerators."""
    rows, count = [], host.copy_bytes // 4
    for one in host.accelerators:
        given = torch.arange(count, dtype=torch.float32, device=one.place)
        for other in host.accelerators:
            if other.name == one.name or protocol.stopping():
                continue
            taken = torch.zeros(count, dtype=torch.float32, device=other.place)
            told = rate([one, other], 4 * count, lambda g=given, t=taken: t.copy_(g, non_blocking=True), seconds)
            direct = torch.cuda.can_device_access_peer(one.place.index, other.place.index) if one.kind == "cuda" else None
            rows.append({"from": one.name, "to": other.name, "direct": direct, "correct": torch.equal(given.cpu(), taken.cpu()), "rate": told})
    return rows


def correctness(device, truths, seconds):
    """The exact products of each dtype, repeated until the time is over."""
    rows = []
    for dtype in exact.dtypes(device):
        size = exact.SIZES["cpu" if device.kind == "cpu" else "other"]
        if (size, dtype) not in truths:
            truths[size, dtype] = exact.Truth(size, dtype)
        repeats = exact.Repeats(device, truths[size, dtype])
        row = {"dtype": dtype, "size": size, "rounds": 0, "wrong_rounds": 0, "wrong_elements": 0, "first": ""}
        ends = time.monotonic() + seconds / len(exact.dtypes(device))
        while not protocol.stopping() and (row["rounds"] < LEAST or time.monotonic() < ends):
            wrong = repeats.once()
            row["rounds"] += 1
            row["wrong_rounds"] += bool(wrong)
            row["wrong_elements"] += wrong
            row["first"] = row["first"] or (repeats.worst() if wrong else "")
        rows.append(row)
    return rows


def measured(host, part):
    """One part over all devices, or the reason why it is left out."""
    seconds = host.slice_s / host.steps()[part]
    if part == "transfers" and not host.accelerators:
        host.skipped[part] = "no accelerator: the CPU's memory is the only one"
    elif part == "peers" and len(host.accelerators) < 2:
        host.skipped[part] = "{0} accelerator here; a copy between two needs two".format(len(host.accelerators) or "no")
    elif part == "peers":
        host.done[part] = peers(host, seconds)
    elif part == "correctness":
        truths = {}
        host.done[part] = {device.name: correctness(device, truths, seconds) for device in host.devices}
    else:
        work = {"memory": memory, "transfers": transfers}[part]
        chosen = host.devices if part == "memory" else host.accelerators
        host.done[part] = {device.name: work(host, device, seconds) for device in chosen}


def report(host, seen):
    """The payload; also what is known so far."""
    models = {device.name: device.model for device in host.devices}
    told = {"devices": models, "backend": host.devices[0].backend, **without_raw(host.done), "skipped": host.skipped}
    software = {"torch": torch.__version__, "threads": torch.get_num_threads(), "numa": cores.nodes(), "driver": host.driver}
    return dict(told, partial=bool(protocol.stopping()), copy_bytes=host.copy_bytes, conditions=dict(seen, **software) if seen else {})


def without_raw(value):
    """The same without every single time."""
    if isinstance(value, dict):
        return {name: without_raw(item) for name, item in value.items() if name != RAW}
    return [without_raw(item) for item in value] if isinstance(value, list) else value


def keep_raw(name, host):
    """Everything that was measured as JSON, written aside and renamed."""
    if not name:
        return
    aside = Path(name + ".part")
    aside.write_text(json.dumps([{"part": part, "found": found} for part, found in host.done.items()]))
    aside.replace(name)


def main(argv=None):
    """Measure every part that time and devices allow; one result."""
    settings = protocol.start(argv)
    unknown = [part for part in settings.get("parts") or [] if part not in PARTS]
    if unknown:
        protocol.failure("unknown_part", "part {0!r} is not known. Valid: {1}".format(unknown[0], ", ".join(PARTS)), kind="bad_request")
    host = Host(settings)
    first = host.devices[0]
    watch = conditions.Watch(first.backend, first.uuid)
    for number, part in enumerate(host.parts):
        if protocol.stopping():
            break
        protocol.progress(number, len(host.parts), "{0} of {1} devices".format(part, len(host.devices)), partial=report(host, {}))
        measured(host, part)
    keep_raw(settings.get("raw_file"), host)
    protocol.result(report(host, watch.close()))


if __name__ == "__main__":
    sys.exit(main())

"""The same patterns by plain Python where there is no fio: a fallback, and it says so.

Blocking calls in threads (they leave Python's lock while they wait), so in flight = threads, far fewer than fio keeps.
Above some ten thousand operations a second Python itself is the limit. Writes go through the page cache and end with
fsync; reads go past it where the file system lets them.

>>> measure(PATTERNS[3], 7, {"bytes": 2**30, "direct": True, "seconds": 5})
{'way': 'read', 'gb_s': 0.11, 'iops': 27000.0, 'block_bytes': 4096, 'in_flight': 16, 'seconds': 5.0}
"""

import mmap
import os
import random
import threading
import time

import protocol

THREADS = 16
UNITS = {"k": 2**10, "m": 2**20}


def measure(pattern, file, run):
    """A row of one pattern; None when nothing was done."""
    block = int(pattern["bs"][:-1]) * UNITS[pattern["bs"][-1]]
    way = "write" if "write" in pattern["rw"] else "read"
    began = time.perf_counter()
    if pattern["rw"] in ("write", "read"):
        done, threads = one_after_another(way, file, block, run, began), 1
    else:
        done, threads = at_random(way, file, block, run, began), THREADS
    if way == "write":
        os.fsync(file)
    seconds = time.perf_counter() - began
    if not done:
        return None
    moved = done * block
    return {"way": way, "gb_s": moved / seconds / 1e9, "iops": done / seconds, "block_bytes": block, "in_flight": threads, "seconds": seconds,
            "bytes": moved}  # fmt: skip


def one_after_another(way, file, block, run, began):
    """Blocks in order, once over the file when writing, round and round when reading."""
    buffer, count, done = filled(block), run["bytes"] // block, 0
    while not over(run, began) and (way == "read" or done < count):
        moved(way, file, buffer, done % count * block)
        done += 1
    return done


def at_random(way, file, block, run, began):
    """Blocks at random places, by threads of their own seeds."""
    counts, places = [0] * THREADS, run["bytes"] // block

    def work(number):
        choose, buffer = random.Random(number), filled(block)
        while not over(run, began):
            moved(way, file, buffer, choose.randrange(places) * block)
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def over(run, began):
    """Whether the time is over, or we are told to stop."""
    return protocol.stopping() or time.perf_counter() - began > run["seconds"]


def filled(block):
    """A page-aligned buffer, as O_DIRECT wants it, of bytes that no drive can compress away."""
    buffer = mmap.mmap(-1, block)
    buffer.write(os.urandom(block))
    return buffer


def moved(way, file, buffer, offset):
    """One block to or from the file. Raises OSError when it is not moved whole."""
    count = os.pwritev(file, [buffer], offset) if way == "write" else os.preadv(file, [buffer], offset)
    if count != len(buffer):
        raise OSError("{0} of {1} bytes moved at {2}".format(count, len(buffer), offset))

"""What a CPU could do: the model, the vector units, the clock, and from them the peak of a matmul.

peak = cores x clock x flop per cycle. Flop per cycle comes from the vector flags of /proc/cpuinfo and from a table of
how many such units a core has, which no flag says; every assumption is returned beside the number. The clock comes from
cpufreq, else from the model name ("@ 2.60GHz" is the base clock: a turbo exceeds it), else it is timed on this core.
Linux on x86-64 and arm64; anything else has no peak, with the reason.

Does not know licence-based clock drops (heavy AVX-512 may run slower than the clock told here), nor which kernel torch picks.

>>> flop_per_cycle({"avx512f"}, "AuthenticAMD", 25, "fp32")[0]      # Zen 4: 512-bit vectors over a 256-bit path
32
"""

import ctypes
import mmap
import platform
import re
import sys
import time
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
HALF_PATH = {("AuthenticAMD", 25)}  # Zen 4 runs AVX-512 over 256-bit units: one 512-bit FMA a cycle
CHAIN, LOOPS, IMUL_CYCLES = 64, 20000, 3  # 64 dependent multiplies a turn; each waits 3 cycles on every x86-64 core since 2008


def describe(path="/proc/cpuinfo"):
    """{model, vendor, family, flags} of the first core; empty values where the file says nothing."""
    try:
        first = Path(path).read_text().split("\n\n")[0]
    except OSError:
        first = ""
    fields = dict(re.findall(r"^([^\t:]+?)\s*:[ \t]*(.*)$", first, re.M))
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    family = fields.get("cpu family", "")
    model = fields.get("model name") or platform.processor() or platform.machine()
    return {"model": model, "vendor": fields.get("vendor_id", ""), "family": int(family) if family.isdigit() else 0, "flags": flags}


def flop_per_cycle(flags, vendor, family, dtype):
    """(flop a cycle a core, the assumption in words), or (None, why not). A fused multiply-add counts two."""
    if dtype == "fp32":
        return _vector(flags, vendor, family, 32, ("avx512f",))
    if dtype == "bf16" and "amx_bf16" in flags:
        return 1024, "AMX: one 16x16x32 bf16 tile product in 16 cycles"
    if dtype == "bf16" and "avx512_bf16" in flags:
        dots, words = _vector(flags, vendor, family, 32, ("avx512_bf16",))
        return (dots if vendor == "GenuineIntel" else 2 * dots), words + "; a bf16 dot product doubles the work of a lane"
    if dtype == "int8":
        return _int8(flags, vendor, family)
    if dtype == "fp16" and "avx512_fp16" in flags:
        return _vector(flags, vendor, family, 16, ("avx512_fp16",))
    return None, "this CPU has no instruction for {0} products that we know; its peak is unknown".format(dtype)


def _int8(flags, vendor, family):
    """Operations of 8-bit products: tiles, else dot products of four bytes a 32-bit lane."""
    if "amx_int8" in flags:
        return 2048, "AMX: one 16x16x64 int8 tile product in 16 cycles"
    if not {"avx512_vnni", "avx_vnni"} & flags:
        return None, "this CPU has no instruction for int8 dot products that we know; its peak is unknown"
    lanes, words = _vector(flags, vendor, family, 32, ("avx512_vnni",))
    return (None if lanes is None else 4 * lanes), words + "; an int8 dot product does four times the work of a lane"


def _vector(flags, vendor, family, bits, wide):
    """Lanes x 2 x units for the widest vectors there are."""
    if wide[0] in flags:
        units = 1 if (vendor, family) in HALF_PATH else 2
        half, full = "AVX-512 over a 256-bit path: one 512-bit FMA a cycle", "two 512-bit FMA units a core are assumed (some Xeon models have one)"
        words = half if units == 1 else full
        return 512 // bits * 2 * units, words
    if "avx2" in flags and "fma" in flags:
        return 256 // bits * 4, "two 256-bit FMA units a core are assumed"
    if "asimd" in flags:
        return 128 // bits * 4, "two 128-bit FMA units a core are assumed (Neoverse V1 and newer have twice that)"
    return None, "no vector width could be read from /proc/cpuinfo"


def clock_ghz(model):
    """(highest clock in GHz, where it is from), or (None, why)."""
    found = []
    for path in CPUS.glob("cpu[0-9]*/cpufreq/cpuinfo_max_freq"):
        try:
            found.append(int(path.read_text()) / 1e6)
        except (OSError, ValueError):
            continue
    if found:
        return max(found), "cpuinfo_max_freq"
    timed = timed_clock_ghz()
    if timed:
        return timed, "timed on one core with dependent multiplies"
    named = re.search(r"@\s*([\d.]+)\s*GHz", model)
    return (float(named.group(1)), "the model name (the base clock; a turbo exceeds it)") if named else (None, "no clock could be read or timed")


def timed_clock_ghz(rounds=7):
    """The clock of this core now, from a chain of multiplies that each wait for the last; None off x86-64 Linux.

    A virtual machine hides cpufreq, and its "cpu MHz" is the constant rate of the time-stamp counter. The shortest of
    a few rounds counts: interruption only adds time.
    """
    if platform.machine() not in ("x86_64", "AMD64") or not sys.platform.startswith("linux"):
        return None
    # mov ecx, LOOPS; CHAIN x (imul eax, eax); dec ecx; jnz back; ret
    body = b"\x0f\xaf\xc0" * CHAIN + b"\xff\xc9"
    code = b"\xb9" + LOOPS.to_bytes(4, "little") + body
    code += b"\x0f\x85" + (-(len(body) + 6)).to_bytes(4, "little", signed=True) + b"\xc3"
    try:
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except (OSError, ValueError):  # hardened kernels refuse pages that can be written and run
        return None
    page.write(code)
    run = ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    return LOOPS * CHAIN * IMUL_CYCLES / min(_seconds(run) for _ in range(rounds)) / 1e9


def _seconds(run):
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def peak(cores, dtype):
    """{tflops, clock_ghz, flop_per_cycle, cores, from}; tflops None with `reason` when a part is unknown."""
    cpu = describe()
    flop, words = flop_per_cycle(cpu["flags"], cpu["vendor"], cpu["family"], dtype)
    clock, source = clock_ghz(cpu["model"])
    if flop is None or clock is None:
        return {"tflops": None, "reason": words if flop is None else source}
    text = "{0} cores x {1:.2f} GHz ({2}) x {3} flop a cycle ({4})".format(cores, clock, source, flop, words)
    return {"tflops": cores * clock * flop / 1e3, "clock_ghz": clock, "flop_per_cycle": flop, "cores": cores, "from": text}


def last_cache_bytes():
    """The size of the last-level cache that core 0 sees, 0 when unknown."""
    sizes = []
    for path in CPUS.glob("cpu0/cache/index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) * {"K": 2**10, "M": 2**20}.get(text[-1:], 1) if text[:-1].isdigit() else 0)
    return max(sizes) if sizes else 0

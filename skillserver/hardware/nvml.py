"""What the driver says of each NVIDIA GPU now: the only file that touches pynvml. Runs as a program of its own.

`python -m skillserver.hardware.nvml` prints JSON lines: `library`, then for each GPU `asking` and `gpu`, then `end`; or
`failed` with NVML's error. A reader that gives up on a hung driver keeps what was printed and knows which GPU hung.
Field names are those of health/fields.py. A call that is not supported is left out; an error is a fact (`errors`).
Does not judge, and does not know AMD.

>>> for line in run: json.loads(line)["at"]
'library', 'asking', 'gpu', 'end'
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

Reading = dict[str, Any]
SILENT = ("NotSupported", "FunctionNotFound", "ArgumentVersionMismatch", "InvalidArgument", "NoData", "Deprecated")  # this part has no such thing
GONE = ("GpuIsLost", "GpuNotFound")
REASONS = {0x1: "reason_idle", 0x4: "reason_sw_power_cap", 0x8: "reason_hw_slowdown", 0x20: "reason_sw_thermal", 0x40: "reason_hw_thermal",
           0x80: "reason_power_brake"}  # fmt: skip
RECOVERY = ("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset", "Recover IMEX domain", "Bus Reset", "System Reboot")
FABRIC = {1: "Not Started", 2: "In Progress", 3: "Completed"}
FABRIC_HEALTH = {1: "Healthy", 2: "Unhealthy", 3: "Limited Capacity"}
VIRTUALIZATION = {0: "None", 1: "Pass-Through", 2: "VGPU", 3: "Host VGPU", 4: "Host VSGA"}
MIB = 2**20
SRAM, DRAM, CORRECTED, UNCORRECTED, VOLATILE, AGGREGATE = 7, 2, 0, 1, 0, 1  # nvml.h
RECOVERY_FIELD, SHUTDOWN, SLOWDOWN, MEMORY_MAX, SM = 230, 0, 1, 2, 1
MOST_LINKS = 36  # the driver answers "invalid argument" beyond what the part has


def main() -> None:
    """Print the lines. Never raises for what a driver answers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the deprecated wrapper of the same name warns on import
        import pynvml
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as problem:
        _say(at="failed", error=_word(problem), code=problem.value)
        return
    count = pynvml.nvmlDeviceGetCount()
    _say(at="library", count=count, driver=_text(pynvml.nvmlSystemGetDriverVersion()))
    for index in range(count):
        _say(at="asking", index=index)
        _say(at="gpu", **_gpu(pynvml, index))
    _say(at="end")


def _say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _word(problem: Any) -> str:
    """`GpuIsLost` of NVMLError_GpuIsLost; codes that pynvml does not know are `Unknown`."""
    return type(problem).__name__.partition("_")[2] or "Unknown"


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _gpu(n: ModuleType, index: int) -> Reading:
    """Everything that one GPU answers; stops at the first answer that it is lost."""
    out: Reading = {"index": index, "pci": None, "values": {}, "errors": {}}
    try:
        handle = n.nvmlDeviceGetHandleByIndex(index)
    except n.NVMLError as problem:
        _note(out, "handle", problem)
        return out
    try:
        out["pci"] = _text(n.nvmlDeviceGetPciInfo(handle).busId)
    except n.NVMLError as problem:
        _note(out, "pci", problem)
    for name, call in CALLS:
        try:
            out["values"].update({key: value for key, value in call(n, handle).items() if value is not None})
        except n.NVMLError as problem:
            _note(out, name, problem)
            if out["values"].get("lost"):
                return out
        except AttributeError:
            continue  # an older pynvml
    return out


def _note(out: Reading, name: str, problem: Any) -> None:
    word = _word(problem)
    if word in GONE:
        out["values"]["lost"] = True
    elif word == "ResetRequired":
        out["values"]["reset_required"] = True
    elif word == "CorruptedInforom":
        out["values"]["inforom_corrupt"] = True
    elif word not in SILENT:
        out["errors"][name] = f"{word} ({problem.value})"


def _one(name: str, function: str, *arguments: Any, scale: float = 1.0) -> tuple[str, Callable[[ModuleType, Any], Reading]]:
    return name, lambda n, handle: {name: float(getattr(n, function)(handle, *arguments)) * scale}


def _flag(name: str, function: str) -> tuple[str, Callable[[ModuleType, Any], Reading]]:
    def ask(n: ModuleType, handle: Any) -> Reading:
        answer = getattr(n, function)(handle)
        return {name: bool(answer[0] if isinstance(answer, list | tuple) else answer)}

    return name, ask


def _names(n: ModuleType, handle: Any) -> Reading:
    return {"name": _text(n.nvmlDeviceGetName(handle))}


def _pstate(n: ModuleType, handle: Any) -> Reading:
    state = n.nvmlDeviceGetPerformanceState(handle)
    return {"pstate": f"P{state}" if 0 <= state < 16 else None}


def _reasons(n: ModuleType, handle: Any) -> Reading:
    mask = n.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return {name: bool(mask & bit) for bit, name in REASONS.items()}


def _ecc(location: int, where: str) -> tuple[str, Callable[[ModuleType, Any], Reading]]:
    def ask(n: ModuleType, handle: Any) -> Reading:
        counts = {f"{span}_{where}_uncorrectable": n.nvmlDeviceGetMemoryErrorCounter(handle, UNCORRECTED, counter, location)
                  for span, counter in (("volatile", VOLATILE), ("aggregate", AGGREGATE))}  # fmt: skip
        return {name: float(count) for name, count in counts.items()}

    return f"ecc_{where}", ask


def _total(name: str, kind: int, counter: int) -> tuple[str, Callable[[ModuleType, Any], Reading]]:
    return _one(name, "nvmlDeviceGetTotalEccErrors", kind, counter)


def _sram(n: ModuleType, handle: Any) -> Reading:
    status = n.c_nvmlEccSramErrorStatus_v1_t()
    n.nvmlDeviceGetSramEccErrorStatus(handle, n.byref(status))
    return {
        "volatile_sram_uncorrectable": float(status.volatileUncParity + status.volatileUncSecDed),
        "aggregate_sram_uncorrectable": float(status.aggregateUncParity + status.aggregateUncSecDed),
        "sram_threshold_exceeded": bool(status.bThresholdExceeded),
    }


def _remapped(n: ModuleType, handle: Any) -> Reading:
    corrected, uncorrected, pending, failed = n.nvmlDeviceGetRemappedRows(handle)
    return {
        "remap_correctable": float(corrected),
        "remap_uncorrectable": float(uncorrected),
        "remap_pending": bool(pending),
        "remap_failure": bool(failed),
    }


def _banks(n: ModuleType, handle: Any) -> Reading:
    return {"remap_banks_full": float(n.nvmlDeviceGetRowRemapperHistogram(handle).none)}


def _retired(n: ModuleType, handle: Any) -> Reading:
    return {name: float(len(n.nvmlDeviceGetRetiredPages(handle, cause))) for cause, name in ((0, "retired_single_bit"), (1, "retired_double_bit"))}


def _recovery(n: ModuleType, handle: Any) -> Reading:
    field = n.nvmlDeviceGetFieldValues(handle, [RECOVERY_FIELD])[0]
    number = int(field.value.uiVal) if field.nvmlReturn == 0 else -1
    return {"recovery_action": RECOVERY[number] if 0 <= number < len(RECOVERY) else None}


def _utilisation(n: ModuleType, handle: Any) -> Reading:
    return {"utilisation_percent": float(n.nvmlDeviceGetUtilizationRates(handle).gpu)}


def _memory(n: ModuleType, handle: Any) -> Reading:
    info = n.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_total_mib": float(info.total // MIB), "memory_used_mib": float(info.used // MIB)}


def _programs(n: ModuleType, handle: Any) -> Reading:
    return {"programs": float(len(n.nvmlDeviceGetComputeRunningProcesses(handle)))}


def _fabric(n: ModuleType, handle: Any) -> Reading:
    info = n.c_nvmlGpuFabricInfo_v3_t()
    n.nvmlDeviceGetGpuFabricInfoV(handle, n.byref(info))
    status = f"Error {info.status}" if info.status else "Success"
    return {
        "fabric_state": FABRIC.get(info.state),
        "fabric_status": status if info.state == 3 else None,
        "fabric_health": FABRIC_HEALTH.get(info.healthSummary),
    }


def _links(n: ModuleType, handle: Any) -> Reading:
    up = []
    for link in range(MOST_LINKS):
        try:
            up.append(bool(n.nvmlDeviceGetNvLinkState(handle, link)))
        except n.NVMLError as problem:
            if _word(problem) in SILENT:
                break
            raise
    return {"nvlinks_up": float(sum(up)), "nvlinks_down": ", ".join(str(link) for link, is_up in enumerate(up) if not is_up) or None} if up else {}


def _virtualization(n: ModuleType, handle: Any) -> Reading:
    return {"virtualization": VIRTUALIZATION.get(n.nvmlDeviceGetVirtualizationMode(handle))}


def _inforom(n: ModuleType, handle: Any) -> Reading:
    n.nvmlDeviceValidateInforom(handle)
    return {}


CALLS: tuple[tuple[str, Callable[[ModuleType, Any], Reading]], ...] = (
    ("name", _names), ("recovery_action", _recovery), ("pstate", _pstate), ("utilisation_percent", _utilisation), ("reasons", _reasons),
    _total("volatile_uncorrectable", UNCORRECTED, VOLATILE), _total("aggregate_uncorrectable", UNCORRECTED, AGGREGATE),
    _total("volatile_correctable", CORRECTED, VOLATILE), _total("aggregate_correctable", CORRECTED, AGGREGATE),
    _ecc(DRAM, "dram"), _ecc(SRAM, "sram"), ("sram", _sram), ("remapped", _remapped), ("banks", _banks), ("retired", _retired),
    _flag("retired_pending", "nvmlDeviceGetRetiredPagesPendingStatus"), ("inforom", _inforom),
    _one("temperature_c", "nvmlDeviceGetTemperature", 0), _one("temperature_margin_c", "nvmlDeviceGetMarginTemperature"),
    _one("slowdown_c", "nvmlDeviceGetTemperatureThreshold", SLOWDOWN), _one("shutdown_c", "nvmlDeviceGetTemperatureThreshold", SHUTDOWN),
    _one("memory_max_c", "nvmlDeviceGetTemperatureThreshold", MEMORY_MAX), _one("power_w", "nvmlDeviceGetPowerUsage", scale=1e-3),
    _one("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", scale=1e-3), _one("sm_clock_mhz", "nvmlDeviceGetClockInfo", SM),
    _one("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration"), _one("pcie_gen_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
    _one("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"), _one("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
    _one("pcie_replays", "nvmlDeviceGetPcieReplayCounter"), ("memory", _memory), ("programs", _programs), ("fabric", _fabric), ("nvlink", _links),
    _flag("persistence", "nvmlDeviceGetPersistenceMode"), _flag("mig", "nvmlDeviceGetMigMode"), _flag("ecc", "nvmlDeviceGetEccMode"),
    ("virtualization", _virtualization),
)  # fmt: skip


if __name__ == "__main__":
    main()

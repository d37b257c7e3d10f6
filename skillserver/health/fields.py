"""The fields of a GPU reading and where `nvidia-smi` prints them, in text and XML, in old and new layouts.

A place is "section/leaf" in the snake case of the XML; a text label becomes the same by lower case and underscores.
`section` may stand anywhere above the leaf. Knows layouts up to driver 595; not what a value means for health.

>>> read([(("ecc_errors", "volatile"), "sram_uncorrectable", "1")]).values
{'volatile_sram_uncorrectable': 1.0}
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from skillserver.health.reading import UNREADABLE, GpuReading, Value

Kind = Literal["number", "flag", "text"]
Line = tuple[tuple[str, ...], str, str]  # sections above, leaf, value as printed
REASONS = ("clocks_event_reasons", "clocks_throttle_reasons")

FIELDS: dict[str, tuple[Kind, str]] = {
    "name": ("text", "product_name"),
    "index": ("number", "index"),
    "uuid": ("text", "uuid gpu_uuid"),
    "persistence": ("flag", "persistence_mode"),
    "mig": ("flag", "mig_mode/current mig_mode/current_mig"),
    "virtualization": ("text", "virtualization_mode"),
    "licence": ("text", "license_status"),
    "pstate": ("text", "performance_state"),
    "utilisation_percent": ("number", "utilization/gpu utilization/gpu_util"),
    "ecc": ("flag", "ecc_mode/current ecc_mode/current_ecc"),
    "volatile_uncorrectable": ("number", "volatile/double_bit/total"),
    "volatile_correctable": ("number", "volatile/single_bit/total volatile/sram_correctable volatile/dram_correctable"),
    "volatile_sram_uncorrectable": ("number", "volatile/sram_uncorrectable volatile/sram_uncorrectable_parity volatile/sram_uncorrectable_secded "
                                              "volatile/sram_uncorrectable_sec_ded"),
    "volatile_dram_uncorrectable": ("number", "volatile/dram_uncorrectable volatile/double_bit/device_memory"),
    "aggregate_uncorrectable": ("number", "aggregate/double_bit/total"),
    "aggregate_correctable": ("number", "aggregate/single_bit/total aggregate/sram_correctable aggregate/dram_correctable"),
    "aggregate_sram_uncorrectable": ("number", "aggregate/sram_uncorrectable aggregate/sram_uncorrectable_parity aggregate/sram_uncorrectable_secded "
                                               "aggregate/sram_uncorrectable_sec_ded"),
    "aggregate_dram_uncorrectable": ("number", "aggregate/dram_uncorrectable"),
    "sram_threshold_exceeded": ("flag", "sram_threshold_exceeded"),
    "unplaced_sram_uncorrectable": ("number", "sram_uncorrectable sram_uncorrectable_parity sram_uncorrectable_secded sram_uncorrectable_sec_ded"),
    "unplaced_dram_uncorrectable": ("number", "dram_uncorrectable"),
    "retired_single_bit": ("number", "retired_pages/single_bit_ecc multiple_single_bit_retirement/retired_count"),
    "retired_double_bit": ("number", "retired_pages/double_bit_ecc double_bit_retirement/retired_count"),
    "retired_pending": ("flag", "pending_page_blacklist pending_blacklist pending_retirement retired_pages/pending"),
    "remap_correctable": ("number", "remapped_rows/correctable_error remapped_row_corr"),
    "remap_uncorrectable": ("number", "remapped_rows/uncorrectable_error remapped_row_unc"),
    "remap_pending": ("flag", "remapped_rows/pending remapped_row_pending"),
    "remap_failure": ("flag", "remapping_failure_occurred remapped_row_failure"),
    "remap_banks_full": ("number", "bank_remap_availability_histogram/none row_remapper_histogram_none"),
    "reset_required": ("flag", "reset_required"),
    "drain_and_reset": ("flag", "drain_and_reset_recommended"),
    "recovery_action": ("text", "gpu_recovery_action"),
    "reason_idle": ("flag", "reasons/idle reasons/gpu_idle"),
    "reason_sw_power_cap": ("flag", "reasons/sw_power_cap"),
    "reason_hw_slowdown": ("flag", "reasons/hw_slowdown hw_slowdown"),
    "reason_hw_thermal": ("flag", "reasons/hw_thermal_slowdown hw_thermal_slowdown"),
    "reason_power_brake": ("flag", "reasons/hw_power_brake_slowdown hw_power_brake_slowdown"),
    "reason_sw_thermal": ("flag", "reasons/sw_thermal_slowdown sw_thermal_slowdown"),
    "temperature_c": ("number", "gpu_current_temp temperature/gpu_temp"),
    "temperature_margin_c": ("number", "gpu_t_limit_temp gpu_temp_tlimit"),
    "slowdown_c": ("number", "gpu_slowdown_temp gpu_temp_slow_threshold"),
    "shutdown_c": ("number", "gpu_shutdown_temp gpu_temp_max_threshold"),
    "memory_c": ("number", "memory_current_temp memory_temp"),
    "memory_max_c": ("number", "memory_max_operating_temp gpu_temp_max_mem_threshold"),
    "power_w": ("number", "gpu_power_readings/power_draw power_readings/power_draw gpu_power_readings/instant_power_draw "
                          "gpu_power_readings/average_power_draw gpu_power_readings/instantaneous_power_draw"),
    "power_limit_w": ("number", "gpu_power_readings/current_power_limit power_readings/power_limit power_readings/current_power_limit"),
    "sm_clock_mhz": ("number", "clocks/sm clocks/sm_clock"),
    "pcie_gen": ("number", "pcie_generation/current current_link_gen"),
    "pcie_gen_max": ("number", "pcie_generation/max max_link_gen"),
    "pcie_width": ("number", "link_width/current current_link_width"),
    "pcie_width_max": ("number", "link_width/max max_link_width"),
    "pcie_replays": ("number", "replay_counter replays_since_reset"),
    "memory_total_mib": ("number", "fb_memory_usage/total"),
    "memory_used_mib": ("number", "fb_memory_usage/used"),
    "fabric_state": ("text", "fabric/state"),
    "fabric_status": ("text", "fabric/status"),
    "fabric_health": ("text", "health/summary"),
    "fabric_route_unhealthy": ("flag", "health/route_unhealthy"),
    "fabric_misconfigured": ("text", "health/incorrect_configuration"),
    "channel_repair_pending": ("flag", "channel_repair_pending"),
    "tpc_repair_pending": ("flag", "tpc_repair_pending"),
    "unrepairable_memory": ("flag", "unrepairable_memory"),
    "fabric_bandwidth": ("text", "health/bandwidth"),
}  # fmt: skip
SUMMED = ("correctable", "uncorrectable")  # counters kept apart by newer drivers (parity, SEC-DED; SRAM, DRAM) add up
NOT_HEALTH = frozenset(["name", "index", "uuid", "memory_total_mib", "memory_used_mib", "virtualization", "sm_clock_mhz", "power_limit_w"])
ABSENT = re.compile(r"^\[?(n/?a|not supported|none found|unknown|-|requested functionality has been deprecated|function not found|)\]?$", re.I)
TRUE, FALSE = frozenset(["yes", "active", "enabled", "on", "true"]), frozenset(["no", "not active", "disabled", "off", "false"])
MIG = re.compile(r"mig_devices?$")


def _places() -> dict[str, list[tuple[tuple[str, ...], str]]]:
    by_leaf: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for name, (_kind, places) in FIELDS.items():
        for place in places.split():
            *sections, leaf = place.split("/")
            by_leaf.setdefault(leaf, []).append((tuple(sections), name))
    for found in by_leaf.values():
        found.sort(key=lambda entry: -len(entry[0]))  # the most exact place wins: "volatile/x" before plain "x"
    return by_leaf


BY_LEAF = _places()


def snake(label: str) -> str:
    """`SRAM Uncorrectable SEC-DED` -> `sram_uncorrectable_sec_ded`."""
    return re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")


def field_of(sections: tuple[str, ...], leaf: str) -> str | None:
    """The field that this place holds, or None."""
    above = {section.removesuffix("_count") for section in sections}
    if above & set(REASONS):
        above, leaf = {"reasons"}, re.sub(r"^clocks_(throttle|event)_reasons?_", "", leaf)
    for needed, name in BY_LEAF.get(leaf, ()):
        if above.issuperset(needed):
            return name
    return None


def value_of(kind: Kind, printed: str) -> Value | None:
    """What was printed, typed; None when the source has no value (N/A, an error word)."""
    shown = printed.strip()
    if ABSENT.match(shown) or UNREADABLE.search(shown):
        return None
    if kind == "flag":
        return True if shown.lower() in TRUE else False if shown.lower() in FALSE else None
    if kind == "text":
        return shown
    found = re.match(r"-?\d+(?:\.\d+)?", shown)
    return float(found[0]) if found else None


def read(lines: Iterable[Line], source: str = "", pci: str | None = None) -> GpuReading:
    """One GPU from the lines of its block. The same place twice keeps the larger value; sibling counters add up."""
    gpu = GpuReading(source, pci)
    counters: dict[str, dict[str, float]] = {}
    for sections, leaf, printed in lines:
        name = None if any(MIG.search(section) for section in sections) else field_of(sections, leaf)
        if name is None:
            _note_words(gpu, leaf, printed)
            continue
        value = value_of(FIELDS[name][0], printed)
        if value is None:
            _note_words(gpu, name, printed)
        elif isinstance(value, float) and name.endswith(SUMMED):
            places = counters.setdefault(name, {})
            places[leaf] = max(value, places.get(leaf, 0.0))
        elif value is True or name not in gpu.values:  # a flag printed twice is set when either is; else the first stands
            gpu.values[name] = value
    gpu.values.update({name: sum(places.values()) for name, places in counters.items()})
    if (index := gpu.number("index")) is not None:
        gpu.index = int(index)
    return gpu


def _note_words(gpu: GpuReading, name: str, printed: str) -> None:
    """An error word in the place of a value is a fact of its own."""
    shown = printed.strip().strip("[]")
    if not UNREADABLE.search(shown) or len(shown) > 60:
        return
    if re.search(r"\bis lost\b", shown, re.I):
        gpu.values["lost"] = True
    elif re.search(r"requires? reset", shown, re.I):
        gpu.values["reset_required"] = True
    elif re.search(r"^(unknown error|err!)$", shown, re.I):
        gpu.unreadable[name] = shown


def judgeable(gpu: GpuReading) -> bool:
    """Whether anything was read that says something about health."""
    return bool(set(gpu.values) - NOT_HEALTH) or bool(gpu.unreadable)

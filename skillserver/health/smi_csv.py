"""`nvidia-smi --query-gpu=... --format=csv` with its header line -> GPU readings. Without the header a row means nothing.

>>> parse("paste", "index, ecc.errors.uncorrected.volatile.total\\n0, 2").gpus[0].values["volatile_uncorrectable"]
2.0
"""

from __future__ import annotations

import re

from skillserver.health import fields
from skillserver.health.reading import UNREADABLE, Facts, GpuReading, normal_pci

KIND = "nvidia-smi --query-gpu CSV with its header"
COLUMNS = {
    "name": "name", "gpu_name": "name", "uuid": "uuid", "gpu_uuid": "uuid", "index": "index", "pstate": "pstate",
    "persistence_mode": "persistence", "temperature.gpu": "temperature_c", "temperature.memory": "memory_c",
    "utilization.gpu": "utilisation_percent", "power.draw": "power_w", "power.limit": "power_limit_w", "memory.total": "memory_total_mib",
    "memory.used": "memory_used_mib", "pcie.link.gen.current": "pcie_gen", "pcie.link.gen.max": "pcie_gen_max",
    "pcie.link.width.current": "pcie_width", "pcie.link.width.max": "pcie_width_max", "clocks.sm": "sm_clock_mhz",
    "clocks.current.sm": "sm_clock_mhz",
    "ecc.errors.uncorrected.volatile.total": "volatile_uncorrectable", "ecc.errors.uncorrected.volatile.device_memory": "volatile_dram_uncorrectable",
    "ecc.errors.uncorrected.volatile.dram": "volatile_dram_uncorrectable", "ecc.errors.uncorrected.volatile.sram": "volatile_sram_uncorrectable",
    "ecc.errors.uncorrected.aggregate.total": "aggregate_uncorrectable", "ecc.errors.uncorrected.aggregate.sram": "aggregate_sram_uncorrectable",
    "ecc.errors.uncorrected.aggregate.dram": "aggregate_dram_uncorrectable", "ecc.errors.corrected.volatile.total": "volatile_correctable",
    "ecc.errors.corrected.aggregate.total": "aggregate_correctable", "retired_pages.single_bit_ecc.count": "retired_single_bit",
    "retired_pages.double_bit.count": "retired_double_bit", "retired_pages.pending": "retired_pending",
    "remapped_rows.correctable": "remap_correctable", "remapped_rows.uncorrectable": "remap_uncorrectable", "remapped_rows.pending": "remap_pending",
    "remapped_rows.failure": "remap_failure", "remapped_rows.histogram.none": "remap_banks_full", "fabric.state": "fabric_state",
    "fabric.status": "fabric_status", "gpu_recovery_action": "recovery_action", "reset_status.reset_required": "reset_required",
    "reset_status.drain_and_reset_recommended": "drain_and_reset", "mig.mode.current": "mig", "ecc.mode.current": "ecc",
    "temperature.gpu.tlimit": "temperature_margin_c", "pcie.link.gen.gpucurrent": "pcie_gen",
    **{f"clocks_{word}_reasons.{column}": name for word in ("throttle", "event") for column, name in {
        "gpu_idle": "reason_idle", "sw_power_cap": "reason_sw_power_cap", "hw_slowdown": "reason_hw_slowdown",
        "hw_thermal_slowdown": "reason_hw_thermal", "hw_power_brake_slowdown": "reason_power_brake",
        "sw_thermal_slowdown": "reason_sw_thermal"}.items()},
}  # fmt: skip
HEADER = re.compile(r"\s*[a-z][a-z0-9_.]*(?: ?\[[^\]]{1,9}\])?\s*,", re.I)
PCI = ("pci.bus_id", "gpu_bus_id")
MASKS = ("clocks_throttle_reasons.active", "clocks_event_reasons.active")
BITS = {
    0x1: "reason_idle",
    0x4: "reason_sw_power_cap",
    0x8: "reason_hw_slowdown",
    0x20: "reason_sw_thermal",
    0x40: "reason_hw_thermal",
    0x80: "reason_power_brake",
}  # nvml.h
YES = {"0": "no", "1": "yes"}


def parse(source: str, text: str) -> Facts | None:
    """Facts of every row below a header of known columns."""
    lines = text.splitlines()
    for place, line in enumerate(lines):
        if not HEADER.match(line):
            continue
        columns = [re.sub(r"\s*\[.*$", "", cell.strip()).lower() for cell in line.split(",")]
        known = [column for column in columns if column in COLUMNS or column in PCI or column in MASKS]
        if len(columns) > 1 and len(known) >= max(2, len(columns) // 2):
            gpus = [gpu for row in lines[place + 1 :] if (gpu := _row(source, columns, row))]
            return Facts(gpus=gpus, judged=any(fields.judgeable(gpu) for gpu in gpus)) if gpus else None
    return None


def _row(source: str, columns: list[str], row: str) -> GpuReading | None:
    cells = [cell.strip() for cell in row.split(",")]
    if len(cells) < 2 or len(cells) > len(columns):
        return None
    gpu = GpuReading(source)
    for column, cell in zip(columns, cells, strict=False):
        if column in PCI:
            gpu.pci = normal_pci(cell)
        elif column in MASKS and re.fullmatch(r"0x[0-9a-fA-F]{1,16}", cell):
            gpu.values |= {name: bool(int(cell, 16) & bit) for bit, name in BITS.items()}
        elif column in COLUMNS:
            _cell(gpu, COLUMNS[column], cell)
        elif UNREADABLE.search(cell) and cell.startswith("["):
            gpu.unreadable[column] = cell.strip("[]")
    index = gpu.number("index")
    gpu.index = int(index) if index is not None else None
    return gpu


def _cell(gpu: GpuReading, name: str, cell: str) -> None:
    kind = fields.FIELDS[name][0]
    value = fields.value_of(kind, YES.get(cell, cell) if kind == "flag" else cell)
    if value is not None:
        gpu.values[name] = value
    elif UNREADABLE.search(cell):
        if "lost" in cell.lower():
            gpu.values["lost"] = True
        elif "reset" in cell.lower():
            gpu.values["reset_required"] = True
        else:
            gpu.unreadable[name] = cell.strip("[]")

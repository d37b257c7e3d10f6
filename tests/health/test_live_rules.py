"""One scenario of the stand-in driver for each rule of a live look, and what lies beside the driver."""

from pathlib import Path

import pytest

from skillserver.health import live, report
from skillserver.health.report import GpuHealth

BUS = [f"0000:{bus}:00.0" for bus in ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db")]
XID79 = "[   12.5] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"


def look(bus: Path, root: Path) -> GpuHealth:
    return report.judge(*live.look(30.0, bus, root))


def told(result: GpuHealth) -> set[tuple[str, str, str]]:
    return {(one.code, one.severity, one.action.split(":")[0]) for one in result.findings if one.severity != "info"}


RULES = [
    (["gpu2.ecc.vol.unc=3"], {("ecc_uncorrectable", "critical", "reset")}),
    (
        ["gpu2.sram.agg.unc.parity=9", "gpu2.sram.agg.unc.secded=0", "gpu2.sram.vol.unc.parity=0"],
        {("ecc_sram_lifetime_limit", "critical", "drain_rma")},
    ),
    (["gpu2.remap.failure=1"], {("row_remap_failure", "critical", "drain_rma")}),
    (["gpu2.remap.pending=1"], {("row_remap_pending", "warning", "reset")}),
    (["gpu2.reasons=0x4", "gpu2.util=99"], set()),
    (["gpu2.reasons=0x20", "gpu2.util=99"], {("sw_thermal_slowdown", "warning", "observe")}),
    (["gpu2.reasons=0x21", "gpu2.util=0"], set()),
    (["gpu2.reasons=0x48", "gpu2.util=99"], {("hw_thermal_slowdown", "warning", "observe")}),
    (["gpu2.reasons=0x89", "gpu2.util=0"], {("hw_power_brake", "warning", "observe")}),
    (["gpu2.pcie.width=4", "gpu2.util=99"], {("pcie_width_below_max", "warning", "observe"), ("pcie_width_below_peers", "warning", "observe")}),
    (["gpu*.pcie.gen=1", "gpu*.pstate=8"], set()),
    (["gpu*.fabric.state=2"], {("fabric_in_progress", "critical", "fix_setup")}),
    (["gpu2.field230=1"], {("recovery_action", "critical", "reset")}),
    (["gpu2.field230=2"], {("recovery_action", "critical", "reboot")}),
    (["gpu2.field230=4"], {("recovery_action", "critical", "reset")}),
    (["gpu2.field230=99"], set()),
    (["gpu*.mig.current=1"], set()),
    (["gpu*.name=NVIDIA GB200", "gpu*.nvlinks=18"], set()),
    (["gpu2.temp.margin=0", "gpu2.temp=87"], {("temperature_limit", "warning", "observe")}),
    (["gpu2.nvlink.down_mask=0x2"], {("nvlink_down", "critical", "reset")}),
]


@pytest.mark.parametrize(("lines", "expected"), RULES, ids=["; ".join(lines) for lines, _expected in RULES])
def test_each_rule_fires_on_its_scenario_and_on_no_other(
    lines: list[str], expected: set[tuple[str, str, str]], scenario, bus, tmp_path: Path
) -> None:
    scenario(*lines)
    result = look(bus(*BUS), tmp_path)
    mine = told(result)
    if ("temperature_limit", "warning", "observe") in expected:
        mine -= {("temperature_outlier", "warning", "observe")}
    assert mine == expected
    assert result.verdict == (
        "ok" if not expected else "critical" if any(severity == "critical" for _code, severity, _action in expected) else "warning"
    )


def test_the_kernel_log_is_read_where_it_can_be_and_joined_with_the_gpu(scenario, bus, commands, tmp_path: Path) -> None:
    scenario()
    commands("dmesg", XID79.replace("12.5", "99999999.5"))
    result = look(bus(*BUS), tmp_path)
    assert [(one.code, one.subject) for one in result.findings] == [("xid_79", "GPU 1 0000:3b:00.0")]
    assert result.skipped == []


def test_a_kernel_log_without_faults_is_no_proof_of_health(bus, commands, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    commands("dmesg", "[99999999.5] usb 1-1: new device\n")
    assert look(bus(), tmp_path).verdict == "unknown"


def test_a_stopped_fabric_manager_counts_only_where_there_are_switches(scenario, bus, commands, tmp_path: Path) -> None:
    scenario()
    commands("systemctl", "LoadState=loaded\nActiveState=failed\n")
    root = bus(*BUS)
    assert told(look(root, tmp_path)) == set()
    (root / "0000:01:00.0").mkdir()
    (root / "0000:01:00.0/vendor").write_text("0x10de\n")
    (root / "0000:01:00.0/class").write_text("0x068000\n")
    assert told(look(root, tmp_path)) == {("fabric_manager_stopped", "warning", "fix_setup")}
    scenario("gpu*.fabric.state=2")
    assert ("fabric_manager_stopped", "critical", "fix_setup") in told(look(root, tmp_path))


def test_ports_are_read_from_sysfs_and_an_unused_ethernet_port_is_no_fault(scenario, bus, tmp_path: Path) -> None:
    scenario()
    for name, state, physical, layer in (("mlx5_0", "4: ACTIVE", "5: LinkUp", "InfiniBand"), ("mlx5_1", "1: DOWN", "2: Polling", "InfiniBand"),
                                         ("mlx5_2", "1: DOWN", "3: Disabled", "Ethernet")):  # fmt: skip
        port = tmp_path / "sys/class/infiniband" / name / "ports/1"
        port.mkdir(parents=True)
        for fact, value in (("state", state), ("phys_state", physical), ("link_layer", layer), ("rate", "400 Gb/sec (4X NDR)")):
            (port / fact).write_text(value + "\n")
    result = look(bus(*BUS), tmp_path)
    assert [(one.code, one.subject) for one in result.findings] == [("ib_port_down_polling", "mlx5_1 port 1")]


def test_amd_gpus_are_asked_through_their_own_tool(bus, commands, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    root = bus()
    (root / "0000:c1:00.0").mkdir()
    (root / "0000:c1:00.0/vendor").write_text("0x1002\n")
    (root / "0000:c1:00.0/class").write_text("0x120000\n")
    assert look(root, tmp_path).verdict == "unknown"
    commands("amd-smi", '[{"gpu": 0, "temperature": {"hotspot": {"value": 45, "unit": "C"}}, "ecc": {"total_uncorrectable_count": 2}}]')
    assert told(look(root, tmp_path)) == {("amd_uncorrectable", "critical", "reset")}

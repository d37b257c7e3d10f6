"""Pastes of several machines are judged apart, and two captures of one machine become rates."""

import pytest

from skillserver.health import captures, nodes, report
from skillserver.health.report import GpuHealth

XID = "NVRM: Xid (PCI:0000:3b:00): {0}, pid=1, name=python"
QUERY = """Timestamp : {time}
Attached GPUs : 1
GPU 00000000:3B:00.0
    Product Name : NVIDIA H100 80GB HBM3
    GPU UUID : GPU-1
    Performance State : P0
    PCI
        GPU Link Info
            PCIe Generation
                Max : 5
                Current : 5
            Link Width
                Max : 16x
                Current : 16x
        Replays Since Reset : {replays}
    ECC Errors
        Volatile
            SRAM Uncorrectable : 0
            DRAM Correctable : {corrected}
            DRAM Uncorrectable : {uncorrected}
    Remapped Rows
        Uncorrectable Error : 0
        Pending : {pending}
        Remapping Failure Occurred : No
"""
TEN, ELEVEN = "Tue Jan  2 10:00:00 2024", "Tue Jan  2 11:00:00 2024"


def judged(*texts: str) -> GpuHealth:
    return report.judge(captures.read([(f"paste {number}", text) for number, text in enumerate(texts)]))


def told(result: GpuHealth) -> list[tuple[str, str, str]]:
    return [(one.code, one.severity, one.subject) for one in result.findings]


def query(time: str, replays: int = 0, corrected: int = 0, uncorrected: int = 0, pending: str = "No") -> str:
    return QUERY.format(time=time, replays=replays, corrected=corrected, uncorrected=uncorrected, pending=pending)


@pytest.mark.parametrize(
    "text",
    [
        f"node1: {XID.format(79)}\nnode2: {XID.format(31)}\nnode1: {XID.format(45)}",
        f"----------------\nnode1\n----------------\n{XID.format(79)}\n{XID.format(45)}\n----------------\nnode2\n----------------\n{XID.format(31)}\n",
        f"node1 | CHANGED | rc=0 >>\n{XID.format(79)}\n{XID.format(45)}\nnode2 | CHANGED | rc=0 >>\n{XID.format(31)}\n",
        f"Jan  1 00:00:01 node1 kernel: {XID.format(79)}\nJan  1 00:00:01 node2 kernel: {XID.format(31)}\n"
        f"Jan  1 00:00:01 node1 kernel: {XID.format(45)}",
        f"[pod/node1] {XID.format(79)}\n[pod/node2] {XID.format(31)}\n[pod/node1] {XID.format(45)}",
        f"==> node1 <==\n{XID.format(79)}\n{XID.format(45)}\n\n==> node2 <==\n{XID.format(31)}\n",
        f"[node1] {XID.format(79)}\n[node2] {XID.format(31)}\n[node1] {XID.format(45)}",
    ],
    ids=["pdsh", "dshbak", "ansible", "syslog", "kubectl", "tail", "brackets"],
)
def test_the_same_pci_id_on_two_machines_is_two_gpus(text: str) -> None:
    assert told(judged(text)) == [("xid_79", "critical", "node1: GPU 0000:3b:00.0"), ("xid_31", "warning", "node2: GPU 0000:3b:00.0")]


def test_task_numbers_of_srun_are_told_though_they_look_like_indices() -> None:
    result = judged(f"0: {XID.format(79)}\n1: {XID.format(31)}\n0: {XID.format(45)}")
    assert [one[2] for one in told(result)] == ["0: GPU 0000:3b:00.0", "1: GPU 0000:3b:00.0"]


@pytest.mark.parametrize(
    "text",
    [
        "[12.5] NVRM: a\n[12.6] NVRM: b",
        "State: Active\nPhysical state: LinkUp\nRate: 400",
        "kernel: a\nkernel: b",
        "a : 1\nb : 2",
        "one line: x",
        "",
        "\n",
    ],
)
def test_what_is_no_machine_is_left_alone(text: str) -> None:
    assert nodes.split(text) == [("", text)]


def test_the_prefix_of_one_machine_is_only_taken_off() -> None:
    assert nodes.split("n1: GPU 0: x\nn1:     Link 0: 25 GB/s") == [("n1", "GPU 0: x\n    Link 0: 25 GB/s")]


def test_a_list_of_nodes_names_the_node_of_each_fault() -> None:
    result = judged(
        "n-1 | Healthy\nn-2 | ERROR: nhc: Health check failed: check_gpu_count: Expected 8 GPUs, found 7\n"
        "n-3 | ERROR: nhc: Health check failed: Bandwidth is low on device 1. Reported bandwidth is 7 GB/s."
    )
    assert sorted(told(result)) == [("nhc_check_fail", "critical", "n-3 GPU 1"), ("nhc_check_gpu_count_fail", "critical", "n-2")]


def test_two_captures_with_times_become_rates_per_lane_and_hour() -> None:
    result = judged(query(TEN, replays=10, corrected=5), query(ELEVEN, replays=5000, corrected=50_000))
    assert {(one.code, one.severity) for one in result.findings if one.severity != "info"} == {
        ("pcie_replay_rate", "warning"),
        ("ecc_corrected_rate", "warning"),
    }
    assert "4990 an hour (limit 1843.2)" in str(result.findings)


def test_slow_growth_is_not_told_and_a_counter_that_fell_was_reset() -> None:
    assert told(judged(query(TEN, replays=10), query(ELEVEN, replays=12))) == []
    assert told(judged(query(TEN, replays=5000), query(ELEVEN, replays=0))) == []


def test_the_newest_capture_says_what_is_and_a_mended_fault_is_not_blamed() -> None:
    assert told(judged(query(TEN, pending="Yes") + query(ELEVEN))) == []
    assert [one[0] for one in told(judged(query(TEN), query(ELEVEN, pending="Yes")))] == ["row_remap_pending"]


def test_new_uncorrectable_errors_count_even_without_times() -> None:
    result = judged(query("?"), query("?", uncorrected=1))
    assert result.verdict == "critical"
    assert "ecc_uncorrected_growing" in str(result.findings)


def test_every_finding_names_a_command_and_a_section() -> None:
    for number in (13, 31, 48, 63, 64, 74, 79, 94, 95, 119, 145, 149, 154, 999):
        for one in judged(XID.format(number)).findings:
            assert one.confirm and one.sections
    assert "0000:3b:00.0" in judged(query(TEN, pending="Yes")).findings[0].confirm

"""Xid lines: every printed form is read, causes stand before consequences, programs' faults never drain."""

import pytest

from skillserver.health import captures, kernel_log, report, xid

GPU = "PCI:0000:0f:00"


def told(text: str) -> list[tuple[str, str, str, int]]:
    result = report.judge(captures.read([("log", text)]))
    return [(finding.code, finding.severity, finding.action.split(":")[0], finding.count) for finding in result.findings]


@pytest.mark.parametrize(
    ("line", "pci", "number", "clock"),
    [
        ("[ 3606.832215] NVRM: Xid (PCI:0002:00:00): 119, pid=7, name=x, Timeout", "0002:00:00.0", 119, "kernel"),
        ("[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 119, pid=2", "0000:9b:00.0", 119, "local"),
        ("May 19 07:08:57 node-a kernel: NVRM: Xid (PCI:0000:10:1c): 63, pid=1850", "0000:10:1c.0", 63, "yearless"),
        ("2026-10-04T14:16:55.25+03:00 node-a kernel: NVRM: Xid (PCI:0000:01:00): 69, pid=5", "0000:01:00.0", 69, "wall"),
        ("4,1227,437812449932,c;NVRM: Xid (PCI:0000:01:00): 43, pid=1", "0000:01:00.0", 43, "kernel"),
        ("Feb 01 14:25:31 node-a kernel: NVRM: Xid (PCI:0000:01:00): 38, pid=1659,", "0000:01:00.0", 38, "yearless"),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE", "0000:01:00.0", 94, None),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "0000:03:00.0", 14, None),
        ("[T42] NVRM: Xid (PCI:00008ED0:00:00): 31, Ch 1", "8ed0:00:00.0", 31, None),
        ("NVRM: Xid (PCI:0000:01:00): 51, BAD_TSG", "0000:01:00.0", 51, None),
    ],
)
def test_every_form_of_the_line_is_read(line: str, pci: str, number: int, clock: str | None) -> None:
    facts = kernel_log.parse("log", line)
    assert facts is not None
    assert [(event.pci, event.number, event.clock) for event in facts.events] == [(pci, number, clock)]


@pytest.mark.parametrize("number", [13, 31, 43, 45])
def test_faults_of_programs_are_a_warning_at_most_and_never_drain(number: int) -> None:
    row = xid.known(number)
    assert row.severity in ("warning", "info")
    assert row.action.split(":")[0] in ("restart_app", "none")
    assert told("\n".join(f"[{second}.0] NVRM: Xid ({GPU}): {number}, pid=1" for second in range(40)))[0][3] == 40


def test_an_unknown_number_is_a_warning() -> None:
    assert told(f"NVRM: Xid ({GPU}): 999, something") == [("xid_999", "warning", "observe", 1)]


@pytest.mark.parametrize(
    ("numbers", "code", "severity", "action"),
    [
        ((64, 94, 45), "xid_64", "critical", "drain_rma"),
        ((48, 63, 45), "xid_48", "critical", "reset"),
        ((63, 48), "xid_48", "critical", "reset"),
        ((79, 119, 154), "xid_79", "critical", "reboot"),
        ((95, 45, 43), "xid_95", "critical", "reset"),
        ((13, 13, 43, 45), "xid_13", "warning", "restart_app"),
        ((63, 94), "xid_63", "warning", "reset"),
    ],
)
def test_consequences_fold_under_their_cause(numbers: tuple[int, ...], code: str, severity: str, action: str) -> None:
    text = "\n".join(f"[{second}.0] NVRM: Xid ({GPU}): {number}, pid=1" for second, number in enumerate(numbers))
    assert [finding[:3] for finding in told(text)] == [(code, severity, action)]


def test_a_line_that_names_its_cause_counts_as_that_cause() -> None:
    assert told(f"NVRM: Xid ({GPU}): 45, pid=1, name=x, Ch 00000008, caused by previous Xid 48")[0][:3] == ("xid_48", "critical", "reset")


@pytest.mark.parametrize(
    ("words", "severity", "action"),
    [("GPU Reset Required", "critical", "reset"), ("Node Reboot Required", "critical", "reboot"), ("Drain and Reset", "critical", "reset"),
     ("PF FLR", "critical", "reset"), ("OS Reboot", "critical", "reboot"), ("None", "info", "none")],
)  # fmt: skip
def test_the_recovery_action_is_read_from_its_words(words: str, severity: str, action: str) -> None:
    line = f"NVRM: Xid ({GPU}): 154, pid='<unknown>', name=<unknown>, GPU recovery action changed from 0x0 (None) to 0x1 ({words})"
    assert told(line) == [("xid_154", severity, action, 1)]


def test_the_same_fault_of_several_gpus_at_one_moment_is_one_incident_and_later_ones_are_not() -> None:
    line = "[{0}] NVRM: Xid (PCI:0000:{1}:00): 79, GPU has fallen off the bus."
    assert told("\n".join(line.format("100.1", bus) for bus in ("0f", "1b", "4c"))) == [("xid_79", "critical", "reboot", 3)]
    assert len(told(line.format("100.1", "0f") + "\n" + line.format("900.1", "1b"))) == 2


def test_nvlink_5_lines_follow_their_own_word() -> None:
    assert told(f"NVRM: Xid ({GPU}): 145, RLW_REMAP Nonfatal XC0 i0 Link 02")[0][1:3] == ("warning", "restart_app")
    assert told(f"NVRM: Xid ({GPU}): 145, RLW_REMAP Fatal XC1 i0 Link 02")[0][1:3] == ("critical", "reset")


def test_switch_errors_are_fatal_only_when_they_say_so_and_data_lines_are_no_events() -> None:
    text = """[1.0] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
[2.0] nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
[2.0] nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 20034, Data {0x50610002, 0x10100030}"""
    assert told(text) == [("sxid_20034", "critical", "reset", 1), ("sxid_12028", "warning", "observe", 1)]


def test_the_table_has_every_number_once_with_a_known_action() -> None:
    numbers = [row.xid for row in xid.tables.load("xids.toml", xid.KnownXid)]
    assert numbers == sorted(set(numbers)) and len(numbers) == 176
    assert {row.severity for row in xid.tables.load("xids.toml", xid.KnownXid) if row.unused and row.xid not in (57, 58)} == {"warning", "info"}


LOAD = "[5.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15"


def test_a_fault_that_comes_back_after_each_load_of_the_driver_is_the_boards() -> None:
    line = f"[9.0] NVRM: Xid ({GPU}): 119, pid=1, Timeout waiting for RPC from GSP!"
    assert told("\n".join([line, LOAD, line]))[0][2] == "reset"
    assert told("\n".join([line, LOAD, line, LOAD, line]))[0][2] == "drain_rma"


def test_a_fault_before_the_last_load_of_the_driver_says_so() -> None:
    finding = report.judge(captures.read([("log", f"[9.0] NVRM: Xid ({GPU}): 79, fallen\n{LOAD}")])).findings[0]
    assert (finding.severity, "loaded again after that" in finding.evidence[-1]) == ("critical", True)


@pytest.mark.parametrize(
    ("number", "text", "severity", "action"),
    [
        (74, "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)", "critical", "reset"),
        (74, "NVLink: error on link 2(0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", "warning", "observe"),
        (74, "NVLink: error on link 2(0x0, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0)", "warning", "observe"),
        (74, "NVLink: error on link 2(0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", "critical", "reset"),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 02 (0x00000004 0x00000040 0x0 0x0)", "critical", "reset"),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 02 (0x00000004 0x00000004 0x0 0x0)", "warning", "restart_app"),
        (145, "RLW_TAGSTATE Nonfatal XC0 i0 Link 02 (0x00000008 0x00010000 0x0 0x0)", "warning", "observe"),
        (144, "SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x00000002 0x0 0x0)", "critical", "reset"),
        (146, "TLW_CTRL Nonfatal XC0 i0 Link 00 (0x00000009 0x00000001 0x0 0x0)", "warning", "observe"),
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 04 (0x004505c6 0x0 0x0 0x0)", "critical", "reset"),
        (149, "NETIR_LINK_DOWN Fatal XC0 i0 Link 04 (0x02600011 0x0 0x0 0x0)", "warning", "observe"),
        (149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 00 (0x00000013 0x00000001 0x0 0x0)", "warning", "observe"),
        (149, "NETIR_MFDE_EVENT Nonfatal XC0 i0 Link 00 (0x00000014 0x00000003 0x0 0x0)", "warning", "observe"),
        (150, "MSE_WATCHDOG Fatal XC0 i0 Link 00 (0x0 0x0 0x0 0x0)", "critical", "reset"),
        (145, "", "warning", "restart_app"),
    ],
)
def test_registers_of_link_errors_are_decoded(number: int, text: str, severity: str, action: str) -> None:
    assert told(f"NVRM: Xid ({GPU}): {number}, {text}")[0][1:3] == (severity, action)


def test_one_spot_of_the_chip_in_several_programs_is_pointed_out_and_one_burst_is_not() -> None:
    line = "[{0}] NVRM: Xid (" + GPU + "): 13, pid={1}, name=x, Graphics SM Warp Exception on (GPC 2, TPC 4, SM 1): Out Of Range Address"
    result = report.judge(captures.read([("log", "\n".join(line.format(f"{100 * n}.0", n) for n in range(1, 5)))]))
    assert (result.verdict, "GPC 2, TPC 4, SM 1 in 4 programs" in str(result.findings[0].evidence)) == ("warning", True)
    burst = report.judge(captures.read([("log", "\n".join(line.format("100.0", 7) for _ in range(9)))]))
    assert "programs" not in str(burst.findings[0].evidence)


@pytest.mark.parametrize("number", range(8))
def test_a_recovery_action_is_read_from_its_number_where_the_words_are_missing(number: int) -> None:
    actions = ("none", "reset", "reboot", "reset", "reset", "reset", "reset", "reboot")
    assert told(f"NVRM: Xid ({GPU}): 154, GPU recovery action changed from 0x0 to 0x{number}")[0][2] == actions[number]

"""Pasted text: every layout is read, mixed pastes are joined, and what is not known is never judged."""

import pytest

from skillserver.errors import BadRequest, NotHere
from skillserver.health import captures, report
from skillserver.health.report import GpuHealth
from skillserver.permissions import TEXT_ONLY, Permissions, grant
from skillserver.tools.health import check_gpu_health

QUERY = """
Attached GPUs                             : 2
GPU 00000000:0F:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Uncorrectable            : 0
        Aggregate
            SRAM Uncorrectable Parity     : 2
            SRAM Uncorrectable SEC-DED    : 3
            SRAM Threshold Exceeded       : No
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 0
        Pending                           : Yes
        Remapping Failure Occurred        : No
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    ECC Errors
        Volatile
            SRAM Uncorrectable Parity     : N/A
            DRAM Uncorrectable            : N/A
"""
XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><attached_gpus>2</attached_gpus>
<gpu id="00000000:0F:00.0"><product_name>NVIDIA A100-SXM4-80GB</product_name>
<remapped_rows><remapped_row_pending>No</remapped_row_pending><remapped_row_failure>Yes</remapped_row_failure></remapped_rows></gpu>
<gpu id="00000000:1B:00.0"><ecc_errors><volatile><dram_uncorrectable>1</dram_uncorrectable></volatile></ecc_errors></gpu>
</nvidia_smi_log>"""
XID79 = "[ 10.5] NVRM: Xid (PCI:0000:0f:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def judged(*texts: str) -> GpuHealth:
    return report.judge(captures.read([(f"paste {number}", text) for number, text in enumerate(texts)]))


def told(result: GpuHealth) -> list[tuple[str, str, str]]:
    return [(finding.code, finding.severity, finding.action.split(":")[0]) for finding in result.findings]


def test_query_text_adds_up_sibling_counters_and_joins_what_is_one_fault_of_one_gpu() -> None:
    result = judged(QUERY)
    assert told(result) == [("ecc_sram_lifetime_limit", "critical", "drain_rma")]
    assert result.findings[0].subject == "GPU 0 0000:0f:00.0"
    assert result.findings[0].evidence == [
        "GPU 0 0000:0f:00.0: aggregate_sram_uncorrectable = 5 (limit 4)",
        "also row_remap_pending; GPU 0 0000:0f:00.0: remap_pending = yes",
    ]
    assert [(gpu.index, gpu.pci) for gpu in result.gpus] == [(0, "0000:0f:00.0"), (1, "0000:1b:00.0")]


def test_a_paste_that_lost_its_indentation_reads_the_same() -> None:
    flat = "\n".join(line.strip() for line in QUERY.splitlines())
    assert told(judged(flat)) == told(judged(QUERY))


def test_counters_that_read_not_available_are_unknown_and_not_zero() -> None:
    second = judged("GPU 00000000:1B:00.0" + QUERY.split("GPU 00000000:1B:00.0")[1])
    assert (second.verdict, second.gpus[0].read) == ("unknown", "nothing that says something about health")


def test_xml_tells_what_the_text_would() -> None:
    assert told(judged(XML)) == [("row_remap_failure", "critical", "drain_rma"), ("ecc_dram_uncorrectable", "critical", "reset")]


def test_a_cut_document_keeps_the_whole_gpus_and_names_the_other() -> None:
    result = judged(XML[: XML.index("<volatile>")])
    assert told(result) == [("row_remap_failure", "critical", "drain_rma")]
    assert any("GPU 00000000:1B:00.0: its XML does not end" in skipped.why for skipped in result.skipped)


@pytest.mark.parametrize("head", ['<!DOCTYPE nvidia_smi_log [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]>', '<!DOCTYPE x SYSTEM "y" [\n<!ENTITY a "aa">]>'])
def test_xml_with_entities_is_refused(head: str) -> None:
    result = judged(XML.replace('<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">', head))
    assert (result.verdict, result.findings) == ("unknown", [])
    assert "entities" in result.skipped[0].why


def test_fewer_gpus_shown_than_attached_is_a_cut_and_not_a_fault() -> None:
    result = judged("Attached GPUs : 8\nGPU 00000000:0F:00.0\n    Remapped Rows\n        Pending : No\n")
    assert (result.verdict, result.findings) == ("ok", [])
    assert "8 GPUs are attached and 1 shown" in result.skipped[0].why


def test_a_mixed_paste_is_joined_by_pci_id() -> None:
    result = judged(f"$ nvidia-smi -q\n{QUERY}\n$ dmesg\n[ 9.0] NVRM: Xid (PCI:0000:0F:00): 63, pid=1, Row Remapper: New row marked\n{XID79}\n")
    assert told(result) == [("ecc_sram_lifetime_limit", "critical", "drain_rma"), ("xid_79", "critical", "reboot")]
    assert [finding.subject for finding in result.findings] == ["GPU 0 0000:0f:00.0"] * 2
    assert any("xid_63" in line for line in result.findings[0].evidence)


NOTHING_KNOWN = {
    "empty": "",
    "blank": " \n",
    "word": "hello",
    "binary": "PNG\x00\x01\x02" * 300,
    "undecodable": "\ufffd" * 500,
    "pairs": "key : value\n" * 90_000,
    "one line": "A" * 1_000_000,
    "training log": "loss : 2.31 | lr : 1e-4 |\n" * 30_000,
    "cut json": '{"cards": [1, 2',
    "deep json": '{"card0": ' + "[" * 200_000,
    "deep diagnostic": '"DCGM Diagnostic" ' + "{" * 200_000 + "}",
    "wide boxes": ("| 0 " + " " * 19_000 + "\n") * 50,
    "wide pairs": ("a " * 9_000 + " : x\n") * 50,
    "boxes": "| a | b |\n" * 50_000,
    "kernel": "[  1.0] usb 1-1: new device\n" * 30_000,
    "prose": "NVIDIA-SMI has been mentioned here",
}


@pytest.mark.parametrize("kind", NOTHING_KNOWN)
def test_what_nobody_knows_is_unknown_and_says_what_was_expected(kind: str) -> None:
    result = judged(NOTHING_KNOWN[kind])
    assert (result.verdict, result.findings, result.gpus) == ("unknown", [], [])
    assert "expected" in result.skipped[0].why


def test_only_the_head_of_a_query_is_unknown() -> None:
    assert judged("Driver Version : 550.1\nAttached GPUs : 8\n").verdict == "unknown"


@pytest.mark.parametrize(
    ("text", "code", "severity", "action"),
    [
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.54",
            "driver_library_mismatch",
            "critical",
            "fix_setup",
        ),
        (
            "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU",
            "gpu_lost",
            "critical",
            "reboot",
        ),
        ("Unable to determine the device handle for GPU2: 0000:3B:00.0: Unknown Error", "gpu_lost", "critical", "reboot"),
        ("No devices were found", "no_devices", "critical", "reboot"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "driver_not_loaded", "critical", "fix_setup"),
        ("[1.0] NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", "gpu_fallen_off_bus", "critical", "reboot"),
        ("[1.0] NVRM: GPU0 RmInitAdapter: Cannot initialize GSP firmware RM", "gpu_init_failed", "critical", "reboot"),
        ("[1.0] NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x26:0x56:1474)", "gpu_init_failed", "critical", "reboot"),
    ],
)
def test_plain_sentences_are_understood(text: str, code: str, severity: str, action: str) -> None:
    assert told(judged(text)) == [(code, severity, action)]


def test_a_kernel_log_whose_driver_only_says_hello_is_ok_and_one_with_unknown_trouble_is_not() -> None:
    assert judged("[ 5.0] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01").verdict == "ok"
    strange = judged("[ 5.0] NVRM: somethingNew_TU102: failed with 0x65")
    assert (strange.verdict, "somethingNew" in strange.skipped[0].why) == ("unknown", True)


def test_files_are_read_where_allowed_and_an_empty_list_is_not_a_live_look(tmp_path) -> None:
    path = tmp_path / "dmesg.txt"
    path.write_bytes("NVRM: Xid (PCI:0000:0f:00): 79, fallen".encode("utf-16"))
    assert check_gpu_health(paths=[str(path)]).findings[0].code == "xid_79"
    with pytest.raises(BadRequest, match="empty"):
        check_gpu_health(captures=[])
    try:
        grant(TEXT_ONLY)
        with pytest.raises(NotHere):
            check_gpu_health(paths=[str(path)])
        with pytest.raises(NotHere):
            check_gpu_health()
        assert check_gpu_health(captures=[{"name": "x", "text": XID79}]).verdict == "critical"
    finally:
        grant(Permissions())


def test_what_fills_the_answer_is_bounded() -> None:
    block = "GPU 00000000:{0:02X}:00.0\n    Performance State : P0\n    ECC Errors\n        Volatile\n            DRAM Uncorrectable : 1\n"
    result = judged("".join(block.format(number) for number in range(1, 65)))
    assert (len(result.findings), result.findings[0].count, len(result.gpus)) == (1, 64, 16)
    assert len(result.model_dump_json()) < 8000

"""What the given real captures must not be blamed for, one check a phrase of their index; skipped without the captures."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from skillserver.findings import Finding
from skillserver.health import captures, report
from skillserver.health.report import GpuHealth

FOLDER = Path(__file__).parents[3] / "shared/cases/gpu_captures"
CASES = {case["file"]: case for case in json.loads((FOLDER / "index.json").read_text())["samples"]} if FOLDER.is_dir() else {}
Check = Callable[[GpuHealth], bool]


def blamed(result: GpuHealth) -> list[Finding]:
    """Findings that stop somebody."""
    return [one for one in result.findings if one.severity != "info"]


def no(words: str) -> Check:
    """No warning or worse whose code, subject or reason has these words."""
    return lambda result: not any(re.search(words, f"{one.code} {one.subject} {one.reason}", re.I) for one in blamed(result))


def never(*actions: str, codes: str = "") -> Check:
    """None of these actions (for these codes)."""
    return lambda result: not any(one.action.split(":")[0] in actions and re.match(codes, one.code) for one in result.findings)


def below_critical(codes: str = "") -> Check:
    return lambda result: not any(one.severity == "critical" and re.match(codes, one.code) for one in result.findings)


def root(code: str) -> Check:
    """The consequence has no finding of its own."""
    return lambda result: all(one.code != code for one in result.findings)


def at_most(count: int, codes: str = "") -> Check:
    return lambda result: sum(bool(re.match(codes, one.code)) for one in result.findings) <= count


quiet: Check = lambda result: not blamed(result)  # noqa: E731 - one of the checks above, without words
soft = never("drain_rma")
PHRASES: list[tuple[str, Check]] = [
    (r"GPUs? missing|links missing|links 2-16 missing|2 GPUs only|GPU 1 has only two links", no(r"missing|nvlink_down|below_peers")),
    (r"remapped rows unknown|utilisation N/A|remapped rows N/A|N/A fields|missing (ECC|product|driver)|HBM sensors N/A|fan 100", quiet),
    (r"pcie gen below max while idle|PCIe 8 GT/s", no(r"pcie_gen")),
    (r"clocks below max", no(r"clock|throttl|slowdown")),
    (r"persistence N/A", root("persistence_off")),
    (r"P2 instead of P0|Performance level|utilisation at start|100 % utilisation", no(r"pstate|performance|utilisation|hang")),
    (r"ECC disabled", no(r"ecc")),
    (r"python holding|VRAM in use|17 % VRAM", no(r"leak|foreign|memory_held")),
    (r"corrected errors = critical", no(r"corrected|correctable")),
    (r"RMA$|RMA now|RMA / drain|hardware fault / RMA", soft),
    (r"'Active' grep", quiet),
    (
        r"hardware fault or drain for Xid",
        lambda r: never("drain_rma", "reset", "reboot", codes=r"xid_(13|43)")(r) and below_critical(r"xid_(13|43)")(r),
    ),
    (r"^hardware fault$", lambda r: soft(r) and below_critical()(r)),
    (r"CUDA Not Found", no(r"driver|setup")),
    (r"66 C = over|48 C = overheating", no(r"temperature_limit")),
    (r"drain on Xid 45|xid_45 = critical", lambda r: below_critical(r"xid_45")(r) and never("drain_rma", "reset", codes=r"xid_45")(r)),
    (r"drain on a lifetime|^drain$|drain now|critical / drain|drain / fatal|drain / GPU reset", lambda r: soft(r) and below_critical()(r)),
    (r"GPU lost", no(r"gpu_lost")),
    (r"five faults|16 separate", at_most(1, r"xid_")),
    (r"as the cause", lambda r: not any(one.action.startswith("restart_app") for one in r.findings)),
    (r"94 as the root", root("xid_94")),
    (r"119 as the root", root("xid_119")),
    (r"no Xid, so ok", lambda r: r.verdict != "ok"),
    (r"other MIG instances", lambda r: all("MIG instance 05" in one.subject for one in blamed(r))),
    (r"third event", at_most(2)),
    (r"INFO multicast", lambda r: len(blamed(r)) == 1),
    (r"fabric manager down = critical", below_critical()),
    (r"OOM killer", lambda r: below_critical(r"host_oom")(r) and no(r"GPU out of memory")(r)),
    (r"GPU fault", lambda r: soft(r) and below_critical()(r)),
    (r"X \(disabled\)", lambda r: "10" not in str([one.evidence for one in r.findings]) and "11" not in str([one.evidence for one in r.findings])),
    (r"GPUs 1-7", lambda r: not any(re.search(r"GPUs?:? [1-7]", one.subject) for one in r.findings)),
    (r"healthy overall without", lambda r: any("ends before" in one.why for one in r.skipped)),
    (r"mynode-042", no(r"mynode-042")),
    (r"one machine with all", lambda r: all("mynode-" in one.subject for one in r.findings)),
    (r"mlx5_bond_0", no(r"mlx5_bond_0")),
    (r"idle, so ignore", lambda r: r.verdict == "warning"),
]


@pytest.mark.parametrize("file", [file for file, case in CASES.items() if case.get("must_not_flag")])
def test_the_capture_is_not_blamed_for(file: str) -> None:
    case = CASES[file]
    result = report.judge(captures.read([("capture", (FOLDER / file).read_text(encoding="utf-8", errors="replace"))]))
    for phrase in case["must_not_flag"]:
        checks = [check for pattern, check in PHRASES if re.search(pattern, phrase)]
        assert checks, f"no check for {phrase!r}"
        assert all(check(result) for check in checks), (phrase, [(one.code, one.severity, one.subject, one.action) for one in result.findings])

"""Cut, spliced and garbled captures: never a crash, and never health out of nothing."""

import tomllib
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skillserver.health import captures, large_logs, report

KINDS = tomllib.loads((Path(__file__).parent / "kinds.toml").read_text())["capture"]
TEXTS = [row["text"] for row in KINDS]
FAULTY = [row["text"] for row in KINDS if row["verdicts"] == ["critical"]]
UNKNOWN = [
    "hello\n",
    "step : 1 | loss : 2.3\n",
    "[ 1.0] usb 1-1: new device\n",
    "key: value\n",
    "| a | b |\n",
    "{}",
    "<a></a>",
    "\x00\x01",
    "a, b, c\n1, 2, 3\n",
]
QUICK = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
VERDICTS = {"ok", "warning", "critical", "unknown"}


def verdict(text: str) -> str:
    result = report.judge(captures.read([("capture", text)]))
    assert result.verdict in VERDICTS
    assert len(result.model_dump_json()) < 60_000
    return result.verdict


def damaged(text: str, cut: int, drop: int, how: int) -> str:
    """One kind of damage: cut, middle taken out, mojibake, CRLF, lines doubled, halves swapped, long line."""
    at, gap = cut % (len(text) + 1), drop % 200
    return [
        text[:at],
        text[at:],
        text[:at] + text[at + gap :],
        text.encode("utf-8").decode("latin-1"),
        text.replace("\n", "\r\n"),
        text + "\n" + text[:at],
        text[at:] + text[:at],
        text[:at] + "\ufffd" * 3 + text[at:],
        text[:at] + "\x00" + text[at:],
        text.replace(" ", "\u3000"),
        text[:at] + "x" * 5000 + text[at:],
    ][how % 11]


@QUICK
@given(st.sampled_from(TEXTS), st.sampled_from(TEXTS), st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 10))
def test_damage_never_raises(first: str, second: str, cut: int, drop: int, how: int) -> None:
    verdict(damaged(first, cut, drop, how))
    verdict(damaged(first + "\n" + second, cut, drop, how))


@QUICK
@given(st.text(max_size=400))
def test_any_text_is_unknown(text: str) -> None:
    assert verdict(text) == "unknown"


@QUICK
@given(st.lists(st.sampled_from(UNKNOWN), min_size=1, max_size=8), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 10))
def test_the_unknown_stays_unknown(parts: list[str], cut: int, drop: int, how: int) -> None:
    assert verdict(damaged("".join(parts), cut, drop, how)) == "unknown"


@QUICK
@given(st.sampled_from(FAULTY), st.lists(st.sampled_from(UNKNOWN[:4]), max_size=5), st.lists(st.sampled_from(UNKNOWN[:4]), max_size=5))
def test_talk_around_a_fault_does_not_hide_it(fault: str, before: list[str], after: list[str]) -> None:
    assert verdict("".join(before) + "\n" + fault + "\n" + "".join(after)) == "critical"


@QUICK
@given(st.sampled_from(FAULTY), st.sampled_from(TEXTS))
def test_a_second_capture_does_not_hide_a_fault(fault: str, other: str) -> None:
    result = report.judge(captures.read([("one", fault), ("two", other)]))
    assert result.verdict == "critical"


def test_a_million_lines_are_read_in_full_view_of_their_one_fault(tmp_path: Path) -> None:
    lines = "[    1.0] audit: type=1400 something ordinary happened here\n" * 500_000
    text = lines + "[ 2.0] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n" + lines
    path = tmp_path / "kern.log"
    path.write_text(text)
    for given_text in (text, captures.read_file(path)):
        result = report.judge(captures.read([("kern.log", given_text)]))
        assert [(one.code, one.severity) for one in result.findings] == [("xid_79", "critical")]
        assert "lines that may matter" in result.skipped[0].why


def test_a_flood_of_one_fault_does_not_push_out_the_rare_one(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    flood = "[ 1.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=python, MMU Fault\n"
    path.write_text("[ 0.5] NVRM: Xid (PCI:0000:4c:00): 79, GPU has fallen\n" + flood * 600_000)
    result = report.judge(captures.read([("kern.log", captures.read_file(path))]))
    assert [one.code for one in result.findings] == ["xid_79", "xid_31"]
    assert "repeats of an Xid" in result.skipped[0].why


def test_where_even_the_lines_that_matter_are_too_many_the_newest_stay(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text("".join(f"[ 1.0] NVRM: something {number}\n" for number in range(100_000)))
    with path.open("rb") as file:
        kept = large_logs.kept(file, 2**20)
    assert len(kept) < 2**21
    assert kept.endswith("something 99999")
    assert "left out" in kept.splitlines()[0]

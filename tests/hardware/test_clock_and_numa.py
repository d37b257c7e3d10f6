"""Clock and NUMA facts from real-looking files and command outputs."""

from pathlib import Path

import pytest

from skillserver.hardware import clock, numa

TRACKING = """Reference ID    : A29FC87B (162.159.200.123)
Stratum         : 4
System time     : 0.000212345 seconds slow of NTP time
Last offset     : +0.000031 seconds
Leap status     : Normal
"""


def command(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.txt").write_text(text)
    (folder / name).write_text(f"#!/bin/sh\nexec /bin/cat {folder / name}.txt\n")
    (folder / name).chmod(0o755)


def test_chrony_tells_the_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    command(tmp_path, "chronyc", TRACKING)
    found = clock.read()
    assert (found.synchronised, found.source) == (True, "chronyc")
    assert found.offset_ms == pytest.approx(0.212345)
    command(tmp_path, "chronyc", TRACKING.replace("Normal", "Not synchronised"))
    assert clock.read().synchronised is False


def test_systemd_is_asked_when_the_kernel_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(clock, "_kernel", clock.Clock)
    assert clock.read() == clock.Clock()
    command(tmp_path, "timedatectl", "yes\n")
    assert clock.read() == clock.Clock(True, source="timedatectl")


def node(root: Path, number: int, cpus: str, memory_kib: int) -> None:
    folder = root / f"sys/devices/system/node/node{number}"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text(f"{cpus}\n")
    (folder / "meminfo").write_text(f"Node {number} MemTotal:       {memory_kib} kB\n")


def test_nodes_without_cpus_are_no_sockets_and_gpus_have_a_node(tmp_path: Path) -> None:
    node(tmp_path, 0, "0-3", 2**20)
    node(tmp_path, 1, "4-5,7", 2 * 2**20)
    node(tmp_path, 2, "", 96 * 2**20)
    device = tmp_path / "sys/bus/pci/devices/0000:19:00.0"
    device.mkdir(parents=True)
    for name, text in (("vendor", "0x10de"), ("class", "0x030200"), ("numa_node", "1")):
        (device / name).write_text(f"{text}\n")
    found = numa.read(tmp_path)
    assert found.nodes == [numa.Node(0, 4, 1.0), numa.Node(1, 3, 2.0)]
    assert found.gpus == {"0000:19:00.0": 1}


@pytest.mark.parametrize("text", ["", "a-b", "1,,2", "0-"])
def test_a_cpu_list_that_is_none_is_empty(text: str) -> None:
    assert numa.cpu_list(text) == set()

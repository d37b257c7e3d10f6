"""The child that asks the driver: lines on stdout whatever happens, and the host it stands on."""

import json
import subprocess
import sys
from pathlib import Path

from skillserver.hardware import host


def test_without_a_library_the_child_says_so_in_one_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    done = subprocess.run([sys.executable, "-m", "skillserver.hardware.nvml"], capture_output=True, text=True, check=True)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said == [{"at": "failed", "error": "LibraryNotFound", "code": 12}]
    assert done.stderr == ""


def test_a_child_that_was_cut_in_the_middle_of_a_line_keeps_the_lines_before() -> None:
    answer = host.DriverAnswer()
    for said in (
        {"at": "library", "count": 2, "driver": "580.1"},
        {"at": "asking", "index": 0},
        {"at": "gpu", "index": 0},
        {"at": "asking", "index": 1},
    ):
        host._take(answer, said)
    assert (answer.count, answer.asking, len(answer.gpus), answer.ended) == (2, 1, 1, False)


def test_only_display_devices_that_the_nvidia_driver_should_serve_count(tmp_path: Path) -> None:
    drivers = tmp_path / "drivers"
    for pci, vendor, kind, driver in (("0000:01:00.0", "0x10de", "0x030000", "nvidia"), ("0000:01:00.1", "0x10de", "0x040300", "snd"),
                                      ("0000:02:00.0", "0x10de", "0x030200", "vfio-pci"), ("0000:03:00.0", "0x1002", "0x030000", "amdgpu"),
                                      ("0000:04:00.0", "0x10de", "0x030200", "")):  # fmt: skip
        device = tmp_path / "devices" / pci
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
        (device / "class").write_text(kind + "\n")
        if driver:
            (drivers / driver).mkdir(parents=True, exist_ok=True)
            (device / "driver").symlink_to(drivers / driver)
    assert host.nvidia_devices(tmp_path / "devices") == ["0000:01:00.0", "0000:04:00.0"]
    assert host.amd_devices(tmp_path / "devices") == ["0000:03:00.0"]
    assert host.nvidia_devices(tmp_path / "nowhere") == []


def test_a_container_is_recognised_by_its_files(tmp_path: Path, monkeypatch) -> None:
    for name in ("SLURM_JOB_ID", "NVIDIA_VISIBLE_DEVICES", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    assert host.given_a_part(tmp_path) == ""
    (tmp_path / ".dockerenv").touch()
    assert host.given_a_part(tmp_path) == "a container"

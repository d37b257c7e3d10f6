"""A stand-in libnvidia-ml.so.1 for the real pynvml, and a PCI bus made of files."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

FAKE = Path(__file__).parents[1] / "fake_nvml"
CASES = Path(__file__).parents[3] / "shared/cases"
Scenario = Callable[..., Path]


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built stand-in."""
    folder = tmp_path_factory.mktemp("fake_nvml")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, FAKE / "fakenvml.c"], check=True)
    return folder


@pytest.fixture(autouse=True)
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """No command of this host is on the PATH; `commands("dmesg", "text")` puts one there that prints the text."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(name: str, text: str) -> None:
        (folder / f"{name}.txt").write_text(text)
        (folder / name).write_text(f"#!/bin/sh\nexec /bin/cat {folder / name}.txt\n")
        (folder / name).chmod(0o755)

    return put


@pytest.fixture
def scenario(fake_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scenario:
    """Make the driver's child see a scenario: `scenario("gpu3.temp=90")` on top of eight H100."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_library))
    for name in ("SLURM_JOB_ID", "NVIDIA_VISIBLE_DEVICES", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)

    def write(*lines: str, healthy: bool = True) -> Path:
        lines_of_all = (FAKE / "eight_h100.txt").read_text().splitlines()
        base = [line for line in lines_of_all if line.startswith(("gpus", "driver", "cuda", "nvml", "gpu*")) or ".busid" in line]
        path = tmp_path / "scenario.txt"
        path.write_text("\n".join([*(base if healthy else []), *lines]) + "\n")
        monkeypatch.setenv("FAKENVML_SCENARIO", str(path))
        return path

    return write


@pytest.fixture
def bus(tmp_path: Path) -> Callable[..., Path]:
    """A folder like /sys/bus/pci/devices with NVIDIA devices at those ids."""

    def make(*ids: str) -> Path:
        root = tmp_path / "devices"
        root.mkdir()
        for pci in ids:
            (root / pci).mkdir()
            (root / pci / "vendor").write_text("0x10de\n")
            (root / pci / "class").write_text("0x030200\n")
        return root

    return make

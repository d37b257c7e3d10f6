"""Tests marked `slurm` need the test bed: they run on its host `ctl` and are skipped elsewhere (tests/cluster/run.sh)."""

import socket
import subprocess

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slurm: needs the SLURM of tests/cluster/slurm-testbed")


def on_the_test_bed() -> bool:
    if socket.gethostname() != "ctl":
        return False
    return subprocess.run(["scontrol", "ping"], capture_output=True).returncode == 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("slurm")]
    if marked and not on_the_test_bed():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="not on the SLURM test bed"))

"""What is written down beside a number."""

import os
from pathlib import Path

import conditions
import pytest

SMI = """#!/bin/sh
case "$*" in
  *clocks_event_reasons*) echo "Field is not a valid field to query." ; exit 2 ;;
  *clocks_throttle_reasons*) echo "1395, 1980, 698.20, 700.00, 71, 4096, 0x0000000000000064" ;;
  *compute-apps*) echo "4711, /opt/conda/bin/python"; echo "$PPID, python" ;;
  *driver*) echo "550.54.15" ;;
esac
"""


@pytest.fixture
def old_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("old_driver")
def test_a_driver_that_knows_only_the_old_field_names_is_read() -> None:
    assert conditions.gpu("") == {
        "clocks.sm": 1395.0, "clocks.max.sm": 1980.0, "power.draw": 698.2, "power.limit": 700.0, "temperature.gpu": 71.0,
        "memory.used": 4096.0, "reasons": ["sw_power_cap", "sw_thermal", "hw_thermal"],
    }  # fmt: skip
    assert conditions.driver() == "550.54.15"


@pytest.mark.usefixtures("old_driver")
def test_other_processes_are_told_and_ourselves_not() -> None:
    assert conditions.other_processes("") == ["4711 python"]


def test_without_nvidia_smi_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (conditions.gpu(""), conditions.driver(), conditions.other_processes("")) == (None, None, None)


def test_many_looks_become_one_record() -> None:
    look = {"clocks.sm": 1980.0, "clocks.max.sm": 1980.0, "power.draw": 300.0, "power.limit": 700.0, "temperature.gpu": 50.0, "memory.used": 1.0}
    hot = look | {"clocks.sm": 1400.0, "power.draw": 699.0, "temperature.gpu": None}
    assert conditions.merge([look | {"reasons": ["idle"]}, hot | {"reasons": ["sw_power_cap"]}]) == {
        "looks": 2, "sm_clock_mhz": [1400.0, 1980.0], "sm_clock_mhz_first_last": [1980.0, 1400.0], "max_sm_clock_mhz": 1980.0,
        "power_w": 699.0, "power_limit_w": 700.0, "temperature_c": 50.0, "throttle_reasons": ["sw_power_cap"],
    }  # fmt: skip


def test_settings_of_collectives_are_told_and_secrets_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("NCCL_AUTH_TOKEN", "x")
    monkeypatch.setenv("HF_TOKEN", "x")
    told = conditions.settings()
    assert told["NCCL_DEBUG"] == "INFO"
    assert not {"NCCL_AUTH_TOKEN", "HF_TOKEN"} & set(told)


def test_a_watch_tells_the_load() -> None:
    told = conditions.Watch("cpu").close()
    assert set(told) == {"seconds", "load_average_before", "load_average", "other_cpu_cores", "steal_share", "env"}

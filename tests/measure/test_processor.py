"""What a CPU could do, from its flags; and what is unknown stays unknown."""

from pathlib import Path

import cores
import processor
import pytest

AVX2 = {"avx2", "fma"}
AVX512 = AVX2 | {"avx512f"}


@pytest.mark.parametrize(
    ("flags", "vendor", "family", "dtype", "flop"),
    [
        (AVX2, "AuthenticAMD", 25, "fp32", 32),  # Zen 3
        (AVX512, "AuthenticAMD", 25, "fp32", 32),  # Zen 4
        (AVX512, "AuthenticAMD", 26, "fp32", 64),  # Zen 5
        (AVX512, "GenuineIntel", 6, "fp32", 64),
        ({"asimd"}, "", 0, "fp32", 16),
        (AVX512 | {"avx512_bf16"}, "AuthenticAMD", 25, "bf16", 64),
        (AVX512 | {"avx512_bf16", "amx_bf16"}, "GenuineIntel", 6, "bf16", 1024),
        (AVX512 | {"avx512_fp16"}, "GenuineIntel", 6, "fp16", 128),
        (AVX512 | {"avx512_vnni"}, "AuthenticAMD", 25, "int8", 128),
        (AVX512 | {"avx512_vnni"}, "GenuineIntel", 6, "int8", 256),
        (AVX512 | {"amx_int8"}, "GenuineIntel", 6, "int8", 2048),
        (AVX2 | {"avx_vnni"}, "GenuineIntel", 6, "int8", 128),
        (AVX512, "GenuineIntel", 6, "int8", None),
        (AVX2, "AuthenticAMD", 25, "bf16", None),
        (set(), "", 0, "fp32", None),
    ],
)
def test_flop_a_cycle_follows_from_the_vector_units(flags: set[str], vendor: str, family: int, dtype: str, flop: int | None) -> None:
    found, words = processor.flop_per_cycle(flags, vendor, family, dtype)
    assert found == flop
    assert words


def test_an_unknown_part_makes_the_peak_unknown_with_a_reason() -> None:
    peak = processor.peak(4, "fp8")
    assert peak["tflops"] is None
    assert "fp8" in peak["reason"]


def test_the_timed_clock_is_one_that_a_cpu_can_have() -> None:
    clock = processor.timed_clock_ghz(3)
    assert clock is None or 0.3 < clock < 8


def test_cpuinfo_of_an_arm_server_is_understood(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd evtstrm\nCPU implementer\t: 0x41\n\nprocessor\t: 1\n")
    assert processor.describe(tmp_path / "cpuinfo")["flags"] == {"fp", "asimd", "evtstrm"}


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/a/b\n", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1.5),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "200000 100000"}, 2.0),
        ("3:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "100000"}, 0.5),
        ("3:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None),
        ("0::/\n", {}, None),
    ],
)
def test_the_tightest_quota_on_the_way_to_the_root_counts(tmp_path: Path, groups: str, files: dict[str, str], expected: float | None) -> None:
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert cores.quota(str(tmp_path / "groups"), str(tmp_path)) == expected

"""The matrices of a timed matmul: 8-bit kinds, and what differs between releases of torch."""

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the worker's environment is this one")
pytestmark = pytest.mark.torch
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "skillserver/workers/scripts"))

import devices  # noqa: E402
import operands  # noqa: E402
import software  # noqa: E402

CPU = devices.find("cpu")
GPU = CPU._replace(kind="cuda", backend="cuda", place=torch.device("cpu"))


@pytest.mark.skipif("int8" not in devices.dtypes(CPU), reason="this CPU has no dot products of bytes")
@pytest.mark.parametrize("layout", ["NT", "NN", "TN"])
def test_whole_numbers_are_multiplied_exactly(layout: str) -> None:
    made = operands.Operands(CPU, "int8", layout)
    assert made.check((64, 48, 32)) == (0.0, 0.0)
    assert (made.views((64, 48, 32))[2].dtype, made.bytes_for((64, 48, 32))) == (torch.int32, (64 + 48) * 32 + 4 * 64 * 48)
    assert "integers" in made.method()["data"]


def test_fp8_goes_through_scaled_mm_and_its_error_is_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "fp8_type", lambda _device: torch.float8_e4m3fn)  # torch emulates it on a CPU, which is no speed but a check
    made = operands.Operands(CPU, "fp8")
    error, allowed = made.check((64, 48, 32))
    assert error <= allowed
    assert len(made.times((64, 48, 32), 3)) == 3


@pytest.mark.parametrize(("version", "gives_two"), [("2.4.1+cu124", True), ("2.5.0", False), ("2.13.0+cpu", False)])
def test_up_to_torch_2_4_scaled_mm_also_gives_the_largest_output(monkeypatch: pytest.MonkeyPatch, version: str, gives_two: bool) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(devices, "fp8_type", lambda _device: torch.float8_e4m3fn)
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch, "_scaled_mm", lambda a, b, **more: seen.update(more))
    made = operands.Operands(CPU, "fp8")
    made.times((32, 32, 32), 1)
    assert set(seen) == {"scale_a", "scale_b", "out_dtype", "use_fast_accum", "out"}
    assert isinstance(seen["out"], tuple) == gives_two


@pytest.mark.parametrize(
    ("dtype", "shape", "fits"),
    [("fp8", (64, 64, 64), True), ("fp8", (64, 64, 40), False), ("int8", (17, 64, 64), True), ("int8", (16, 64, 64), False),
     ("int8", (64, 60, 64), False), ("fp32", (3, 5, 7), True)],
)  # fmt: skip
def test_shapes_that_a_gpu_library_refuses_are_refused_before_it_does(
    monkeypatch: pytest.MonkeyPatch, dtype: str, shape: tuple[int, int, int], fits: bool
) -> None:
    monkeypatch.setattr(devices, "fp8_type", lambda _device: torch.float8_e4m3fn)
    made = operands.Operands(CPU, dtype)
    made.device = GPU
    assert (made.unfit(shape) == "") == fits


@pytest.mark.parametrize(
    ("cuda", "dtype", "layouts"),
    [("12.8", "bf16", ["NT", "NN", "TN"]), ("12.8", "int8", ["NT", "NN"]), ("13.0", "int8", ["NT"]), ("12.8", "fp8", ["NT"])],
)
def test_layouts_are_those_that_the_library_has_kernels_for(monkeypatch: pytest.MonkeyPatch, cuda: str, dtype: str, layouts: list[str]) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert devices.layouts(GPU, dtype) == layouts
    assert devices.layouts(CPU, "int8") == ["NT", "NN", "TN"]


def test_int8_counts_only_where_the_cpu_has_dot_products_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, there in (({"avx2", "fma"}, False), ({"avx512f", "avx512_vnni"}, True)):
        monkeypatch.setattr(devices.processor, "describe", lambda flags=flags: {"model": "", "vendor": "", "family": 0, "flags": flags})
        assert ("int8" in devices.dtypes(CPU)) == there


def test_the_switches_of_torch_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.tunable, "is_enabled", lambda: True)
    monkeypatch.setattr(torch.cuda.tunable, "tuning_is_enabled", lambda: False)
    told = software.settings(GPU)
    assert (told["tunableop"], told["tf32"], told["compile"][:8]) == ("reading", told["float32_matmul_precision"] != "highest", "not used")
    assert told["blas"]
    assert "tunableop" not in software.settings(CPU)

"""The catalogue: names find one part, peaks keep dense and sparse apart, and figures hang together."""

import pytest

from skillserver.errors import BadRequest
from skillserver.hardware import catalogue

NAMES = {
    "H100-80GB-SXM": "H100-80GB-SXM",
    "h100": "H100-80GB-SXM",
    "h100-sxm": "H100-80GB-SXM",
    "H100 SXM5 80GB": "H100-80GB-SXM",
    "NVIDIA H100 80GB HBM3": "H100-80GB-SXM",
    "NVIDIA H100 PCIe": "H100-80GB-PCIe",
    "NVIDIA H100 NVL": "H100-94GB-NVL",
    "NVIDIA A100-SXM4-80GB": "A100-80GB-SXM",
    "NVIDIA A100-SXM4-40GB": "A100-40GB-SXM",
    "a100 80gb pcie": "A100-80GB-PCIe",
    "NVIDIA GH200 480GB": "GH200-96GB",
    "H800": "H800-80GB-SXM",
    "TPU v4": "TPUv4",
    "tpu-v3": "TPUv3",
    "MI300X": "MI300X-192GB",
    "NVIDIA GeForce RTX 5060": "RTX5060-8GB",
    "Tesla V100-SXM2-32GB": "V100-32GB-SXM",
}


@pytest.mark.parametrize(("name", "expected"), NAMES.items())
def test_a_name_finds_its_part(name, expected):
    assert catalogue.accelerator(name).id == expected


@pytest.mark.parametrize("part", catalogue.accelerators(), ids=lambda part: part.id)
def test_every_id_and_driver_name_finds_its_own_part(part):
    assert [catalogue.accelerator(name) for name in (part.id, *part.nvml_names)] == [part] * (1 + len(part.nvml_names))


def test_a_name_of_several_parts_is_refused_with_all_of_them():
    with pytest.raises(BadRequest) as refused:
        catalogue.accelerator("A100")
    assert refused.value.code == "ambiguous_accelerator"
    assert refused.value.valid == ["A100-40GB-SXM", "A100-80GB-SXM", "A100-40GB-PCIe", "A100-80GB-PCIe"]


@pytest.mark.parametrize("name", ["A10G", "RTX 4090 D", "NVIDIA GeForce RTX 5060 Ti", "H10", "", "NVIDIA", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"])
def test_a_near_name_is_not_taken_for_the_part(name):
    with pytest.raises(BadRequest) as refused:
        catalogue.accelerator(name)
    assert refused.value.code == "unknown_accelerator"
    assert sorted(refused.value.valid) == sorted(part.id for part in catalogue.accelerators())


def test_near_names_come_first_among_the_valid_ones():
    with pytest.raises(BadRequest) as refused:
        catalogue.accelerator("NVIDIA GeForce RTX 5060 Ti")
    assert refused.value.valid[0] == "RTX5060-8GB"


def test_dense_and_sparse_peaks_are_never_confused():
    h100 = catalogue.accelerator("h100")
    assert catalogue.peak_tflops(h100, "bf16") == 989.4
    assert catalogue.peak_tflops(h100, "torch.bfloat16") == 989.4
    assert catalogue.peak_tflops(h100, "bf16", sparse=True) == 1978.9
    assert catalogue.peak_tflops(h100, "fp32") == 66.9
    assert catalogue.peak_tflops(h100, "tf32") == 494.7
    assert catalogue.peak_tflops(catalogue.accelerator("b200"), "bf16") == 2250


def test_a_peak_that_no_source_gives_is_none():
    assert catalogue.peak_tflops(catalogue.accelerator("V100-16GB-SXM"), "bf16") is None
    assert catalogue.peak_tflops(catalogue.accelerator("B300-288GB-SXM"), "fp4") is None
    assert catalogue.peak_tflops(catalogue.accelerator("A100-80GB-SXM"), "fp8") is None


def test_a_derived_peak_counts_fp32_accumulation_and_says_that_it_is_derived():
    """512 flop a clock and SM, as on RTX 3090, 4090 and 5090; the printed 614 is sparse fp4, 16 times that."""
    part = catalogue.accelerator("RTX5060-8GB")
    assert part.tensor["bf16"] == pytest.approx(part.sm_count * part.boost_clock_mhz * 512 / 1e6, abs=0.1)
    assert part.sparse["fp4"] == pytest.approx(16 * part.tensor["bf16"], rel=0.01)
    assert "derived" in part.doubt


@pytest.mark.parametrize("part", catalogue.accelerators(), ids=lambda part: part.id)
def test_every_source_of_a_part_can_be_opened(part):
    assert all("https://" in source or "http://" in source for source in part.sources)


def test_an_unknown_precision_is_refused():
    with pytest.raises(BadRequest, match="bf61"):
        catalogue.peak_tflops(catalogue.accelerator("h100"), "bf61")


@pytest.mark.parametrize("part", catalogue.accelerators(), ids=lambda part: part.id)
def test_figures_of_a_part_hang_together(part):
    """Sparse is twice dense, one direction is half of the stated total, and narrower types are not slower."""
    for kind, sparse in part.sparse.items():
        if kind in part.tensor:
            assert sparse == pytest.approx(2 * part.tensor[kind], rel=0.02)
    if part.link_each_way_gb_s:
        assert part.link_stated_total_gb_s == pytest.approx(2 * part.link_each_way_gb_s, rel=0.02)
    for wide, narrow in (("tf32", "bf16"), ("bf16", "fp8"), ("fp8", "fp4")):
        if wide in part.tensor and narrow in part.tensor:
            assert part.tensor[narrow] >= part.tensor[wide]
    assert not part.link or catalogue.link(part.link).id == part.link


def test_links_are_found_by_the_names_people_use():
    assert catalogue.link("nvlink 4").each_way_gb_s == 450
    assert catalogue.link("PCIe Gen5").each_way_gb_s == 63
    assert catalogue.link("NDR").each_way_gb_s == 50
    with pytest.raises(BadRequest) as refused:
        catalogue.link("NVLink7")
    assert refused.value.valid[0].startswith("NVLink")


def test_expected_busbw_is_known_where_it_was_measured_and_nowhere_else():
    h100 = catalogue.expected_busbw("H100-80GB-SXM", 8, "all_reduce_perf")
    assert h100 is not None
    assert (h100.low_gb_s, h100.typical_gb_s, h100.high_gb_s) == (360, 480, 485)
    mi300x = [catalogue.expected_busbw("MI300X-192GB", n, "all-reduce") for n in (2, 8)]
    assert [row.typical_gb_s for row in mi300x] == [48, 313]
    assert catalogue.expected_busbw("A100-80GB-SXM", 3, "all_reduce") is None
    assert catalogue.expected_busbw("L4-24GB", 8, "all_reduce") is None

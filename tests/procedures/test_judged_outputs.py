"""Measurements of others against references: what is healthy, what is low, what nobody can tell."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "measure"))
import benchmark_texts as texts
from benchmark_texts import GIB, nccl, row

from skillserver.errors import BadRequest
from skillserver.procedures.judged_outputs import JudgedMeasurement, judge_text
from skillserver.procedures.measured_setting import Hints, named_parts


def judged(text: str, accelerator: str = "", n_gpus: int | None = None, n_nodes: int | None = None, link: str = "") -> JudgedMeasurement:
    return judge_text(text, Hints(accelerator, n_gpus, n_nodes, link))


def codes(result: JudgedMeasurement) -> set[str]:
    return {slip.code for slip in result.mistakes}


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("480 GB/s all reduce 8xH100", "ok"),
        ("342 GB/s all-reduce on 8xH100", "warning"),  # as algbw it would be more than any node shows
        ("275 GB/s all-reduce on 8xH100", "unknown"),  # low as busbw, healthy as algbw
        ("8xA100 nccl busbw 180", "warning"),
        ("8xA100 nccl busbw 235 GB/s", "ok"),
        ("8 A100 SXM 80GB all_reduce algbw 134 GB/s", "ok"),
        ("480 Gbps all reduce busbw 8xH100", "unknown"),  # bits as said, or bytes as meant
        ("3700 Gbps busbw all_reduce on 8xH200", "ok"),
        ("3700 GB/s busbw all_reduce on 8xH200", "warning"),
        ("2x MI300X all_reduce busbw 48 GB/s", "ok"),
        ("all-gather on 8xH100 370 GB/s busbw", "ok"),
        ("allreduce 8xRTX4090 busbw 12 GB/s", "unknown"),
        ("8x GB300 all_reduce busbw 700 GB/s", "unknown"),
        ("all_reduce busbw 700 GB/s", "unknown"),
        ("2 nodes x 8 H100 all_reduce busbw 390 GB/s", "unknown"),
        ("4x8xH200 EFA p5en.48xlarge all_reduce busbw 365 GB/s at 4GiB", "ok"),
        ("2 nodes of 8xH100 with NDR, all_reduce busbw 180 GB/s", "warning"),
        ("MAMF 650 TFLOPS H100 bf16", "warning"),
        ("MAMF 780 TFLOPS H100 bf16", "ok"),
        ("one matmul gave 650 TFLOPS on H100 bf16", "unknown"),
        ("1200 TFLOPS bf16 matmul on H100", "warning"),
        ("MAMF 1400 TFLOPS on H100", "unknown"),  # fp8, perhaps
        ("H100 400 TFLOPS per GPU training", "unknown"),
        ("nvlink p2p 274 GB/s A100", "ok"),
        ("H100 NVLink p2p 745 GB/s bidirectional", "ok"),
        ("h2d copy 12 GB/s on A100", "unknown"),
        ("h2d pinned copy 12 GB/s on A100", "warning"),
        ("H100 STREAM triad 2.9 TB/s", "ok"),
        ("ib_write_bw 98 Gb/s on NDR", "warning"),
        ("ib_write_bw 394 Gb/s on NDR", "ok"),
        ("ib_write_bw 98 Gb/s", "unknown"),
        ("iperf3 9.4 Gbit/s on 10GbE", "ok"),
        ("iperf3 38 Gbit/s on 100GbE", "unknown"),
        ("fio 4k randread 350k IOPS on NFS", "unknown"),
        ("fio 4k randread 350k IOPS on local nvme", "ok"),
        ("fio 4k randread 3k IOPS", "unknown"),  # nobody knows how many requests were in flight
        ("checkpoint write 0.2 GB/s", "warning"),
        ("checkpoint write 20 GB/s to Lustre", "ok"),
        ("gpu bandwidth is 300 GB/s", "unknown"),
    ],
)
def test_a_sentence_is_judged_as_an_engineer_would(text: str, verdict: str) -> None:
    result = judged(text)
    assert result.verdict == verdict, result.reason
    assert result.reason


def test_healthy_nccl_tests_are_ok_and_say_what_they_were_compared_with() -> None:
    result = judged(nccl(texts.HEALTHY) + "\n" + texts.FOOTER)
    assert (result.verdict, result.judged["bytes"], result.setting["accelerator"]) == ("ok", 16 * GIB, "H100-80GB-SXM")
    assert result.compared_with is not None
    assert (result.compared_with.value, result.compared_with.basis, codes(result)) == (480, "published", {"average_over_sizes"})


def test_the_ring_where_nvls_is_the_default_is_a_warning_unless_it_was_asked_for() -> None:
    ring = row(16 * GIB, 210.0, 367.5)
    assert judged(nccl(ring)).verdict == "warning"
    assert judged(nccl(ring, more="mpirun -x NCCL_ALGO=Ring ./all_reduce_perf")).verdict == "ok"


def test_two_nodes_are_not_held_against_one_node() -> None:
    table = nccl(row(8 * GIB, 180.7, 338.8), hosts=("n1", "n2"))
    alone, with_nics = judged(table), judged(table, link="NDR")
    assert (alone.verdict, alone.compared_with, codes(alone) >= {"two_nodes"}) == ("unknown", None, True)
    assert with_nics.compared_with is not None
    assert (with_nics.compared_with.value, with_nics.verdict) == (400, "unknown")  # 45% as a tree, 85% as a ring


def test_a_forced_ring_between_nodes_tells_the_wire() -> None:
    ring = "NCCL_ALGO=RING mpirun ./all_reduce_perf"
    fast, slow = (judged(nccl(row(8 * GIB, busbw / 1.875, busbw), hosts=("n1", "n2"), more=ring), link="NDR") for busbw in (365.0, 180.0))
    assert (fast.verdict, slow.verdict) == ("ok", "warning")


def test_trays_of_one_rack_are_not_held_against_nics() -> None:
    result = judged(nccl(row(8 * GIB, 480.0, 840.0), device="NVIDIA GB200", hosts=("t1", "t2"), each=4), link="NDR")
    assert (result.verdict, codes(result)) == ("unknown", set())


def test_wrong_results_are_critical_however_fast() -> None:
    result = judged(nccl(row(16 * GIB, 275.5, 482.1, "12")))
    assert (result.verdict, result.findings[0].code) == ("critical", "wrong_result")


def test_small_messages_give_no_verdict_about_links() -> None:
    result = judged(nccl(row(2**20, 22.8, 39.9)))
    assert (result.verdict, codes(result)) == ("unknown", {"too_small"})
    assert "latency_region" in codes(judged(nccl(row(65536, 1.7, 2.9))))


def test_one_rank_is_named_and_not_judged() -> None:
    result = judged(nccl(row(GIB, 900.0, 0.0), each=1))
    assert (result.verdict, "one_rank" in codes(result)) == ("unknown", True)


def test_a_part_of_several_names_is_judged_only_where_all_agree() -> None:
    low, between = judged("MAMF 200 TFLOPS A100 bf16"), judged("MAMF 246 TFLOPS A100 bf16")
    assert low.verdict == "warning"  # below SXM and PCIe alike
    assert (between.verdict, "it depends" in between.reason) == ("unknown", True)  # 91% of the SXM part, 97% of the PCIe card
    assert judged("MAMF 246 TFLOPS bf16", accelerator="A100-80GB-PCIe").verdict == "ok"


def test_a_hint_that_contradicts_the_output_is_said_and_not_believed() -> None:
    result = judged(nccl(texts.HEALTHY), accelerator="A100-80GB-SXM", n_gpus=4)
    assert (result.verdict, codes(result) >= {"part_contradicted", "ranks_contradicted"}) == ("ok", True)


def test_unknown_hints_are_refused_with_the_choices() -> None:
    with pytest.raises(BadRequest, match="unknown_accelerator"):
        judged("all_reduce busbw 180 GB/s", accelerator="x100")
    with pytest.raises(BadRequest, match="unknown_link"):
        judged("ib_write_bw 195 Gb/s", link="foo")
    with pytest.raises(BadRequest, match="no_measurement"):
        judged("nothing here")


def test_mamf_of_few_shapes_excuses_a_low_figure() -> None:
    few, many = (judged(texts.MAMF.format(shapes=shapes, mean=650, median=652.0, top=660)) for shapes in (79, 3375))
    assert (few.verdict, many.verdict) == ("unknown", "warning")


def test_a_slot_that_trained_down_is_named_by_its_device() -> None:
    result = judged(texts.NVBANDWIDTH.format(slow="27.60"))
    assert (result.verdict, [finding.code for finding in result.findings]) == ("warning", ["copy_off", "uneven_links"])
    assert "GPU 2" in result.findings[1].subject
    assert judged(texts.NVBANDWIDTH.format(slow="55.20")).verdict == "ok"


def test_gpu_burn_errors_are_critical_and_a_cut_run_is_unknown() -> None:
    clean = texts.GPU_BURN.format(errors="0", verdict="OK")
    assert judged(clean).verdict == "ok"
    assert judged(texts.GPU_BURN.format(errors="1579  (WARNING!)", verdict="FAULTY")).verdict == "critical"
    assert judged(clean.split("Killing")[0]).verdict == "unknown"
    idle = clean.replace("17031", "0").replace("16950", "0").replace("17124", "0").replace("17063", "0")
    assert judged(idle).verdict == "unknown"  # OK without having computed anything


def test_a_gpu_slower_than_its_peers_is_named() -> None:
    result = judged(texts.FRYER)
    assert (result.verdict, [finding.subject for finding in result.findings if finding.code == "slower_than_peers"]) == ("warning", ["GPU 3"])


def test_proftester_is_a_stress_test_and_judged_like_one() -> None:
    assert judged(texts.PROFTESTER, accelerator="A100-80GB-SXM").verdict == "ok"
    assert judged(texts.PROFTESTER).verdict == "unknown"


def test_fio_serves_its_need_or_says_why_nobody_knows() -> None:
    result = judged(texts.FIO.format(engine="libaio", direct=1, iops="258k"))
    assert (result.verdict, result.compared_with and result.compared_with.basis) == ("ok", "derived")
    assert judged(texts.FIO.format(engine="libaio", direct=0, iops="258k")).verdict == "unknown"
    assert judged(texts.FIO.format(engine="libaio", direct=1, iops="9k")).verdict == "warning"
    assert judged(texts.FIO.format(engine="psync", direct=1, iops="9k")).verdict == "unknown"  # 16 in flight tell latency


def test_a_bidirectional_port_figure_is_halved() -> None:
    result = judged(texts.PERFTEST.format(both="Bidirectional ", unit="Gb/sec", rate="780.00"), link="NDR")
    assert (result.verdict, codes(result)) == ("ok", {"duplex_total"})


def test_a_port_latency_is_judged_for_tiny_messages() -> None:
    assert judged(texts.LATENCY).verdict == "ok"


def test_memory_figures_out_of_a_cache_are_not_judged() -> None:
    assert judged(texts.BABEL.format(array=268.4, rate=2900000)).verdict == "ok"
    assert judged(texts.BABEL.format(array=16.8, rate=2900000)).verdict == "unknown"
    assert judged(texts.BABEL.format(array=268.4, rate=1500000)).verdict == "warning"


def test_data_sheet_totals_in_a_sentence_are_named() -> None:
    assert "duplex_total" in codes(judged("A100 NVLink should be 600 GB/s but I only get 240 GB/s busbw with all_reduce on 8 GPUs"))
    assert "sparse_peak" in codes(judged("H100: 650 of 1979 TFLOPS with MAMF bf16"))


def test_every_row_is_shown_only_when_asked() -> None:
    table = nccl("\n".join(row(2**power, 200.0, 350.0) for power in range(3, 35)))
    short, whole = judge_text(table, Hints()), judge_text(table, Hints(), all_rows=True)
    assert (len(short.rows), len(whole.rows)) == (12, 64)
    assert "detail=true" in short.skipped[-1]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("8xA100 80GB PCIe", ["A100-80GB-PCIe"]),
        ("H100s", ["H100-80GB-SXM"]),
        ("2x8xH100 NVL", ["H100-94GB-NVL"]),
        ("RTX 4090", ["RTX4090-24GB"]),
        ("mi300x", ["MI300X-192GB"]),
        ("GB300", []),
        ("at4 and l40", []),
    ],
)
def test_parts_are_found_in_sentences(text: str, ids: list[str]) -> None:
    assert [part.id for part in named_parts(text)] == ids

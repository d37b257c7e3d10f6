"""Every family of benchmark output reads into rows with the right units; damaged and foreign text does not."""

import json
from typing import Any

import benchmark_texts as texts
import pytest
from benchmark_texts import GIB, nccl, row

from skillserver.measure.outputs import families
from skillserver.measure.outputs.records import Output, to_gb_s
from skillserver.measure.outputs.surroundings import Surroundings
from skillserver.measure.outputs.surroundings import read as surroundings


def only(text: str) -> Output:
    (output,) = families.read(text)
    return output


@pytest.mark.parametrize(
    ("value", "unit", "gb_s"),
    [(400, "Gb/s", 50), (1, "GiB/s", 1.073741824), (8, "Gbps", 1), (480, "GBps", 480), (938, "Mbits/sec", 0.11725), (1, "TB/s", 1000)],
)
def test_a_rate_in_any_unit_is_gb_s(value: float, unit: str, gb_s: float) -> None:
    assert to_gb_s(value, unit) == pytest.approx(gb_s)


def test_what_is_no_rate_has_no_gb_s() -> None:
    assert to_gb_s(1, "GB") is None


def test_nccl_tests_give_both_places_of_each_size() -> None:
    output = only(nccl(texts.HEALTHY))
    assert (output.kind, output.collective, output.n_ranks, output.n_nodes, output.device) == ("nccl-tests", "all_reduce", 8, 1, texts.H100)
    assert [(each.bytes, each.place, each.busbw_gb_s) for each in output.rows[-2:]] == [
        (16 * GIB, "out-of-place", 482.1),
        (16 * GIB, "in-place", 482.1),
    ]


def test_the_older_table_without_a_root_column_reads_the_same() -> None:
    older = only(row(GIB, 132.0, 231.0, "4e-07", root=None))
    assert (older.collective, older.n_ranks, older.rows[0].busbw_gb_s, older.rows[0].wrong) == ("all_reduce", 8, 231.0, None)


def test_per_iteration_columns_and_time_stamps_do_not_shift_the_figures() -> None:
    figures = "4052.6 264.95 463.66 0 4001.0 4100.0 4099.0 0.5"
    (output,) = families.read(f"1073741824 268435456 float sum -1 {figures} {figures} 2026-01-05 10:00:00")
    assert [each.busbw_gb_s for each in output.rows] == [463.66, 463.66]


@pytest.mark.parametrize("label", ["[1,0]<stdout>:", "0: ", "2026-01-05T10:00:00.123Z ", "> "])
def test_labels_of_launchers_are_taken_off(label: str) -> None:
    labelled = "\n".join(label + line for line in nccl(texts.HEALTHY).splitlines())
    assert only(labelled).rows[-1].busbw_gb_s == 482.1


def test_two_tests_in_one_paste_stay_apart() -> None:
    gathered = nccl(row(GIB, 412.0, 360.5, redop="none"), name="all_gather_perf")
    assert [output.collective for output in families.read(nccl(texts.HEALTHY) + "\n" + gathered)] == ["all_reduce", "all_gather"]


def test_nccl_json_reads_like_the_table() -> None:
    figure = {"time": 4052.6, "alg_bw": 264.95, "bus_bw": 463.66, "nwrong": 0.0}
    device = {"rank": 0, "hostname": "n1", "device": 0, "device_info": texts.H100}
    document = {
        "version": 2,
        "args": ["./all_reduce_perf", "-g", "8"],
        "env": ["NCCL_ALGO=Ring", "HOME=/root-of-nobody"],
        "config": {"nthreads": 1, "ngpus": 8, "warmup_iters": 1, "iterations": 20, "validation": 1, "devices": [device]},
        "results": [{"size": GIB, "type": "float", "redop": "sum", "root": "    -1", "out_of_place": figure, "in_place": figure}],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 463.66, "okay": "unchecked"},
    }
    output = only("# Writing JSON output to x.json\n" + json.dumps(document))
    assert (output.collective, output.n_ranks, output.n_nodes, output.rows[0].busbw_gb_s) == ("all_reduce", 8, 1, 463.66)


def test_all_reduce_bench_has_busbw_before_algbw() -> None:
    output = only(texts.BENCH)
    assert (output.n_ranks, output.device, output.rows[-1].bytes, output.rows[-1].busbw_gb_s) == (8, "NVIDIA H200", 16 * GIB, 480.1)


def test_the_older_two_lines_of_all_reduce_bench_read() -> None:
    head = "The average bandwidth of all_reduce with a 4.0GB payload (5 trials, 16 ranks):"
    output = only(f"{head}\n algbw: 96.000 GBps (768.0 Gbps)\n busbw: 180.000 GBps (1440.0 Gbps)\n")
    assert (output.n_ranks, output.rows[0].busbw_gb_s, output.rows[0].bytes) == (16, 180.0, 4 * 10**9)


def test_the_latency_comparison_prints_bits() -> None:
    output = only(
        "----------- 1x 4.0GB ----------------\n busbw: 3722.778 Gbps\n\n----------- 1000x 0.004GB ----------------\n busbw: 1146.127 Gbps\n"
    )
    assert output.rows[0].busbw_gb_s == pytest.approx(465.3, abs=0.1)


def test_deepspeed_prints_bits_and_a_doubled_throughput() -> None:
    output = only(texts.DEEPSPEED)
    assert (output.n_ranks, output.rows[0].busbw_gb_s) == (8, pytest.approx(464, abs=0.1))
    assert {slip.code for slip in output.slips} == {"deepspeed_doubled", "bits_for_bytes"}


def test_mamf_takes_the_median_and_names_the_lucky_maximum() -> None:
    output = only(texts.MAMF.format(shapes=3375, mean=771.5, median=775.0, top=812.3))
    assert (output.rows[0].tflops, output.dtype, output.facts["shapes"]) == (775.0, "bfloat16", 3375)
    assert [slip.code for slip in output.slips] == ["luckiest_sample"]


def test_version_one_of_mamf_finder_and_a_cut_search_read() -> None:
    assert only("The best outcome was 831.7TFLOPS @ 12288x14336x15872 (MxNxK) (tried 493039 shapes)").rows[0].tflops == 831.7
    cut = "   123 |  604.1(mean)  605.3(median)  612.2(max) @ 1024x4096x4096 | best:  700.0(mean)  701.0(median)  710.0(max) TFLOPS"
    assert only(cut).facts["partial"] is True


def test_proftester_leaves_out_the_first_sample() -> None:
    output = only(texts.PROFTESTER)
    assert (output.dtype, round(output.rows[0].tflops or 0, 1)) == ("fp16", 252.9)


def test_nvbandwidth_gives_a_row_a_device_and_its_device_name() -> None:
    output = only(texts.NVBANDWIDTH.format(slow="27.60"))
    assert (output.device, [each.gb_s for each in output.rows]) == (texts.H100, [55.21, 55.3, 27.6, 55.25])


def test_nvbandwidth_json_reads_its_strings() -> None:
    case = {
        "name": "device_to_device_memcpy_read_ce",
        "status": "Passed",
        "bandwidth_description": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
    }
    case |= {"bandwidth_matrix": [["N/A", "376.1"], ["375.9", "N/A"]]}  # type: ignore[dict-item]
    output = only(json.dumps({"nvbandwidth": {"version": "v0.8", "testcases": [case]}}))
    assert [(each.subject, each.gb_s, each.facts["kind"]) for each in output.rows] == [
        ("GPU 0 - GPU 1", 376.1, "peer"),
        ("GPU 1 - GPU 0", 375.9, "peer"),
    ]


def test_p2p_matrices_tell_one_way_from_both() -> None:
    title = "{} P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n   D\\D     0      1\n     0 1522.0 274.1\n     1 273.9 1530.0\n"
    output = only("Device: 0, NVIDIA A100-SXM4-80GB, pciBusID: 7\n" + title.format("Unidirectional") + title.format("Bidirectional"))
    assert [each.facts["kind"] for each in output.rows] == ["peer", "peer", "peer_total", "peer_total"]


def test_the_folded_table_of_dcgmi_diag_reads() -> None:
    table = """| PCIe                      | Pass - All                                     |
| Info                      | GPU 0 GPU to Host bandwidth:  13.13 GB/s, GPU  |
|                           |  0 Host to GPU bandwidth:  12.37 GB/s, GPU 1 GP |
|                           | U to Host bandwidth: 13.20 GB/s                |"""
    assert [(each.what, each.subject, each.gb_s) for each in only(table).rows] == [
        ("device_to_host", "GPU 0", 13.13),
        ("host_to_device", "GPU 0", 12.37),
        ("device_to_host", "GPU 1", 13.2),
    ]


def test_gpu_burn_keeps_the_worst_error_count_and_its_verdicts() -> None:
    output = only(texts.GPU_BURN.format(errors="1579  (WARNING!)", verdict="FAULTY"))
    assert [(each.subject, each.wrong) for each in output.rows] == [("GPU 0", 0), ("GPU 1", 1579)]
    assert [(alarm.code, alarm.severity) for alarm in output.alarms] == [("wrong_result", "critical")]


def test_gpu_fryer_reads_gflops_and_precision() -> None:
    output = only(texts.FRYER)
    assert (output.dtype, len(output.rows), output.rows[3].tflops) == ("bf16", 4, 630.0)


def test_fio_text_gives_operations_bandwidth_and_settings() -> None:
    (found,) = only(texts.FIO.format(engine="libaio", direct=1, iops="258k")).rows
    assert (found.iops, round(found.gb_s or 0, 3)) == (258000.0, 1.055)
    assert found.facts == {"rw": "randread", "block_bytes": 4096, "engine": "libaio", "iodepth": 32, "jobs": 16, "seconds": 120.003, "p99_us": 4621.0}


def test_fio_two_counts_in_1024s() -> None:
    (found,) = only("  write: io=241236KB, bw=24035KB/s, iops=6008, runt= 10037msec").rows
    assert (found.iops, round(found.gb_s or 0, 5)) == (6008.0, round(24035 * 1024 / 1e9, 5))


def fio_document(**options: str) -> str:
    way: dict[str, Any] = {"io_bytes": 10**10, "bw_bytes": 2 * 10**9, "bw": 1953125, "iops": 1907.3, "runtime": 60000, "lat_ns": {"mean": 4e6}}
    empty = {"io_bytes": 0, "bw": 0, "iops": 0}
    job = {
        "jobname": "ckpt",
        "error": 0,
        "job options": {"rw": "write", "bs": "1m", "numjobs": "8", "iodepth": "4"} | options,
        "read": empty,
        "write": way,
    }
    return json.dumps({"fio version": "fio-3.36", "global options": {"ioengine": "libaio"}, "jobs": [job]})


def test_fio_json_is_found_after_the_notes_before_it() -> None:
    output = only("note: something\n" + fio_document(direct="1"))
    (found,) = output.rows
    assert (found.what, found.gb_s, found.facts["jobs"], found.facts["block_bytes"], output.facts["direct"]) == ("write", 2.0, 8, 1048576, True)


def test_a_run_through_the_page_cache_is_named() -> None:
    assert [slip.code for slip in only(fio_document(direct="0")).slips] == ["page_cache"]
    assert "sync_engine" in [slip.code for slip in only(texts.FIO.format(engine="psync", direct=1, iops="25k")).slips]


def test_perftest_megabytes_are_binary_and_gigabits_are_not() -> None:
    binary = only(texts.PERFTEST.format(both="", unit="MB/sec", rate="46000.00")).rows[0].gb_s
    decimal = only(texts.PERFTEST.format(both="", unit="Gb/sec", rate="391.80")).rows[0].gb_s
    assert (round(binary or 0, 2), round(decimal or 0, 3)) == (48.23, 48.975)


def test_perftest_latency_takes_the_typical_column() -> None:
    output = only(texts.LATENCY)
    assert (output.facts["test"], output.rows[0].latency_us) == ("ib_write_lat", 1.07)


def test_iperf_takes_what_the_receiver_got_in_all() -> None:
    output = only(texts.IPERF)
    assert (output.rows[0].gb_s, output.facts) == (2.925, {"streams": 2, "retransmits": 21, "side": "receiver"})


def test_iperf_json_reads() -> None:
    document = {"start": {"test_start": {"num_streams": 4, "protocol": "TCP"}}, "end": {"sum_received": {"bits_per_second": 9.4e9}, "sum_sent": {}}}
    assert only(json.dumps(document)).rows[0].gb_s == 1.175


def test_osu_and_streams_read() -> None:
    assert only(texts.OSU).rows[-1].gb_s == pytest.approx(24.31, abs=0.01)
    assert only(texts.BABEL.format(array=268.4, rate=2900000)).rows[-1].gb_s == pytest.approx(2900, abs=1)
    head = "STREAM version 5.10\nArray size = 400000000 (elements)\nFunction    Best Rate MB/s  Avg time  Min time  Max time\n"
    cpu = only(head + "Triad:  363208.7  0.02  0.02  0.02")
    assert (cpu.kind, cpu.rows[0].gb_s, cpu.facts["array_bytes"]) == ("STREAM", pytest.approx(363.2, abs=0.1), 3.2e9)


@pytest.mark.parametrize(
    "text", ["hello", "", "loss 2.3 at step 100", "\n".join(["step 12 of 300 took 1.2 s, 480 GB/s"] * 20), "{", "[1, 2]", '{"jobs": 3}']
)
def test_what_is_no_measurement_gives_nothing(text: str) -> None:
    assert families.read(text) == []


@pytest.mark.parametrize(
    ("text", "what", "figure"),
    [
        ("342 GB/s all-reduce on 8xH100", "busbw_gb_s", 342),
        ("all_reduce algbw 275 GB/s, busbw 481 GB/s", "busbw_gb_s", 481),
        ("NVLink should be 600 GB/s but I only get 240 GB/s", "gb_s", 240),
        ("650 of 1979 TFLOPS in MAMF", "tflops", 650),
        ("1.2 PFLOPS gemm fp8", "tflops", 1200),
        ("fio randread 350k IOPS", "iops", 350_000),
        ("fio IOPS=12.5k", "iops", 12_500),
        ("ib_write_lat 1.9 us", "latency_us", 1.9),
        ("pinned H2D copy 25 GiB/s", "gb_s", 25 * 1.073741824),
    ],
)
def test_a_sentence_gives_its_measured_figure(text: str, what: str, figure: float) -> None:
    assert getattr(only(text).rows[0], what) == pytest.approx(figure)


@pytest.mark.parametrize(
    ("text", "nodes", "gpus"),
    [("8xH100", None, 8), ("2 nodes of 8xH100", 2, 16), ("2 nodes, 16xH100", 2, 16), ("4x8xH200", 4, 32), ("srun -N 2 --gpus-per-node=8 x", 2, 16)],
)
def test_counts_in_words_are_understood(text: str, nodes: int | None, gpus: int) -> None:
    around: Surroundings = surroundings(text)
    assert (around.n_nodes, around.n_gpus) == (nodes, gpus)

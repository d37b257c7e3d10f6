"""What copies and memory kernels are held against, on a node of eight GPUs that we do not have and on this CPU."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from skillserver.errors import NotHere
from skillserver.hardware import catalogue
from skillserver.procedures import copy_references, judged_bandwidth
from skillserver.tools.bandwidth import run_bandwidth_bench

GPUS = [f"cuda:{number}" for number in range(8)]
PARTS = ["memory", "transfers", "peers"]


pytestmark = pytest.mark.usefixtures("own_place")


def rate(gb_s: float) -> dict[str, Any]:
    return {"gb_s": gb_s, "p5_gb_s": 0.98 * gb_s, "p95_gb_s": 1.01 * gb_s, "n": 50}


def node(model: str = "NVIDIA H100 80GB HBM3", *, triad: float = 3000.0, pinned: float = 55.0, peer: float = 376.0) -> dict[str, Any]:
    memory = {gpu: {"array_bytes": 2**30, "cached": False, "correct": True, "triad": rate(triad), "copy": rate(triad - 100)} for gpu in GPUS}
    ways = {f"{way}_{kind}": rate(pinned if kind == "pinned" else 12.0) for way in ("to_device", "to_host") for kind in ("pinned", "pageable")}
    peers = [{"from": one, "to": other, "direct": True, "correct": True, "rate": rate(peer)} for one in GPUS for other in GPUS if one != other]
    return {"devices": dict.fromkeys(GPUS, model), "backend": "cuda", "memory": memory, "transfers": {gpu: dict(ways, correct=True) for gpu in GPUS},
            "peers": peers, "skipped": {}, "copy_bytes": 2**28, "conditions": {"torch": "2.13.0"}, "partial": False}  # fmt: skip


def codes(told: dict[str, Any]) -> list[str]:
    return [one["code"] for one in told["findings"]]


def test_a_healthy_node_is_ok_and_every_reference_has_its_source() -> None:
    told, metrics = judged_bandwidth.answer(node(), PARTS, GPUS, [])
    assert (told["verdict"], told["findings"]) == ("ok", [])
    assert [(one["what"].split(",")[0], one["gb_s"]) for one in told["compared_with"]] == [
        ("memory of H100-80GB-SXM on paper", 3350), ("PCIe5", 63.0), ("NVLink4 of H100-80GB-SXM", 450)]  # fmt: skip
    assert all(one["source"] for one in told["compared_with"])
    row = next(row for row in told["rows"] if (row["what"], row["device"]) == ("to_host pinned", "cuda:3"))
    assert (row["paper_gb_s"], row["expected_low_gb_s"], row["share"], row["verdict"]) == (63.0, 47.25, 0.873, "ok")
    assert [row["verdict"] for row in told["rows"] if "pageable" in row["what"]] == ["unknown"] * 16
    assert [told["peers"]["gb_s"][place][place] for place in range(8)] == [None] * 8
    assert told["peers"]["through_host"] == []
    assert judged_bandwidth.ONE_WAY in told["assumptions"]
    assert "untested" in told["assumptions"][-1]
    assert metrics["memory copy cuda:0"].value == 2900


@pytest.mark.parametrize(("changed", "code"), [({"triad": 1500.0}, "memory_off"), ({"pinned": 25.0}, "transfers_off"), ({"peer": 40.0}, "peers_off")])
def test_what_is_far_below_paper_is_a_warning(changed: dict[str, float], code: str) -> None:
    told, _ = judged_bandwidth.answer(node(**changed), PARTS, GPUS, [])
    assert (told["verdict"], codes(told)) == ("warning", [code])


def test_one_slow_gpu_and_pairs_through_the_host_are_named() -> None:
    payload = node()
    payload["memory"]["cuda:5"]["triad"] = rate(2500.0)
    for row in payload["peers"]:
        row["direct"] = {row["from"], row["to"]} != {"cuda:0", "cuda:1"}
    told, _ = judged_bandwidth.answer(payload, PARTS, GPUS, [])
    assert [(one["code"], one["subject"]) for one in told["findings"]] == [("device_outlier", "cuda:5")]
    assert told["peers"]["through_host"] == ["cuda:0>cuda:1", "cuda:1>cuda:0"]


def test_wrong_data_is_critical() -> None:
    payload = node()
    payload["transfers"]["cuda:2"]["correct"] = False
    told, _ = judged_bandwidth.answer(payload, PARTS, GPUS, [])
    assert (told["verdict"], codes(told)) == ("critical", ["wrong_result"])


def test_an_unknown_part_and_one_that_sits_in_a_faster_slot_are_not_condemned() -> None:
    assert judged_bandwidth.answer(node("NVIDIA FancyNew 300"), PARTS, GPUS, [])[0]["verdict"] == "unknown"
    a100 = copy_references.pcie(catalogue.accelerator("A100-80GB-SXM"))
    assert copy_references.judge(55.0, a100).verdict == "unknown"
    assert copy_references.pcie(catalogue.accelerator("GH200-96GB")) is None


def test_every_nvlink_of_the_catalogue_has_a_source() -> None:
    joined = [part for part in catalogue.accelerators() if (part.link or "").startswith("NVLink") and part.link_each_way_gb_s]
    assert len(joined) > 5
    assert all(copy_references.nvlink(part, True).source for part in joined)  # type: ignore[union-attr]


def test_threads_on_part_of_the_numa_nodes_are_said() -> None:
    memory = {"cpu": {"array_bytes": 2**27, "cached": False, "correct": True, "triad": rate(150.0), "copy": rate(140.0)}}
    for numa, word in (({"nodes": 2, "usable": 1}, "may use 1"), ({"nodes": 4, "usable": 4}, "over 4 of 4 NUMA nodes")):
        payload = {"devices": {"cpu": "AMD EPYC"}, "backend": "cpu", "memory": memory, "skipped": {}, "conditions": {"numa": numa}}
        told, _ = judged_bandwidth.answer(payload, ["memory"], ["cpu"], [])
        assert word in told["assumptions"][0]
        assert told["verdict"] == "unknown"


@pytest.mark.torch
def test_the_tool_measures_this_cpu_and_keeps_the_result() -> None:
    pytest.importorskip("torch")
    told = run_bandwidth_bench.sync(device="cpu", budget_s=2, python=sys.executable, detail=True)
    assert (told.state, [row["what"] for row in told.rows]) == ("done", ["triad", "copy"])
    assert [line.split(":")[0] for line in told.skipped] == ["transfers", "peers"]
    assert len(told.samples[0]["found"]["cpu"]["triad"]["seconds_each"]) == told.rows[0]["n"]
    kept = json.loads(Path(told.history_file).read_text())
    assert sorted(kept["metrics"]) == ["memory copy cpu", "memory triad cpu"]
    with pytest.raises(NotHere, match="no_gpu"):
        run_bandwidth_bench.sync(device="cuda:1", python=sys.executable)

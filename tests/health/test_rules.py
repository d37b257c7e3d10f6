"""Rules over single GPUs and over neighbours: load decides what throttling and slow links mean."""

import json
from pathlib import Path

import pytest

from skillserver.health import captures, checks, incident, outcomes, peers, report, texts
from skillserver.health.reading import GpuReading, Value

CASES = Path(__file__).parents[3] / "shared/cases"


def fired(**values: Value) -> dict[str, str]:
    return {one.code: one.severity for one in checks.incidents(GpuReading("test", "0000:01:00.0", 0, values))}


def test_an_idle_gpu_may_lower_its_clocks_and_its_link() -> None:
    assert fired(pstate="P8", reason_idle=True, pcie_gen=1.0, pcie_gen_max=4.0, reason_sw_thermal=True) == {}


def test_a_working_gpu_with_a_slow_link_or_heat_is_a_warning() -> None:
    assert fired(name="NVIDIA H100 80GB HBM3", pstate="P0", utilisation_percent=99.0, pcie_gen=3.0, pcie_gen_max=5.0, reason_sw_thermal=True) == {
        "pcie_gen_below_max": "warning", "sw_thermal_slowdown": "warning"}  # fmt: skip


def test_the_power_cap_under_load_is_normal_and_the_power_brake_is_not_even_at_rest() -> None:
    assert fired(pstate="P0", utilisation_percent=99.0, reason_sw_power_cap=True) == {}
    assert fired(pstate="P8", reason_idle=True, reason_hw_slowdown=True, reason_power_brake=True) == {"hw_power_brake": "warning"}


def test_a_consumer_board_has_no_rows_to_remap() -> None:
    assert fired(name="NVIDIA GeForce RTX 4090", remap_pending=True, remap_failure=True, fabric_state="In Progress") == {}


def test_a_pending_remap_explains_that_the_driver_recommends_a_reset() -> None:
    assert set(fired(remap_pending=True, drain_and_reset=True).values()) == {"warning"}
    assert fired(drain_and_reset=True) == {"recovery_action": "critical"}
    assert fired(recovery_action="None") == {}


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ({"retired_single_bit": 60.0, "retired_double_bit": 3.0}, {"retired_pages_limit": "critical"}),
        ({"retired_single_bit": 2.0, "retired_double_bit": 0.0, "retired_pending": True}, {"retired_pages_pending": "warning"}),
        ({"aggregate_sram_uncorrectable": 4.0}, {"ecc_sram_lifetime": "warning"}),
        ({"aggregate_sram_uncorrectable": 5.0}, {"ecc_sram_lifetime_limit": "critical"}),
        ({"volatile_correctable": 177.0, "aggregate_correctable": 177.0}, {"ecc_corrected": "info"}),
        ({"temperature_c": 91.0, "slowdown_c": 90.0}, {"temperature_limit": "warning"}),
        ({"licence": "Unlicensed (Restricted)"}, {"vgpu_unlicensed": "warning"}),
        ({"fabric_state": "Completed", "fabric_status": "Insufficient Resources"}, {"fabric_failed": "critical"}),
        ({"name": "NVIDIA H100 PCIe", "fabric_state": "Not Started"}, {}),
        ({"lost": True}, {"gpu_lost": "critical"}),
    ],
)  # fmt: skip
def test_one_fact_fires_its_rule(values: dict[str, Value], codes: dict[str, str]) -> None:
    assert fired(**values) == codes


def test_a_gpu_of_which_only_errors_can_be_read_does_not_work() -> None:
    gpu = GpuReading("test", values={"name": "X"}, unreadable=dict.fromkeys(("power_w", "temperature_c", "pstate", "utilisation_percent"), "ERR!"))
    assert [one.severity for one in checks.incidents(gpu)] == ["critical"]
    gpu.values |= dict.fromkeys(("volatile_uncorrectable", "memory_c", "fan", "replays", "sm"), 0.0)
    assert [one.severity for one in checks.incidents(gpu)] == ["warning"]


def node(fact: str, values: list[float], **more: Value) -> list[GpuReading]:
    return [
        GpuReading("test", f"0000:{index:02x}:00.0", index, {"name": "H100", "pstate": "P0", fact: value, **more})
        for index, value in enumerate(values)
    ]


def test_an_outlier_among_neighbours_is_seen_and_a_busy_one_is_not() -> None:
    assert [one.subject for one in peers.incidents(node("temperature_c", [34, 35, 38, 66]))] == ["GPU 3 0000:03:00.0"]
    busy = node("temperature_c", [34, 35, 38, 66], utilisation_percent=0.0)
    busy[3].values["utilisation_percent"] = 99.0
    assert peers.incidents(busy) == []
    assert peers.incidents(node("temperature_c", [34, 66])) == []
    assert [one.code for one in peers.incidents(node("nvlinks_up", [18, 18, 18, 17]))] == ["nvlink_down"]


def test_every_action_of_every_table_starts_with_a_known_word() -> None:
    actions = [row.action for row in checks.rules()] + [row.action for row, _pattern in texts._known()]
    actions += [row.action for row in outcomes.tables.load("health_outcomes.toml", outcomes.KnownOutcome)]
    actions += [row.action for row in checks.xid._table().values()]
    assert {incident.word(action) for action in actions} <= set(incident.STRENGTH)


@pytest.mark.skipif(not CASES.is_dir(), reason="no ../shared beside this checkout")
def test_tables_of_eight_gpu_nodes_warn_only_where_one_board_is_hot() -> None:
    """No estimate of false alarms: the limit was chosen on these tables. They hold no ECC, PCIe, NVLink or programs."""
    codes = []
    for line in (CASES / "controls_8xh100.jsonl").read_text().splitlines():
        row = json.loads(line)
        gpus = [
            GpuReading("table", f"0000:{index:02x}:00.0", index, {"name": "H100 80GB HBM3", "pstate": f"P{row['pstate'][index]}",
                       "power_w": float(row["power_w"][index]),
                       "temperature_c": float(row["temp_c"][index]), "memory_used_mib": float(row["mem_mib"][index]),
                       "utilisation_percent": float(row["util"][index])})
            for index in range(8)
        ]  # fmt: skip
        codes += [one.code for gpu in gpus for one in checks.incidents(gpu)] + [one.code for one in peers.incidents(gpus)]
    assert codes == ["temperature_outlier"] * 21


@pytest.mark.skipif(not CASES.is_dir(), reason="no ../shared beside this checkout")
def test_real_captures_are_read_as_a_competent_reader_would() -> None:
    folder, wrong = CASES / "gpu_captures", []
    for case in json.loads((folder / "index.json").read_text())["samples"]:
        text = (folder / case["file"]).read_text(encoding="utf-8", errors="replace")
        result = report.judge(captures.read([("capture", text)]))
        accepted = {case["expected_overall"], *(case.get("acceptable_overall") or [])}
        word = incident.word(result.findings[0].action) if result.findings else "none"
        if result.verdict not in accepted or word not in case["acceptable_actions"]:
            wrong.append((case["file"], result.verdict, word))
    assert wrong == []

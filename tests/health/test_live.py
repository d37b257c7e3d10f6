"""The live look, with the real pynvml over a stand-in driver library, one process a scenario."""

from pathlib import Path

from skillserver.health import live, report
from skillserver.health.report import GpuHealth

BUS = [f"0000:{bus}:00.0" for bus in ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db")]


def look(bus: Path, root: Path, deadline_s: float = 30.0) -> GpuHealth:
    return report.judge(*live.look(deadline_s, bus, root))


def codes(result: GpuHealth) -> dict[str, str]:
    return {finding.code: finding.severity for finding in result.findings}


def test_eight_sound_gpus_are_ok_and_the_kernel_log_is_said_to_be_missing(scenario, bus, tmp_path) -> None:
    scenario()
    result = look(bus(*BUS), tmp_path)
    assert (result.verdict, codes(result), [gpu.pci for gpu in result.gpus]) == ("ok", {}, BUS)
    assert "kernel log" in result.skipped[0].why


def test_each_fault_is_told_with_its_gpu_and_the_worst_comes_first(scenario, bus, tmp_path) -> None:
    scenario("gpu1.remap.pending=1", "gpu3.reasons=0x88", "gpu5.ecc.vol.unc=1", "gpu7.nvlink.down_mask=0x4")
    result = look(bus(*BUS), tmp_path)
    assert result.verdict == "critical"
    assert {finding.code: finding.subject for finding in result.findings} == {
        "ecc_uncorrectable": "GPU 5 0000:bb:00.0", "nvlink_down": "GPU 7 0000:db:00.0", "row_remap_pending": "GPU 1 0000:3b:00.0",
        "hw_power_brake": "GPU 3 0000:5d:00.0"}  # fmt: skip
    assert [finding.severity for finding in result.findings] == ["critical", "critical", "warning", "warning"]


def test_a_missing_gpu_is_named_by_its_pci_id_because_indices_shift(scenario, bus, tmp_path) -> None:
    scenario("gpu6.missing=1")
    result = look(bus(*BUS), tmp_path)
    assert (result.verdict, result.findings[0].code, result.findings[0].subject) == ("critical", "gpu_missing", "GPU 0000:cb:00.0")
    assert (result.gpus[6].index, result.gpus[6].pci) == (6, "0000:db:00.0")


def test_inside_a_job_fewer_gpus_than_on_the_bus_are_not_missing(scenario, bus, tmp_path, monkeypatch) -> None:
    scenario("gpu6.missing=1")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    result = look(bus(*BUS), tmp_path)
    assert (result.verdict, codes(result)) == ("ok", {})
    assert any("a SLURM job" in skipped.why for skipped in result.skipped)


def test_a_lost_gpu_is_critical_and_the_others_are_read(scenario, bus, tmp_path) -> None:
    for how in ("calls", "handle"):
        scenario(f"gpu5.lost={how}")
        result = look(bus(*BUS) if how == "calls" else tmp_path / "devices", tmp_path)
        assert (result.verdict, codes(result), len(result.gpus)) == ("critical", {"gpu_lost": "critical"}, 8)
        assert result.findings[0].subject == "GPU 5 0000:bb:00.0"


def test_a_hung_gpu_is_cut_by_the_deadline_and_what_was_read_before_is_kept(scenario, bus, tmp_path) -> None:
    scenario("gpu2.delay_ms=60000")
    result = look(bus(*BUS), tmp_path, deadline_s=3.0)
    assert (result.verdict, codes(result)) == ("warning", {"driver_not_answering": "warning"})
    assert result.findings[0].subject == "GPU 2"
    assert len(result.gpus) == 2


def test_a_driver_that_is_silent_for_long_is_critical() -> None:
    answer = live.host.DriverAnswer(count=8, asking=4, cut=True)
    assert live._silence(answer, 30.0, live.Facts())[0].severity == "critical"


def test_a_version_mismatch_is_a_matter_of_set_up(scenario, bus, tmp_path) -> None:
    scenario("gpus=1", "init_error=18", healthy=False)
    result = look(bus(), tmp_path)
    assert (result.verdict, codes(result)) == ("critical", {"driver_library_mismatch": "critical"})
    assert result.findings[0].action.startswith("fix_setup")


def test_without_a_driver_the_answer_is_unknown_and_says_what_to_paste(bus, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    result = look(bus(), tmp_path)
    assert (result.verdict, result.findings, result.gpus) == ("unknown", [], [])
    assert "captures=" in result.skipped[0].why


def test_devices_on_the_bus_without_a_driver_are_a_warning(scenario, bus, tmp_path, monkeypatch) -> None:
    scenario("gpus=1", "init_error=9", healthy=False)
    assert codes(look(bus(BUS[0]), tmp_path)) == {"driver_not_loaded": "warning"}


def test_a_consumer_card_that_supports_little_is_sound(scenario, bus, tmp_path) -> None:
    scenario("gpus=1", "driver=580.1", "gpu0.name=NVIDIA GeForce RTX 4090", "gpu0.busid=00000000:01:00.0", "gpu0.pstate=8", "gpu0.remap.corr=0",
             "gpu0.remap.pending=1", "gpu0.temp=33", "gpu0.pcie.gen=1", "gpu0.pcie.maxgen=4", healthy=False)  # fmt: skip
    assert look(bus("0000:01:00.0"), tmp_path).verdict == "ok"


def test_an_error_that_nvml_does_not_explain_is_a_warning_of_that_gpu(scenario, bus, tmp_path) -> None:
    scenario("gpu2.err.nvmlDeviceGetPowerUsage=999", "gpu3.err.nvmlDeviceGetName=4")
    result = look(bus(*BUS), tmp_path)
    assert {finding.code: (finding.severity, finding.subject) for finding in result.findings} == {
        "query_error": ("warning", "2 GPUs: GPU 2 0000:4c:00.0, GPU 3 0000:5d:00.0")}  # fmt: skip


def test_a_fabric_that_did_not_come_up_is_critical_though_its_state_says_completed(scenario, bus, tmp_path) -> None:
    scenario("gpu*.fabric.status=23")
    result = look(bus(*BUS), tmp_path)
    assert codes(result) == {"fabric_failed": "critical"}
    assert result.findings[0].count == 8

"""What the numbers of a storage benchmark are said to mean, and the tool over them."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from skillserver import permissions
from skillserver.errors import BadRequest, NotHere
from skillserver.permissions import Permissions
from skillserver.procedures import judged_storage_bench
from skillserver.tools.storage_bench import run_storage_bench

pytestmark = pytest.mark.usefixtures("own_place")


def by_fio(name: str, way: str, gb_s: float, iops: float, **options: str) -> dict[str, Any]:
    side = {"io_bytes": 10**9, "bw_bytes": gb_s * 1e9, "bw": 1, "iops": iops, "runtime": 60_000, "clat_ns": {"percentile": {"99.000000": 2e6}},
            "lat_ns": {"mean": 1e6}}  # fmt: skip
    empty = {"io_bytes": 0, "bw_bytes": 0, "bw": 0, "iops": 0, "runtime": 0, "clat_ns": {}, "lat_ns": {}}
    job = {"jobname": name, "error": 0, "job options": {"direct": "1", "ioengine": "libaio", **options}, "read": empty, "write": empty} | {way: side}
    return {"name": name, "options": "--direct=1", "fio": {"fio version": "fio-3.36", "global options": {}, "jobs": [job]}}


def rows(write: float = 6.0, large: float = 3.0, small: float = 300_000, changed: float = 200_000) -> list[dict[str, Any]]:
    return [
        by_fio("sequential write", "write", write, write * 119, rw="write", bs="8m", iodepth="4", numjobs="1"),
        by_fio("random read 64k", "read", large, large * 15_000, rw="randread", bs="64k", iodepth="16", numjobs="4"),
        by_fio("random read 4k", "read", small * 4096 / 1e9, small, rw="randread", bs="4k", iodepth="32", numjobs="4"),
        by_fio("random write 4k", "write", changed * 4096 / 1e9, changed, rw="randwrite", bs="4k", iodepth="32", numjobs="4"),
    ]


def payload(measured: list[dict[str, Any]], kind: str = "xfs", **more: Any) -> dict[str, Any]:
    rates = {"create": 5000.0, "open_read": 9000.0, "stat": 3e5, "list": 1e6, "rename": 1e5, "delete": 9000.0}
    told = {
        "folder": "/scratch/me", "mount": {"type": kind, "mount": "/scratch", "source": "/dev/nvme0n1", "options": ["rw", "noatime"]},
        "parts": ["data_loading", "checkpoints", "code"], "rows": measured, "failed": {}, "bytes": 2**40, "direct": True, "seconds_each": 60.0,
        "files": {"files": 2000, "file_bytes": 16384, "rates": rates, "fsync_ms": 0.3}, "git": {"status_ms": 12.0}, "used_share": 0.5,
        "torch": {"first_s": 2.4, "again_s": 1.3, "mount": "/"}, "conditions": {"fio": "fio-3.36", "memory_bytes": 2**39}, "partial": False,
    }  # fmt: skip
    return told | more


def verdicts(told: dict[str, Any]) -> list[str]:
    return [one["verdict"] for one in told["needs"]]


def test_a_good_drive_serves_every_need_and_each_says_what_it_was_held_against() -> None:
    told, metrics = judged_storage_bench.answer(payload(rows()))
    assert (told["verdict"], verdicts(told), told["findings"]) == ("ok", ["ok"] * 6, [])
    assert [(one["measured_as"], one["value"], one["unit"]) for one in told["needs"]] == [
        ("sequential write", 6.0, "GB/s"), ("random read 64k", 3.0, "GB/s"), ("random read 4k", 300_000, "IOPS"),
        ("random write 4k", 200_000, "IOPS"), ("small files, open_read", 9000, "files/s"), ("small files, create", 5000, "files/s")]  # fmt: skip
    assert all(one["source"] and one["ok_from"] > one["poor_below"] for one in told["needs"])
    assert told["rows"][2] == {"what": "random read 4k", "gb_s": 1.229, "iops": 300_000, "p99_us": 2000, "in_flight": 128, "seconds": 60}
    assert (metrics["storage random read 4k"].value, metrics["storage sequential write"].unit) == (300_000, "GB/s")
    assert "writes the 1 TB of a 70B model with Adam in 167 s" in " ".join(told["assumptions"])
    assert told["code"]["import_torch"]["same_file_system"] is False


def test_slow_storage_is_one_finding_that_names_every_need_it_fails() -> None:
    slow = payload(
        rows(0.2, 0.03, 3000, 2000), kind="nfs4", mount={"type": "nfs4", "mount": "/home", "source": "srv:/home", "options": ["rw", "vers=4.2"]}
    )
    slow["files"]["rates"] |= {"open_read": 300.0, "create": 90.0}
    told, _ = judged_storage_bench.answer(slow)
    assert (told["verdict"], verdicts(told)) == ("warning", ["warning"] * 6)
    assert [(one["code"], len(one["evidence"])) for one in told["findings"]] == [("storage_slow", 6)]
    assert told["assumptions"][0].startswith("NFS: one server for all clients")
    assert told["file_system"] == {"type": "nfs4", "mount": "/home", "options": "rw,vers=4.2"}
    assert "hardware/storage#nfs-pitfalls" in told["sections"]


def test_memory_and_the_page_cache_are_never_called_fit() -> None:
    told, _ = judged_storage_bench.answer(payload(rows(), kind="tmpfs"))
    assert (told["verdict"], set(verdicts(told))) == ("unknown", {"unknown"})
    cached, _ = judged_storage_bench.answer(payload(rows(), direct=False))
    assert verdicts(cached)[:4] == ["ok", "unknown", "unknown", "unknown"]
    assert judged_storage_bench.CACHED in cached["assumptions"]


def test_more_than_the_medium_can_give_is_doubted() -> None:
    told, _ = judged_storage_bench.answer(payload(rows(large=40.0)))
    assert verdicts(told)[1] == "unknown"
    assert "was it the page cache?" in told["needs"][1]["reason"]


def test_plain_python_says_that_it_is_a_fallback_and_a_low_figure_of_it_condemns_nothing() -> None:
    plain = [{"name": "random read 4k", "way": "read", "gb_s": 0.04, "iops": 9000.0, "block_bytes": 4096, "in_flight": 16, "seconds": 60.0}]
    told, _ = judged_storage_bench.answer(payload(plain, conditions={"fio": "", "memory_bytes": 2**30}))
    assert verdicts(told)[0] == "unknown"
    assert "only 16 requests in flight" in told["needs"][0]["reason"]
    assert judged_storage_bench.FALLBACK in told["assumptions"]
    slow = [{"name": "sequential write", "way": "write", "gb_s": 0.2, "iops": 25.0, "block_bytes": 2**23, "in_flight": 1, "seconds": 60.0}]
    told, metrics = judged_storage_bench.answer(payload(slow, conditions={"fio": ""}, files={}))
    assert (told["verdict"], told["findings"], "install fio" in told["needs"][0]["reason"]) == ("unknown", [], True)
    assert list(metrics) == ["storage sequential write by plain Python"]  # never beside a figure of fio in a comparison


def test_failed_patterns_files_left_and_a_full_disk_are_told() -> None:
    told, _ = judged_storage_bench.answer(
        payload(rows(), failed={"random write 4k": "error 5: io_u error"}, not_removed=["/scratch/a"], used_share=0.93)
    )
    assert [one["code"] for one in told["findings"]] == ["io_error", "files_left", "nearly_full"]


def test_the_tool_measures_a_folder_keeps_the_result_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    told = run_storage_bench.sync(path=str(tmp_path / "here"), parts=["checkpoints"], size="64MiB", budget_s=6, python=sys.executable, detail=True)
    assert (told.state, [one["measured_as"] for one in told.needs]) == ("done", ["sequential write", "sequential read"])
    assert told.file_system["type"]
    assert told.samples[-1]["what"] == "all"
    kept = json.loads(Path(told.history_file).read_text())
    names = [" ".join(name.split()[:3]) for name in sorted(kept["metrics"])]  # without how, where fio or O_DIRECT is not here
    assert (kept["kind"], names) == ("run_storage_bench", ["storage sequential read", "storage sequential write"])
    assert kept["part"] == f"{told.file_system['type']} at {told.file_system['mount']}"
    assert list((tmp_path / "here").iterdir()) == []


def test_what_may_not_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no_storage: /proc lies on proc"):
        run_storage_bench.sync(path="/proc", python=sys.executable)
    with pytest.raises(BadRequest, match="no_such_folder"):
        run_storage_bench.sync(path=str(tmp_path / "none"))
    with pytest.raises(NotHere, match=r"no_room: .* MiB free; this run writes 1,048,640 MiB"):
        run_storage_bench.sync(path=str(tmp_path), size="1TiB", python=sys.executable)
    permissions.grant(Permissions(read_roots=(tmp_path / "allowed",)))
    with pytest.raises(NotHere, match="path_not_permitted"):
        run_storage_bench.sync(path=str(tmp_path))
    permissions.grant(permissions.TEXT_ONLY)
    with pytest.raises(NotHere, match="not_permitted"):
        run_storage_bench.sync(path=str(tmp_path))

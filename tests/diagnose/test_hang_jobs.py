"""Jobs that really hang, slow down or are well, on gloo: their dumps and stacks are judged. One start for all of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skillserver.diagnose import hang

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).with_name("hang_job.py")


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    env = os.environ | {"TORCH_FR_BUFFER_SIZE": "2000", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([sys.executable, SCRIPT, folder], env=env, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def judged(jobs: Path, *folders: str, kind: str = "*") -> hang.HangDiagnosis:
    return hang.diagnose([path for name in folders for path in sorted((jobs / name).glob(kind))], [])


EXPECTED = {
    "missing": ([1], [0, 2], "warning", "missing_rank"),
    "skipped": ([1], [0, 2], "critical", "collective_type_mismatch"),
    "branch": ([0], [1, 2], "critical", "collective_type_mismatch"),
    "loader": ([1], [0, 2], "warning", "missing_rank"),
    "cycle": ([0, 1], [], "critical", "circular_wait"),
    "subgroup": ([3], [0, 1, 2], "warning", "missing_rank"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_dumps_of_a_hung_job_name_the_culprit(jobs: Path, name: str) -> None:
    found = judged(jobs, f"{name}/second", kind="fr_rank_*")
    assert (found.culprits, found.waiting, found.verdict, found.findings[0].code) == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_dumps_and_stacks_together_say_the_same(jobs: Path, name: str) -> None:
    found = judged(jobs, f"{name}/second")
    assert (found.culprits, found.verdict) == (EXPECTED[name][0], EXPECTED[name][2])
    assert any(line.startswith("stack of rank") for line in found.findings[0].evidence)


def test_a_straggler_is_not_blamed(jobs: Path) -> None:
    for folders in (["straggler/second"], ["straggler/first", "straggler/second"]):
        found = judged(jobs, *folders, kind="fr_rank_*")
        assert (found.culprits, found.verdict != "critical") == ([], True)


def test_nobody_is_blamed_in_a_healthy_job(jobs: Path) -> None:
    for kind in ("*", "fr_rank_*", "stack_*"):
        found = judged(jobs, "healthy/first", "healthy/second", kind=kind)
        assert (found.verdict, found.culprits, found.findings) == ("ok", [], [])


def test_a_rank_that_died_of_a_wrong_size_is_named_by_its_last_dump(jobs: Path) -> None:
    found = judged(jobs, "shape/first", "shape/second", kind="fr_rank_*")
    assert (found.culprits, found.verdict, found.findings[0].code) == ([2], "critical", "collective_size_mismatch")


def test_without_its_last_dump_the_dead_rank_is_said_to_have_none(jobs: Path) -> None:
    found = judged(jobs, "shape/second", kind="fr_rank_*")
    assert found.verdict == "warning"
    assert "no dump of rank 2" in found.skipped


def test_two_equal_looks_half_a_minute_apart_make_it_certain(jobs: Path) -> None:
    for path in (jobs / "missing/first").glob("fr_rank_*"):
        written = (jobs / "missing/second" / path.name).stat().st_mtime
        os.utime(path, (written - 30, written - 30))
    found = judged(jobs, "missing/first", "missing/second", kind="fr_rank_*")
    assert (found.verdict, found.culprits) == ("critical", [1])
    assert "nothing moved between two dumps" in found.findings[0].reason


def test_a_stuck_data_loader_shows_in_the_stacks_alone(jobs: Path) -> None:
    found = judged(jobs, "loader/second", kind="stack_*")
    assert (found.culprits, found.waiting, found.verdict) == ([1], [0, 2], "warning")
    assert "waits for data" in found.findings[0].reason


def test_two_ranks_that_both_receive_first_are_not_the_fault_of_a_third(jobs: Path) -> None:
    """gloo records no send or recv: dumps alone say so, and stacks never become certain about who is awaited."""
    found = judged(jobs, "exchange/second", kind="fr_rank_*")
    assert found.culprits == [] and "cannot show a send or recv" in found.summary and "py-spy" in found.next
    for path in (jobs / "exchange/first").glob("stack_*"):
        written = (jobs / "exchange/second" / path.name).stat().st_mtime
        os.utime(path, (written - 30, written - 30))
    found = judged(jobs, "exchange/first", "exchange/second", kind="stack_*")
    assert (found.verdict, found.waiting) == ("warning", [0, 1])
    assert "waits for its partner only" in found.findings[0].reason


def test_the_place_in_the_program_is_shown(jobs: Path) -> None:
    text = " ".join(judged(jobs, "branch/second", kind="fr_rank_*").findings[0].evidence)
    assert "broadcast" in text and "branch (hang_job.py:" in text

import asyncio

import pytest

from skillserver import contract, permissions
from skillserver.errors import BadRequest, NotHere
from skillserver.jobs import manager
from skillserver.jobs.store import JobRecord, Store
from skillserver.tools.jobs import SHOWN_JOBS, wait_job


@pytest.fixture(autouse=True)
def own_manager(tmp_path, monkeypatch):
    """A manager over an empty home."""
    monkeypatch.setattr(manager, "default", manager.Manager(Store(tmp_path)))
    before = permissions.current()
    yield
    permissions.grant(before)


async def work(handle):
    await handle.progress(1, 2, "half")
    return {"best": 1}


def test_a_finished_job_gives_its_result():
    record = asyncio.run(manager.start("run_x", {}, work, 20))
    shown = wait_job.sync(job_id=record.job_id, wait_s=0)
    assert (shown.state, shown.tool, shown.result, shown.progress) == ("done", "run_x", {"best": 1}, None)
    assert contract.document(shown)["job_id"] == record.job_id


def test_a_running_job_is_waited_for_and_cancelled():
    async def endless(handle):
        handle.keep({"best": 7})
        await handle.progress(1, 3, "a third")
        await asyncio.Event().wait()

    async def whole():
        async with manager.keeping():
            record = await manager.start("run_x", {}, endless, 0)
            while not manager.default.jobs[record.job_id].record.progress:
                await asyncio.sleep(0)
            return await wait_job(job_id=record.job_id, wait_s=0), await wait_job(), await wait_job(job_id=record.job_id, cancel=True)

    running, listed, cancelled = asyncio.run(whole())
    assert (running.state, running.progress["message"]) == ("running", "a third")
    assert running.next == listed.next == f'wait_job(job_id="{running.job_id}")'
    assert [(job.state, job.message) for job in listed.jobs] == [("running", "a third")]
    assert (cancelled.state, cancelled.result) == ("cancelled", {"best": 7, "partial": True})


def test_without_an_id_the_jobs_are_listed_newest_first_and_the_rest_is_counted():
    for number in range(SHOWN_JOBS + 2):
        record = JobRecord.new("run_x", {}).model_copy(update={"state": "failed", "created": f"2026-01-{number + 1:02d}",
                                                               "error": {"code": "gone", "message": "it went"}})  # fmt: skip
        manager.default.store.save(record)
    (manager.default.store.folder / "run_x-00000000.json").write_text("{")
    listed = wait_job.sync()
    assert (listed.state, len(listed.jobs), listed.jobs[0].created, listed.jobs[0].message) == ("listed", SHOWN_JOBS, "2026-01-22", "gone: it went")
    assert listed.skipped[0] == "2 older jobs; each is still found by its id"
    assert "is not a job record" in listed.skipped[1]


def test_an_unknown_id_and_a_cancel_without_id_name_the_known_jobs():
    record = asyncio.run(manager.start("run_x", {}, work, 20))
    with pytest.raises(BadRequest) as caught:
        wait_job.sync(job_id="run_x-12345678")
    assert caught.value.valid == [record.job_id]
    with pytest.raises(BadRequest, match="no_job_id"):
        wait_job.sync(cancel=True)


def test_waiting_longer_than_a_client_would_is_refused():
    with pytest.raises(BadRequest, match="wait_s: 60 should be less than or equal to 45"):
        wait_job.sync(wait_s=60)


def test_a_server_of_text_shows_no_jobs():
    permissions.grant(permissions.TEXT_ONLY)
    with pytest.raises(NotHere, match="not_permitted"):
        wait_job.sync()


def test_an_empty_list_says_what_would_fill_it():
    shown = wait_job.sync()
    assert (shown.state, shown.jobs, shown.next) == ("listed", [], "no job is recorded here; a run_* tool starts one")

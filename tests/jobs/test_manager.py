import asyncio

import anyio
import pytest

from skillserver.errors import BadRequest, NotHere, TooLong, WorkerFailed
from skillserver.jobs.manager import Manager
from skillserver.jobs.store import JobRecord, Store
from skillserver.progress import listening


@pytest.fixture
def manager(tmp_path):
    return Manager(Store(tmp_path))


async def quick(handle):
    await handle.progress(1, 2, "half")
    return {"best": 3}


async def endless(handle):
    await handle.progress(1, 3, "a third")
    handle.keep({"best": 1})
    await asyncio.Event().wait()


async def begun(manager, work=endless):
    """A job that was handed over and has reported."""
    record = await manager.start("run_x", {}, work, 0, shape=shaped)
    while not manager.jobs[record.job_id].record.progress:
        await asyncio.sleep(0)
    return record


def shaped(payload):
    return {"value": payload["best"]}


def test_a_quick_job_is_done_within_its_call(manager):
    record = asyncio.run(manager.start("run_x", {"a": 1}, quick, 20, shape=shaped))
    assert (record.state, record.result, record.arguments, record.note) == ("done", {"value": 3}, {"a": 1}, "")
    assert manager.store.load(record.job_id) == record


def test_progress_reaches_the_listener_of_the_call(manager):
    heard = []

    async def listener(done, total, message):
        heard.append((done, total, message))

    async def whole():
        with listening(listener):
            await manager.start("run_x", {}, quick, 20)

    asyncio.run(whole())
    assert heard == [(1.0, 2, "half")]


def test_a_call_without_a_server_waits_to_the_end_whatever_its_wait(manager):
    gate = asyncio.Event()

    async def work(handle):
        await gate.wait()
        return {}

    async def whole():
        asyncio.get_running_loop().call_later(0.05, gate.set)
        return await manager.start("run_x", {}, work, 0)

    assert asyncio.run(whole()).state == "done"


def test_in_a_server_a_long_job_is_handed_over_and_waited_for(manager):
    manager.keeps, gate = True, asyncio.Event()

    async def work(handle):
        await gate.wait()
        return {"best": 4}

    async def whole():
        record = await manager.start("run_x", {}, work, 0, shape=shaped)
        told = await manager.wait(record.job_id, 0)
        gate.set()
        return record, told, await manager.wait(record.job_id, 45)

    record, told, ended = asyncio.run(whole())
    assert (record.state, record.next) == ("running", f'wait_job(job_id="{record.job_id}")') == (told.state, told.next)
    assert (ended.state, ended.result) == ("done", {"value": 4})


def test_a_refused_job_keeps_its_error_and_its_partial(manager):
    async def work(handle):
        handle.keep({"best": 1})
        raise TooLong("too_long", "no result in 5 s", next="ask for less")

    record = asyncio.run(manager.start("run_x", {}, work, 20, shape=shaped))
    assert (record.state, record.result, record.error["code"], record.next) == ("failed", {"value": 1, "partial": True}, "too_long", "ask for less")


def test_a_bug_is_raised_and_stands_in_the_record(manager):
    async def work(handle):
        return {}["missing"]

    with pytest.raises(KeyError):
        asyncio.run(manager.start("run_x", {}, work, 20))
    (record,), _ = manager.store.all()
    assert (record.state, record.error["message"]) == ("failed", "KeyError: 'missing'")


def test_a_bug_in_the_shape_of_a_partial_still_ends_the_record(manager):
    async def work(handle):
        handle.keep({"unexpected": 1})
        raise WorkerFailed("gone", "it went")

    with pytest.raises(KeyError):
        asyncio.run(manager.start("run_x", {}, work, 20, shape=shaped))
    assert manager.store.all()[0][0].state == "failed"


def test_cancelling_a_job_keeps_the_best_so_far(manager):
    manager.keeps = True

    async def whole():
        record = await begun(manager)
        return await manager.cancel(record.job_id), await manager.cancel(record.job_id)

    first, again = asyncio.run(whole())
    assert (first.state, first.result) == (again.state, again.result) == ("cancelled", {"value": 1, "partial": True})


def test_a_server_call_that_is_cancelled_takes_its_job_with_it(manager):
    manager.keeps = True

    async def whole():
        with anyio.CancelScope() as scope:

            async def work(handle):
                asyncio.get_running_loop().call_soon(scope.cancel)
                await endless(handle)

            await manager.start("run_x", {}, work, 30, shape=shaped)
        return scope.cancelled_caught

    assert asyncio.run(whole())
    (record,), _ = manager.store.all()
    assert (record.state, record.result) == ("cancelled", {"value": 1, "partial": True})


def test_a_call_cancelled_before_its_job_took_a_step_leaves_no_running_record(manager):
    manager.keeps = True

    async def whole():
        call = asyncio.create_task(manager.start("run_x", {}, endless, 30))
        while not manager.jobs:
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})

    asyncio.run(whole())
    assert [record.state for record in manager.store.all()[0]] == ["cancelled"]


def test_without_a_server_an_interrupted_call_returns_the_best_so_far(manager):
    async def whole():
        call = asyncio.current_task()

        async def work(handle):
            asyncio.get_running_loop().call_soon(call.cancel)
            await endless(handle)

        return await manager.start("run_x", {}, work, 20, shape=shaped)

    record = asyncio.run(whole())
    assert (record.state, record.result) == ("cancelled", {"value": 1, "partial": True})


def test_a_handed_over_job_survives_a_cancelled_wait(manager):
    manager.keeps = True

    async def whole():
        record = await begun(manager)
        with anyio.move_on_after(0.01):
            await manager.wait(record.job_id, 45)
        state = (await manager.wait(record.job_id, 0)).state
        await manager.shutdown()
        return state, manager.store.load(record.job_id).state

    assert asyncio.run(whole()) == ("running", "cancelled")


def test_an_unknown_job_lists_the_known(manager):
    async def whole():
        record = await manager.start("run_x", {}, quick, 20)
        with pytest.raises(BadRequest) as caught:
            await manager.wait("run_x-00000000", 0)
        return record.job_id, caught.value.valid

    known, listed = asyncio.run(whole())
    assert listed == [known]


def test_a_job_elsewhere_is_not_cancelled_from_here(manager):
    record = JobRecord.new("run_x", {}).model_copy(update={"host": "node17"})
    manager.store.save(record)
    assert asyncio.run(manager.wait(record.job_id, 0)).state == "elsewhere"
    with pytest.raises(NotHere, match="runs on host node17"):
        asyncio.run(manager.cancel(record.job_id))


def test_a_home_that_cannot_be_written_does_not_stop_the_job(tmp_path):
    (tmp_path / "file").write_text("")
    manager = Manager(Store(tmp_path / "file" / "home"))

    async def whole():
        record = await manager.start("run_x", {}, quick, 20)
        return record, await manager.wait(record.job_id, 0), await manager.list()

    record, found, (listed, _) = asyncio.run(whole())
    assert (record.state, found.state, [one.job_id for one in listed]) == ("done", "done", [record.job_id])
    assert "kept in memory only" in record.note

"""A worker's name: taken, kept by heartbeats, lost to another, removed; and its own queue."""

import os
import socket
import subprocess
import time
from collections.abc import Collection, Sequence

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.model import Queue, QueueView, Record
from holdfast.core.workers import KIND, ORDER_KIND, WorkerOrder, WorkerRecord, worker_queue
from holdfast.engines.base import Saved
from holdfast.errors import OutcomeUnknown, UsageError
from holdfast.ops.records import scan
from holdfast.ops.workers import Workers
from holdfast.testing.clock import ManualClock
from holdfast.worker.supervisor.registration import Registration, start_ticks
from tests.worker.doubles import TroubledEngine

HOST = socket.gethostname()


@pytest.fixture
async def engine(clock: ManualClock) -> TroubledEngine:
    engine = TroubledEngine(clock)
    await engine.open()
    return engine


def facts(id: str = "1", **more: object) -> WorkerRecord:
    fixed = {"name": "", "id": id, "host": HOST, "pid": os.getpid()}
    now = {"started_at": time.time_ns() // 1_000_000}
    return WorkerRecord(**fixed | now | more)  # type: ignore[arg-type]


def registration(engine: TroubledEngine, id: str = "1", **more: object) -> Registration:
    told = facts(id, **more)
    return Registration(engine, lambda: told)


async def stored(engine: TroubledEngine) -> list[Record]:
    return [record async for record in scan(engine, KIND)]


async def names(engine: TroubledEngine) -> list[str]:
    return [record.key for record in await stored(engine)]


async def test_a_name_and_a_queue_of_its_own(engine: TroubledEngine) -> None:
    mine = registration(engine)
    assert await mine.enter("mail-1") == mine.name == "mail-1"
    assert await names(engine) == ["mail-1"]
    assert worker_queue("mail-1") in {view.queue.name for view in await engine.queues()}
    await mine.leave()
    assert await names(engine) == []


async def test_its_queue_is_left_as_an_operator_made_it(engine: TroubledEngine) -> None:
    """Even if it was created after the search for it."""
    made = Queue(name=worker_queue("mail-1"), paused=True)
    looked = engine.queues

    async def too_early(
        *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        return [view for view in await looked(names=names, counts=counts) if view.queue != made]

    await engine.declare(made)
    engine.queues = too_early  # type: ignore[method-assign]
    await registration(engine).enter("mail-1")
    assert made in [view.queue for view in await looked()]


async def test_workers_without_names_are_numbered(engine: TroubledEngine) -> None:
    entered = [await registration(engine, str(number)).enter(None) for number in range(3)]
    stem = entered[0].removesuffix("1")
    assert entered == [f"{stem}{number}" for number in (1, 2, 3)]


async def test_the_first_free_number_is_taken(engine: TroubledEngine) -> None:
    registrations = [registration(engine, str(number)) for number in range(3)]
    entered = [await each.enter(None) for each in registrations]
    await registrations[1].leave()
    assert await registration(engine, "9").enter(None) == entered[1]


async def test_a_name_that_is_in_use_is_refused(engine: TroubledEngine) -> None:
    await registration(engine, "1", host="elsewhere").enter("w")
    with pytest.raises(UsageError, match="a worker named w is already running"):
        await registration(engine, "2").enter("w")


@pytest.mark.parametrize("name", ["", "a b", "x" * 200, "ä", "a/b"])
async def test_invalid_names_are_refused(engine: TroubledEngine, name: str) -> None:
    if name:
        with pytest.raises(UsageError, match="is not a valid worker name"):
            await registration(engine).enter(name)
    else:
        assert await registration(engine).enter(name)


async def test_two_workers_that_take_a_name_at_once(engine: TroubledEngine) -> None:
    """The one that comes second must not go on under the name of the first."""
    save = engine.save

    async def overtaken(records: Sequence[Record]) -> list[Saved]:
        engine.save = save  # type: ignore[method-assign]
        await registration(engine, "1").enter("w")
        return await save(records)

    engine.save = overtaken  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="a worker named w is already running"):
        await registration(engine, "2").enter("w")


async def test_an_old_record_is_taken_over(engine: TroubledEngine, clock: ManualClock) -> None:
    await registration(engine, "1", host="elsewhere").enter("w")
    clock.advance(60_000)
    with pytest.raises(UsageError):
        await registration(engine, "2").enter("w")
    clock.advance(1)
    mine = registration(engine, "2")
    assert (await mine.enter("w"), mine.before) == ("w", "")


async def test_a_dead_process_of_this_host_is_gone_at_once(engine: TroubledEngine) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    await registration(engine, "1", pid=process.pid).enter("w")
    mine = registration(engine, "2")
    assert (await mine.enter("w"), mine.before) == ("w", "1")


async def test_a_reused_process_id_is_not_the_worker(
    engine: TroubledEngine,
) -> None:
    """As in a restarted container, where process ids repeat."""
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    await registration(engine, "1", start_ticks=ticks - 1).enter("w")
    mine = registration(engine, "2", start_ticks=ticks)
    assert (await mine.enter("w"), mine.before) == ("w", "1")
    with pytest.raises(UsageError):
        await registration(engine, "3").enter("w")


async def test_a_zombie_is_gone(engine: TroubledEngine) -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    await registration(engine, "1", pid=process.pid).enter("w")
    assert await registration(engine, "2").enter("w") == "w"
    process.wait()


async def test_dead_workers_of_this_host_are_found(engine: TroubledEngine) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    await registration(engine, "dead", pid=process.pid).enter("a")
    await registration(engine, "alive").enter("b")
    await registration(engine, "far", pid=process.pid, host="elsewhere").enter("c")
    await registration(engine, "named", pid=process.pid).enter("w")
    mine = registration(engine, "mine")
    await mine.enter("w")
    assert await mine.dead_here() == ["named", "dead"]


async def test_heartbeats_renew_the_record(engine: TroubledEngine, clock: ManualClock) -> None:
    mine = registration(engine)
    await mine.enter("w")
    for _ in range(3):
        clock.advance(10_000)
        await mine.heartbeat()
    (record,) = await stored(engine)
    assert (record.age_ms, record.version, mine.name) == (0, 4, "w")


async def test_a_lost_answer_to_a_heartbeat(engine: TroubledEngine) -> None:
    """It was written, but the answer was lost: the record is still this worker's."""
    mine = registration(engine)
    await mine.enter("w")
    save = engine.save

    async def mute(records: list[Record]) -> list[Saved]:
        await save(records)
        raise OutcomeUnknown("the answer was lost")

    engine.save = mute  # type: ignore[method-assign, assignment]
    with pytest.raises(OutcomeUnknown):
        await mine.heartbeat()
    engine.save = save  # type: ignore[method-assign]
    await mine.heartbeat()
    await mine.heartbeat()
    assert (mine.name, await names(engine)) == ("w", ["w"])


async def test_a_worker_that_lost_its_name_takes_another(engine: TroubledEngine) -> None:
    mine = registration(engine, "1")
    await mine.enter("w")
    (record,) = await stored(engine)
    await engine.save(
        [replace(record, value=msgspec.json.encode(facts("2", name="w", host="elsewhere")))]
    )
    await mine.heartbeat()
    assert mine.name != "w"
    assert set(await names(engine)) == {"w", mine.name}
    await mine.leave()
    assert await names(engine) == ["w"]


async def test_a_worker_whose_record_was_deleted_keeps_its_name(engine: TroubledEngine) -> None:
    mine = registration(engine)
    await mine.enter("w")
    (record,) = await stored(engine)
    await engine.save([replace(record, value=None)])
    await engine.drop(worker_queue("w"))
    await mine.heartbeat()
    assert (mine.name, await names(engine)) == ("w", ["w"])
    assert worker_queue("w") in {view.queue.name for view in await engine.queues()}
    await mine.heartbeat()
    assert (mine.name, await names(engine)) == ("w", ["w"])


async def test_leaving_after_a_heartbeat_without_an_answer(engine: TroubledEngine) -> None:
    mine = registration(engine)
    await mine.enter("w")
    (record,) = await stored(engine)
    assert await engine.save([record]) == [Saved.SAVED]
    await mine.leave()
    assert await names(engine) == []


async def test_a_late_leave_does_not_remove_the_next_worker(engine: TroubledEngine) -> None:
    mine = registration(engine, "1")
    await mine.enter("w")
    (record,) = await stored(engine)
    await engine.save([replace(record, value=msgspec.json.encode(facts("2", name="w")))])
    await mine.leave()
    assert await names(engine) == ["w"]


async def test_orders_to_this_name(engine: TroubledEngine) -> None:
    mine = registration(engine)
    await mine.enter("w")
    assert await mine.order() == WorkerOrder()
    order = WorkerOrder(cordoned=True, by="me")
    for name in ("v", "w"):
        await engine.save([Record(kind=ORDER_KIND, key=name, value=msgspec.json.encode(order))])
    assert await mine.order() == order


async def test_records_of_workers_gone_for_a_day_are_removed(
    engine: TroubledEngine, clock: ManualClock
) -> None:
    await registration(engine, "1", host="elsewhere").enter("old")
    clock.advance(86_400_001)
    mine = registration(engine, "2")
    await mine.enter("new")
    await mine.tidy()
    assert await names(engine) == ["new"]


async def test_old_orders_to_missing_workers_are_removed_but_no_cordon(
    engine: TroubledEngine, clock: ManualClock
) -> None:
    """Names may be new with every start; a cordon waits for its worker to come back."""
    workers = Workers(engine)
    for name in ("gone", "cordoned", "new"):
        await workers.nudge(name)
    await registration(engine, "1", host="elsewhere").enter("cordoned")
    await workers.cordon("cordoned")
    clock.advance(86_400_001)
    await workers.nudge("late")
    mine = registration(engine, "2")
    await mine.enter("new")
    await mine.tidy()
    assert sorted(await workers.orders()) == ["cordoned", "late", "new"]

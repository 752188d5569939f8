"""Group commit: which calls are merged, who gets which answer, and cancelled callers."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from holdfast.core import checks
from holdfast.core.model import (
    JobFilter,
    LeaseRequest,
    NewJob,
    Note,
    Queue,
    Receipt,
    Renewal,
    State,
    Status,
)
from holdfast.core.verdict import Complete, Delete, Outcome, Settlement
from holdfast.engines import coalesced
from holdfast.engines.coalesced import Coalesced, _ThreadCall
from holdfast.engines.observed import Observed
from holdfast.engines.registry import open_engine
from holdfast.errors import EngineClosed, EngineUnavailable, UnknownQueue, UsageError
from holdfast.events import EngineCalled, Listeners, ProcessEvent
from holdfast.tracing.engine import TracedEngine
from tests.engines.doubles import GatedEngine
from tests.wait import wait_until

ONE = LeaseRequest(queues=("default",))


@pytest.fixture
async def inner() -> AsyncIterator[GatedEngine]:
    engine = GatedEngine()
    await engine.open()
    yield engine
    engine.gate.set()
    await engine.close()


def job(id: str) -> NewJob:
    return NewJob(id=id, task="t")


async def settle_down() -> None:
    """Let every task that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def hold_back(inner: GatedEngine, engine: Coalesced) -> asyncio.Task[object]:
    """A first call is in flight and waits at the gate."""
    inner.gate.clear()
    inner.called.clear()
    first = asyncio.create_task(engine.enqueue([job("first")]))
    await inner.called.wait()
    return first


async def test_an_idle_engine_is_called_at_once(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    [receipt] = await engine.enqueue([job("a")])
    assert (receipt.id, receipt.status) == ("a", Status.NEW)
    assert inner.calls == [("enqueue", 1)]


async def test_pending_calls_are_merged_and_each_gets_its_own_answers(
    inner: GatedEngine,
) -> None:
    engine = Coalesced(inner)
    first = await hold_back(inner, engine)
    others = [
        asyncio.create_task(engine.enqueue([job(f"{n}-{i}") for i in range(n)])) for n in range(5)
    ]
    await settle_down()
    inner.gate.set()
    for n, other in enumerate(others):
        assert [receipt.id for receipt in await other] == [f"{n}-{i}" for i in range(n)]
    await first
    assert inner.calls == [("enqueue", 1), ("enqueue", 0 + 1 + 2 + 3 + 4)]


async def test_a_batch_is_never_split(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    first = await hold_back(inner, engine)
    others = [
        asyncio.create_task(engine.enqueue([job(f"{n}-{i}") for i in range(99)])) for n in range(25)
    ]
    await settle_down()
    inner.gate.set()
    await asyncio.gather(first, *others)
    assert inner.calls == [("enqueue", 1)] + [("enqueue", 990)] * 2 + [("enqueue", 495)]


async def test_a_big_batch_does_not_wait_for_others(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    first = await hold_back(inner, engine)
    big = asyncio.create_task(engine.enqueue([job(f"{i}") for i in range(100)]))
    await settle_down()
    assert inner.calls == [("enqueue", 1), ("enqueue", 100)]
    inner.gate.set()
    await asyncio.gather(first, big)


async def test_an_outage_is_raised_in_every_caller(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    first = await hold_back(inner, engine)
    others = [asyncio.create_task(engine.enqueue([job(f"{n}")])) for n in range(3)]
    await settle_down()
    inner.errors = [EngineUnavailable("down"), EngineUnavailable("still down")]
    inner.gate.set()
    results = await asyncio.gather(first, *others, return_exceptions=True)
    assert [str(result) for result in results] == ["down", *["still down"] * 3]
    [receipt] = await engine.enqueue([job("later")])
    assert receipt.status is Status.NEW


async def test_an_invalid_call_fails_only_its_own_caller(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    await engine.enqueue([job("a"), job("b")])
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=2))
    inner.gate.clear()
    inner.called.clear()
    first = asyncio.create_task(engine.renew([]))
    await inner.called.wait()
    good = asyncio.create_task(engine.renew([Renewal(lease=leases[0])]))
    bad = asyncio.create_task(engine.renew([Renewal(lease=leases[1], note=Note(progress=7.0))]))
    await settle_down()
    inner.gate.set()
    with pytest.raises(UsageError, match="progress"):
        await bad
    [renewed] = await good
    assert renewed is not None
    assert renewed.id == leases[0].id
    await first


async def test_a_call_cancelled_before_it_is_sent_is_left_out(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    first = await hold_back(inner, engine)
    leaver = asyncio.create_task(engine.enqueue([job("gone")]))
    stayer = asyncio.create_task(engine.enqueue([job("stays")]))
    await settle_down()
    leaver.cancel()
    inner.gate.set()
    await asyncio.gather(first, stayer)
    assert await engine.get("stays") is not None
    assert await engine.get("gone") is None
    with pytest.raises(asyncio.CancelledError):
        await leaver


async def test_a_call_cancelled_in_flight_does_not_break_the_others(
    inner: GatedEngine,
) -> None:
    engine = Coalesced(inner)
    first = await hold_back(inner, engine)
    second = asyncio.create_task(engine.enqueue([job("second")]))
    await settle_down()
    first.cancel()
    inner.gate.set()
    [receipt] = await second
    assert receipt.status is Status.NEW
    assert await engine.get("first") is not None, "in flight already, so it happened"


class Threads:
    """Blocking callers of an engine that is open on the running loop."""

    def __init__(self, engine: Coalesced) -> None:
        self.engine = engine
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(32)

    def call(self, *ids: str) -> asyncio.Future[list[Receipt]]:
        jobs = [job(id_) for id_ in ids]
        return self._loop.run_in_executor(
            self._pool, self.engine.enqueue_blocking, jobs, lambda use: use(self._loop)
        )

    async def arrived(self, count: int) -> None:
        """Wait until this many calls wait to be sent."""
        await asyncio.to_thread(wait_until, lambda: len(self.engine._enqueues._arrived) >= count)


async def test_a_single_blocking_call_is_sent_at_once(inner: GatedEngine) -> None:
    threads = Threads(Coalesced(inner))
    for id_ in "ab":
        [receipt] = await threads.call(id_)
        assert (receipt.id, receipt.status) == (id_, Status.NEW)
    assert inner.calls == [("enqueue", 1)] * 2


async def test_blocking_calls_of_threads_and_tasks_share_the_next_commit(
    inner: GatedEngine,
) -> None:
    engine = Coalesced(inner)
    threads = Threads(engine)
    first = await hold_back(inner, engine)
    blocking = [threads.call(*(f"{n}-{i}" for i in range(n))) for n in range(1, 17)]
    await threads.arrived(16)
    task = asyncio.create_task(engine.enqueue([job("task")]))
    await settle_down()
    inner.gate.set()
    for n, call in enumerate(blocking, 1):
        assert [receipt.id for receipt in await call] == [f"{n}-{i}" for i in range(n)]
    await asyncio.gather(first, task)
    assert inner.calls == [("enqueue", 1), ("enqueue", 1 + sum(range(1, 17)))]


async def test_an_error_of_one_blocking_call_is_not_its_neighbours(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    threads = Threads(engine)
    first = await hold_back(inner, engine)
    calls = []
    for count, id_ in enumerate("abc", 1):
        calls.append(threads.call(id_))
        await threads.arrived(count)
    inner.shuts = True
    inner.gate.set()
    await first
    inner.errors = [UsageError("one of them"), UsageError("this one")]
    inner.shuts = False
    inner.gate.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(result, UsageError) for result in results] == [True, False, False]
    assert str(results[0]) == "this one"
    assert [await engine.get(id_) is not None for id_ in "abc"] == [False, True, True]


def interrupted(use: Callable[[asyncio.AbstractEventLoop], None]) -> None:
    use(asyncio.get_running_loop())
    raise KeyboardInterrupt


async def test_an_interrupted_blocking_call_is_left_out(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    threads = Threads(engine)
    first = await hold_back(inner, engine)
    stays = threads.call("stays")
    await threads.arrived(1)
    with pytest.raises(KeyboardInterrupt):
        engine.enqueue_blocking([job("gone")], interrupted)
    inner.gate.set()
    await asyncio.gather(first, stays)
    assert await engine.get("stays") is not None
    assert await engine.get("gone") is None


async def test_a_blocking_call_that_is_interrupted_in_flight_does_not_keep_others_waiting(
    inner: GatedEngine,
) -> None:
    """Threads that are answered together wake each other."""
    engine = Coalesced(inner)
    threads = Threads(engine)
    loop = asyncio.get_running_loop()
    sent = threading.Event()

    def interrupted_when_sent(use: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        use(loop)
        sent.wait()
        raise KeyboardInterrupt

    def interrupted_call() -> None:
        with pytest.raises(KeyboardInterrupt):
            engine.enqueue_blocking([job("b")], interrupted_when_sent)

    first = await hold_back(inner, engine)
    before = threads.call("a")
    await threads.arrived(1)
    interrupt = asyncio.create_task(asyncio.to_thread(interrupted_call))
    await threads.arrived(2)
    after = threads.call("c")
    await threads.arrived(3)
    inner.shuts = True
    inner.called.clear()
    inner.gate.set()
    await first
    await inner.called.wait()
    sent.set()
    await interrupt
    inner.gate.set()
    async with asyncio.timeout(10):
        assert [receipt.id for receipt in await before + await after] == ["a", "c"]
    assert await engine.get("b") is not None, "in flight already, so it happened"


async def test_a_blocking_call_after_one_that_was_interrupted(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    with pytest.raises(KeyboardInterrupt):
        engine.enqueue_blocking([job("gone")], interrupted)
    await settle_down()
    assert [receipt.id for receipt in await Threads(engine).call("next")] == ["next"]
    assert inner.calls == [("enqueue", 1)]


async def test_a_blocking_call_after_one_that_was_interrupted_while_it_woke_the_loop(
    inner: GatedEngine,
) -> None:
    engine = Coalesced(inner)
    loop = asyncio.get_running_loop()

    def interrupt_once(use: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        use(loop if broken.call_soon_threadsafe.called else broken)

    broken = Mock(**{"call_soon_threadsafe.side_effect": KeyboardInterrupt})
    with pytest.raises(KeyboardInterrupt):
        engine.enqueue_blocking([job("gone")], interrupt_once)
    async with asyncio.timeout(10):
        assert [receipt.id for receipt in await Threads(engine).call("next")] == ["next"]
    assert inner.calls == [("enqueue", 1)]


async def test_a_blocking_call_that_was_answered_is_not_told_that_the_loop_ends() -> None:
    call = _ThreadCall[NewJob, int]([])
    call.succeed([1])
    call.drop()
    assert call.wait() == [1]


async def test_blocking_calls_are_told_when_the_loop_ends(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    threads = Threads(engine)
    await hold_back(inner, engine)
    waiting = [threads.call(id_) for id_ in "ab"]
    await threads.arrived(2)
    assert engine._enqueues._task is not None
    engine._enqueues._task.cancel()
    for call in waiting:
        with pytest.raises(EngineClosed, match="closed before the call was answered"):
            await call
    inner.gate.set()
    assert [receipt.id for receipt in await threads.call("c")] == ["c"], "on the next loop"


async def test_blocking_calls_are_answered_before_the_engine_is_closed(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    threads = Threads(engine)
    first = await hold_back(inner, engine)
    waiting = threads.call("a")
    await threads.arrived(1)
    closing = asyncio.create_task(engine.close())
    await settle_down()
    inner.gate.set()
    assert [receipt.status for receipt in await waiting] == [Status.NEW]
    await asyncio.gather(first, closing)


class DirectEngine(GatedEngine):
    """Can be called past the loop; such a call waits until `may_go`."""

    is_direct = True

    def __init__(self) -> None:
        super().__init__()
        self.went: list[str] = []
        self.may_go = threading.Event()
        self.may_go.set()

    def enqueue_directly(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        assert threading.current_thread() is not threading.main_thread()
        self.went += [job.id for job in jobs]
        self.may_go.wait()
        if jobs[0].id == "refused":
            return [checks.refusal("refused", UnknownQueue("there is none"))]
        return [Receipt(id=job.id, status=Status.NEW) for job in jobs]


async def test_a_blocking_call_with_none_beside_it_goes_past_the_loop() -> None:
    inner = DirectEngine()
    threads = Threads(Coalesced(Observed(inner, Listeners())))
    for id_ in "ab":
        [receipt] = await threads.call(id_)
        assert (receipt.id, receipt.status) == (id_, Status.NEW)
    assert (inner.went, inner.calls) == (["a", "b"], [])


async def test_a_blocking_call_beside_another_goes_over_the_loop() -> None:
    inner = DirectEngine()
    await inner.open()
    engine = Coalesced(inner)
    threads = Threads(engine)
    first = await hold_back(inner, engine)
    beside = threads.call("beside one on the loop")
    await threads.arrived(1)
    inner.gate.set()
    await asyncio.gather(first, beside)
    await settle_down()
    for n in range(coalesced._CALLS_AFTER_MEETING):
        await threads.call(f"after it {n}")
        await settle_down()
    assert inner.went == [], "others would share their commits"
    inner.calls.clear()
    inner.may_go.clear()
    direct = threads.call("direct")
    await asyncio.to_thread(wait_until, lambda: inner.went)
    await threads.call("beside one in a thread")
    inner.may_go.set()
    await direct
    assert (inner.went, inner.calls) == (["direct"], [("enqueue", 1)])


async def test_calls_of_several_jobs_and_calls_with_listeners_go_over_the_loop() -> None:
    inner = DirectEngine()
    await inner.open()
    told: list[ProcessEvent] = []
    threads = Threads(Coalesced(Observed(inner, told.append)))
    await threads.call("heard")
    assert len(told) == 1
    await Threads(Coalesced(inner)).call("two", "jobs")
    assert (inner.went, inner.calls) == ([], [("enqueue", 1), ("enqueue", 2)])


async def test_a_wrapper_that_knows_nothing_of_it_is_not_left_out() -> None:
    inner = DirectEngine()
    await inner.open()
    for wrapped in (TracedEngine(inner), Observed(TracedEngine(inner), Listeners())):
        await Threads(Coalesced(wrapped)).call(f"in {type(wrapped).__name__}")
    assert (inner.went, inner.calls) == ([], [("enqueue", 1)] * 2)


async def test_a_job_refused_past_the_loop_is_enqueued_over_it() -> None:
    inner = DirectEngine()
    await inner.open()
    asked: list[str] = []

    async def enqueue(jobs: Sequence[NewJob]) -> list[Receipt]:
        asked.extend(job.id for job in jobs)
        return await inner.enqueue(jobs)

    [receipt] = await Threads(Coalesced(inner, enqueue)).call("refused")
    assert receipt.status is Status.NEW
    assert (inner.went, asked) == (["refused"], ["refused"])


async def test_an_error_past_the_loop_is_raised_and_the_next_call_goes_there_again() -> None:
    inner = DirectEngine()
    threads = Threads(Coalesced(inner))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inner, "may_go", Mock(**{"wait.side_effect": EngineUnavailable("down")}))
        with pytest.raises(EngineUnavailable, match="down"):
            await threads.call("a")
    await threads.call("b")
    assert (inner.went, inner.calls) == (["a", "b"], [])


async def test_a_caller_that_must_not_block_is_refused_before_it_does() -> None:
    inner = DirectEngine()

    def refuse(use: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        raise UsageError("this is the loop's own thread")

    with pytest.raises(UsageError, match="own thread"):
        Coalesced(inner).enqueue_blocking([job("a")], refuse)
    assert inner.went == []


async def test_threads_that_were_answered_together_are_awaited(
    inner: GatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here for an hour; in fact no longer than their call took."""
    monkeypatch.setattr(coalesced, "_REGROUP_S_MAX", 3_600)
    engine = Coalesced(inner)
    threads = Threads(engine)
    first = await hold_back(inner, engine)
    again = [threads.call(id_) for id_ in "ab"]
    await threads.arrived(2)
    sent = engine._enqueues._send

    async def send_for_an_hour(jobs: Any) -> list[Receipt]:
        receipts = await sent(jobs)
        monkeypatch.setattr(coalesced, "monotonic", lambda: 3_600.0 + time.monotonic())
        return receipts

    monkeypatch.setattr(engine._enqueues, "_send", send_for_an_hour)
    inner.gate.set()
    await asyncio.gather(first, *again)
    one = threads.call("c")
    await threads.arrived(1)
    await settle_down()
    assert inner.calls == [("enqueue", 1), ("enqueue", 2)]
    await asyncio.gather(one, threads.call("d"))
    assert inner.calls == [("enqueue", 1), ("enqueue", 2), ("enqueue", 2)]


async def test_equal_lease_requests_share_in_order(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    await engine.enqueue([job(f"{i}") for i in range(6)])
    inner.gate.clear()
    inner.shuts = True
    inner.called.clear()
    inner.calls.clear()
    first = asyncio.create_task(engine.lease(ONE))
    await inner.called.wait()
    two, three, four = (
        asyncio.create_task(engine.lease(LeaseRequest(queues=("default",), limit=limit)))
        for limit in (2, 3, 4)
    )
    await settle_down()
    inner.gate.set()
    assert [lease.id for lease in await first] == ["0"]
    other = asyncio.create_task(engine.lease(LeaseRequest(queues=("default",), worker="else")))
    await settle_down()
    inner.gate.set()
    assert [lease.id for lease in await two] == ["1", "2"]
    assert [lease.id for lease in await three] == ["3", "4", "5"]
    assert await four == []
    assert inner.calls == [("lease", 1), ("lease", 2 + 3 + 4), ("lease", 1)]
    inner.gate.set()
    assert await other == []


async def test_the_batch_of_a_group_goes_to_one_caller(inner: GatedEngine) -> None:
    """Divided among callers, its jobs would run side by side."""
    engine = Coalesced(inner)
    await engine.declare(Queue(name="default", group_batch=3))
    await engine.enqueue(
        [NewJob(id=f"{group}{n}", task="t", group=group) for group in "gh" for n in range(4)]
    )
    inner.gate.clear()
    callers = [asyncio.create_task(engine.lease(replace(ONE, limit=2))) for _ in range(4)]
    await settle_down()
    inner.gate.set()
    shares = [[lease.id for lease in await caller] for caller in callers]
    assert shares == [["g0", "g1"], ["h0", "h1"], [], []]
    await settle_down()
    given_back = await engine.get("h2")
    assert given_back is not None
    assert (given_back.state, given_back.attempt, given_back.releases) == (State.WAITING, 0, 0)
    inner.calls.clear()
    # A request that got a batch of a strict group is sent alone from now on.
    await asyncio.gather(*(engine.lease(replace(ONE, limit=2)) for _ in range(3)))
    assert inner.calls == [("lease", 2)] * 3


async def test_requests_of_different_workers_are_not_merged(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    await engine.enqueue([job(f"{i}") for i in range(5)])
    requests = [LeaseRequest(queues=("default",), worker=f"w{n}") for n in range(5)]
    answers = await asyncio.gather(*(engine.lease(request) for request in requests))
    assert [lease.job.worker for [lease] in answers] == [f"w{n}" for n in range(5)]


async def test_a_waiting_lease_does_not_delay_others(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    patient = asyncio.create_task(
        engine.lease(LeaseRequest(queues=("default",), wait_ms=60_000, worker="w"))
    )
    await settle_down()
    assert await engine.lease(LeaseRequest(queues=("default",), worker="w")) == []
    await engine.enqueue([job("a")])
    assert [lease.id for lease in await patient] == ["a"]


async def test_leases_of_a_cancelled_caller_are_released(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    await engine.enqueue([job("a")])
    inner.gate.clear()
    inner.called.clear()
    leaver = asyncio.create_task(engine.lease(ONE))
    await inner.called.wait()
    leaver.cancel()
    inner.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    await settle_down()
    back = await engine.get("a")
    assert back is not None
    assert (back.state, back.attempt) == (State.WAITING, 0)


async def test_a_caller_cancelled_after_its_leases_arrived_loses_none(
    inner: GatedEngine,
) -> None:
    engine = Coalesced(inner)
    await engine.enqueue([job("a")])
    inner.gate.clear()
    inner.called.clear()
    leaver = asyncio.create_task(engine.lease(ONE))
    await inner.called.wait()
    inner.gate.set()
    while True:
        # One step at a time, up to the step in which the lease is there and its caller not yet.
        await asyncio.sleep(0)
        leased = await engine.get("a")
        assert leased is not None
        if leased.state is State.LEASED:
            break
    assert not leaver.done()
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    await settle_down()
    back = await engine.get("a")
    assert back is not None
    assert back.state is State.WAITING


async def test_leases_of_a_cancelled_caller_go_to_the_others(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    await engine.enqueue([job("a"), job("b")])
    inner.gate.clear()
    inner.shuts = True
    inner.called.clear()
    first = asyncio.create_task(engine.lease(ONE))
    await inner.called.wait()
    leaver, stayer = (asyncio.create_task(engine.lease(ONE)) for _ in range(2))
    await settle_down()
    inner.called.clear()
    inner.gate.set()
    assert [lease.id for lease in await first] == ["a"]
    await inner.called.wait()
    leaver.cancel()
    inner.gate.set()
    assert [lease.id for lease in await stayer] == ["b"]
    with pytest.raises(asyncio.CancelledError):
        await leaver


async def test_settles_are_merged_and_answered_separately(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    await engine.enqueue([job(f"{i}") for i in range(4)])
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=4))
    done = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
    await inner.settle(done[2:3])
    await inner.amend(JobFilter(ids=("3",)), Delete(force=True), limit=1)
    inner.gate.clear()
    inner.calls.clear()
    calls = [asyncio.create_task(engine.settle([each])) for each in done]
    await settle_down()
    inner.gate.set()
    answers = [outcome for [outcome] in await asyncio.gather(*calls)]
    assert answers == [Outcome.SETTLED, Outcome.SETTLED, Outcome.SETTLED, Outcome.LOST]
    assert inner.calls == [("settle", 4)]


async def test_closing_answers_pending_calls(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    first = await hold_back(inner, engine)
    second = asyncio.create_task(engine.enqueue([job("second")]))
    await settle_down()
    closing = asyncio.create_task(engine.close())
    await settle_down()
    assert not closing.done()
    inner.gate.set()
    await closing
    await asyncio.gather(first, second)
    await engine.close()


async def test_a_hundred_callers_share_a_file_in_a_few_transactions(tmp_path: Path) -> None:
    transactions = 0

    def tell(event: ProcessEvent) -> None:
        nonlocal transactions
        transactions += isinstance(event, EngineCalled) and event.verb == "enqueue"

    engine = Coalesced(Observed(open_engine(f"sqlite:///{tmp_path}/work.db"), tell))
    await engine.open()

    async def produce(caller: int) -> None:
        for n in range(10):
            [receipt] = await engine.enqueue([job(f"{caller}-{n}")])
            assert receipt.status is Status.NEW

    await asyncio.gather(*(produce(caller) for caller in range(100)))
    await engine.close()
    assert transactions <= 1_000 / 4


async def test_no_state_remains_when_all_calls_are_answered(inner: GatedEngine) -> None:
    engine = Coalesced(inner)
    for n in range(10):
        await engine.lease(LeaseRequest(queues=("default",), worker=f"w{n}"))
    assert engine._leases == {}

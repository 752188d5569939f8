"""The loop of a service: it survives outages, obeys a stop, and ends with a closed engine."""

import asyncio
import logging

import pytest

from holdfast.core.model import LeaseRequest, NewJob, State
from holdfast.engines.registry import open_engine
from holdfast.errors import EngineClosed, EngineUnavailable, Forbidden, OutcomeUnknown
from holdfast.events import Reaped, Troubled
from holdfast.ops import service
from holdfast.ops.service import run_service
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Reaper, Upkeep
from tests.upkeep.faulty_engine import FaultyEngine, RecordingListener


class Counting:
    """A service with planned answers, which sets `stop` after the last."""

    name = "counting"
    sleep_ms_max = 60_000

    def __init__(self, answers: list[int | Exception | None], stop: asyncio.Event) -> None:
        self.answers = answers
        self.stop = stop

    async def once(self) -> int | None:
        answer = self.answers.pop(0)
        if not self.answers:
            self.stop.set()
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_outages_are_survived_and_reported() -> None:
    stop, listener = asyncio.Event(), RecordingListener()
    troubles: list[int | Exception | None] = [
        EngineUnavailable("down"),
        OutcomeUnknown("who knows"),
        OSError("disk"),
        0,
        0,
        None,
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "_PAUSE_MS_FIRST", 1)
        await asyncio.wait_for(run_service(Counting(troubles, stop), stop, listener), 60)
    told = [(each.error, each.text) for each in listener.events if isinstance(each, Troubled)]
    assert told == [("unavailable", "down"), ("outcome_unknown", "who knows"), ("OSError", "disk")]


async def test_a_forbidden_service_waits_for_the_stop() -> None:
    stop, listener = asyncio.Event(), RecordingListener()
    counting = Counting([Forbidden("not for this"), 0], stop)
    keeping = asyncio.create_task(run_service(counting, stop, listener))
    for _ in range(10):
        await asyncio.sleep(0)
    assert (counting.answers, listener.events, keeping.done()) == ([0], [], False)
    stop.set()
    await keeping


def test_pauses_grow_to_a_bound() -> None:
    stop, listener = asyncio.Event(), RecordingListener()
    counting = Counting([], stop)
    logging.getLogger("holdfast.upkeep").disabled = True
    try:
        pauses = [
            service._report_failure(counting, OSError("x"), n, listener) for n in range(1, 100)
        ]
    finally:
        logging.getLogger("holdfast.upkeep").disabled = False
    assert pauses[0] <= 200
    assert 15_000 <= pauses[-1] <= 30_000


def test_the_net_bounds_every_sleep_and_a_timer_is_never_early() -> None:
    for _ in range(200):
        assert service._pause_ms(0, 5_000) == 0
        assert 4_000 <= service._pause_ms(None, 5_000) <= 5_000
        assert 4_000 <= service._pause_ms(10**12, 5_000) <= 5_000
        assert 1_000 < service._pause_ms(1_000, 5_000) <= 1_051


async def test_a_stop_interrupts_a_sleep() -> None:
    stop = asyncio.Event()
    asleep = asyncio.Event()

    class Sleeper(Counting):
        async def once(self) -> int | None:
            asleep.set()
            return None

    task = asyncio.create_task(run_service(Sleeper([], stop), stop, RecordingListener()))
    await asleep.wait()
    stop.set()
    await asyncio.wait_for(task, 60)


async def test_the_earliest_alarm_ends_a_sleep() -> None:
    stop, alarm = asyncio.Event(), service.Alarm()
    for ms in (10**6, 1, 10**6):
        alarm.set(ms)
    counting = Counting([None, None], stop)
    await asyncio.wait_for(run_service(counting, stop, RecordingListener(), alarm), 30)
    assert counting.answers == []


async def test_a_closed_engine_ends_the_service_with_the_reason() -> None:
    stop = asyncio.Event()
    with pytest.raises(EngineClosed):
        await run_service(Counting([EngineClosed("closed"), 0], stop), stop, RecordingListener())


async def test_the_reaper_goes_on_after_an_unknown_outcome(clock: ManualClock) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    await engine.enqueue([NewJob(id="a", task="t")])
    await engine.lease(LeaseRequest(queues=("default",)))
    clock.advance(30_000)
    engine.before = {"overdue": [EngineUnavailable("down")]}
    engine.after = {"settle": [OutcomeUnknown("lost the answer")]}
    stop = asyncio.Event()
    again = asyncio.Event()
    listener = RecordingListener()

    class Watched(Reaper):
        async def once(self) -> int | None:
            next_ms = await super().once()
            again.set()
            return next_ms

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "_PAUSE_MS_FIRST", 1)
        task = asyncio.create_task(run_service(Watched(engine), stop, listener))
        await asyncio.wait_for(again.wait(), 60)
    stop.set()
    await task
    job = await engine.get("a")
    assert job is not None
    assert (job.state, len(job.failures)) == (State.WAITING, 1)
    assert [type(each) for each in listener.events] == [Troubled, Troubled]


async def test_upkeep_runs_all_services_until_it_is_stopped(clock: ManualClock) -> None:
    engine = FaultyEngine(clock)
    await engine.open()
    await engine.enqueue([NewJob(id="a", task="t")])
    await engine.lease(LeaseRequest(queues=("default",)))
    clock.advance(30_000)
    reaped = asyncio.Event()

    def tell(event: object) -> None:
        if isinstance(event, Reaped):
            reaped.set()

    upkeep = Upkeep(engine, tell=tell, wall_ms=clock.wall_ms)
    names = [each.name for each in upkeep.services]
    assert names == ["reaper", "pruner", "scheduler", "redriver", "amender", "distributor"]
    stop = asyncio.Event()
    task = asyncio.create_task(upkeep.run(stop))
    await asyncio.wait_for(reaped.wait(), 60)
    stop.set()
    await asyncio.wait_for(task, 60)


async def test_upkeep_through_a_server_leaves_acts_to_the_server(clock: ManualClock) -> None:
    """Only the server may save them."""

    class Served(FaultyEngine):
        async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
            raise NotImplementedError

    names = [each.name for each in Upkeep(Served(clock)).services]
    assert "redriver" in names
    assert "amender" not in names


@pytest.mark.usefixtures("aws")
def test_upkeep_runs_what_the_traits_allow(endpoint: str) -> None:
    url = f"sqs://us-east-1/?endpoint={endpoint}"
    bare, controlled = open_engine(url), open_engine(f"{url}&control=memory:")
    assert Upkeep(bare).services == ()
    names = [each.name for each in Upkeep(controlled).services]
    assert names == ["pruner", "scheduler", "distributor"]

"""Each partition has its own upkeep: one that is stuck delays only its own jobs."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.app.application import Holdfast
from holdfast.conformance.contract.cases import a_job
from holdfast.core.model import (
    Job,
    JobFilter,
    LeaseRequest,
    Overrides,
    Queue,
    Reason,
    Reroute,
    State,
)
from holdfast.engines.extras import UpkeepByPartition, extra
from holdfast.engines.partitioned import lifecycle
from holdfast.errors import EngineUnavailable
from holdfast.events import EngineCalled, Pruned, Reaped, Troubled
from holdfast.upkeep import Pruner, Reaper, Upkeep
from tests.engines.partitioned.fragile import Trio, shut_out

SECOND = 1_000
STUCK = 1


class Running:
    """Upkeep of an application on three partitions, until the test ends."""

    def __init__(self, trio: Trio) -> None:
        self.trio = trio
        self.app = Holdfast(engine=trio.engine)
        self.events: list[object] = []
        self._news = asyncio.Event()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.app.listeners.add(self._tell)

    def start(self) -> None:
        upkeep = Upkeep(self.app.engine, tell=self._tell, wall_ms=self.trio.clock.wall_ms)
        self._task = asyncio.create_task(upkeep.run(self._stop))

    async def stop(self) -> None:
        self._stop.set()
        if self._task is not None:
            await self._task

    async def until(self, state: State, *ids: str) -> None:
        """Wait for an event after which these jobs have this state."""
        for id_ in ids:
            while (await self._job(id_)).state is not state:
                self._news.clear()
                await asyncio.wait_for(self._news.wait(), 60)

    async def _job(self, id: str) -> Job:
        found = [await each.engine.get(id) for each in self.trio.fragile]
        return next(job for job in found if job is not None)

    def _tell(self, event: object) -> None:
        self.events.append(event)
        self._news.set()


@pytest.fixture
async def running(trio: Trio) -> AsyncIterator[Running]:
    running = Running(trio)
    yield running
    trio.fragile[STUCK].moves.set()
    await running.stop()


async def leased_everywhere(trio: Trio, **options: object) -> list[str]:
    ids = [trio.names(place, 1)[0] for place in range(3)]
    await trio.engine.enqueue([a_job(id_, **options) for id_ in ids])
    assert len(await trio.engine.lease(LeaseRequest(queues=("default",), limit=3))) == 3
    return ids


async def test_overdue_leases_of_the_others_end_while_one_is_stuck(
    trio: Trio, running: Running
) -> None:
    first, own, third = await leased_everywhere(trio)
    trio.clock.advance(30 * SECOND)
    trio.fragile[STUCK].moves.clear()
    running.start()
    await running.until(State.WAITING, first, third)
    job = await trio.fragile[STUCK].engine.get(own)
    assert job is not None
    assert job.state is State.LEASED
    trio.fragile[STUCK].moves.set()
    await running.until(State.WAITING, own)
    await running.stop()
    reaped = [event.overdue for event in running.events if isinstance(event, Reaped)]
    assert reaped == [1, 1, 1]


async def test_expired_and_finished_jobs_of_the_others_go_while_one_is_stuck(trio: Trio) -> None:
    await trio.engine.declare(Queue(name="short", retention_ms=SECOND, dead_retention_ms=SECOND))
    ids = [trio.names(place, 1)[0] for place in range(3)]
    await trio.engine.enqueue([a_job(id_, queue="short", expires_ms=SECOND) for id_ in ids])
    trio.clock.advance(SECOND)
    trio.fragile[STUCK].moves.clear()
    pruned: list[object] = []
    for place in (0, 2):
        here, one = trio.fragile[place].engine, trio.engine.lifecycles()[place]
        await Reaper(one).once()
        job = await here.get(ids[place])
        assert job is not None
        assert job.reason is Reason.EXPIRED
        trio.clock.advance(2 * SECOND)
        await Pruner(one, tell=pruned.append).once()
        assert await here.get(ids[place]) is None
    assert pruned == [Pruned(deleted=1, archived=0)] * 2
    trio.fragile[STUCK].moves.set()


async def test_what_upkeep_does_in_a_partition_is_counted_and_keeps_its_token(trio: Trio) -> None:
    events: list[object] = []
    app = Holdfast(engine=trio.engine)
    app.listeners.add(events.append)
    [_, own, _] = await leased_everywhere(trio, overrides=Overrides(max_attempts=1))
    trio.clock.advance(30 * SECOND)
    partitioned = extra(app.engine, UpkeepByPartition)
    assert partitioned is not None
    one = partitioned.lifecycles()[STUCK]
    [lease] = (await one.overdue(10)).leases
    [known] = (await trio.engine.find(JobFilter(ids=(own,)), limit=1)).jobs
    assert lease.token == known.token
    await Reaper(one).once()
    told = [each for each in events if isinstance(each, EngineCalled) and each.verb == "settle"]
    assert [list(each.counted()) for each in told] == [[("default", "bury")]]


async def test_a_shut_out_partition_has_nothing_due_and_is_no_trouble(trio: Trio) -> None:
    [_, own, _] = await leased_everywhere(trio)
    trio.clock.advance(30 * SECOND)
    await shut_out(trio, STUCK)
    one = trio.engine.lifecycles()[STUCK]
    assert await Reaper(one).once() is None
    assert await Pruner(one).once() is None
    trio.fragile[STUCK].fault = None
    await trio.back()
    await Reaper(one).once()
    job = await trio.engine.get(own)
    assert job is not None
    assert job.state is State.WAITING


async def test_a_lifecycle_that_cannot_read_shuts_its_partition_out(
    trio: Trio, running: Running
) -> None:
    trio.fragile[STUCK].fault = EngineUnavailable("nobody answers")
    running.start()
    await trio.pauses.begun()
    assert [view.out_ms is None for view in trio.engine.partitions()] == [True, False, True]
    await running.stop()
    assert {event.service for event in running.events if isinstance(event, Troubled)} <= {"reaper"}


async def test_a_reroute_waits_for_all_workers_and_delays_no_burial(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "OTHERS_S", 0.01)
    await trio.engine.declare(Queue(name="worker.w1"))
    plain, addressed = trio.names(0, 2)
    reroute = Overrides(reroute=Reroute())
    await trio.engine.enqueue(
        [
            a_job(addressed, queue="worker.w1", expires_ms=SECOND, overrides=reroute),
            a_job(plain, expires_ms=SECOND),
        ]
    )
    trio.clock.advance(SECOND)
    trio.fragile[STUCK].moves.clear()
    with pytest.raises(EngineUnavailable, match="not all partitions answered"):
        await Reaper(trio.engine.lifecycles()[0]).once()
    here = trio.fragile[0].engine
    states = {id_: job for id_ in (plain, addressed) if (job := await here.get(id_)) is not None}
    assert states[plain].reason is Reason.EXPIRED
    assert states[addressed].state is State.WAITING
    trio.fragile[STUCK].moves.set()

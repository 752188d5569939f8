"""The distributor: fair turns into one work queue, with crashes and several distributors."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from holdfast.core.model import (
    EventKind,
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Queue,
    Record,
    State,
)
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import ConfigError, EngineUnavailable
from holdfast.events import Distributed
from holdfast.ops.queues import Distribution, Distributions
from holdfast.testing.clock import ManualClock
from holdfast.upkeep import Distributor, Reaper, Upkeep
from tests.killed import Killed
from tests.upkeep.faulty_engine import RecordingListener

MAIL = Distribution(source="mail.*", target="mail", depth=100)


async def declare(engine: Engine, *names: str) -> None:
    for name in names:
        await engine.declare(Queue(name=name, max_attempts=1))


async def enqueue(engine: Engine, queue: str, count: int, **fields: object) -> None:
    for start in range(0, count, 1000):
        jobs = [
            NewJob(id=f"{queue}-{n:05}", task="t", queue=queue, **fields)  # type: ignore[arg-type]
            for n in range(start, min(start + 1000, count))
        ]
        await engine.enqueue(jobs)


async def work(engine: Engine, count: int) -> list[str]:
    """Lease and complete up to so many jobs of the work queue; their ids in order."""
    leases = await engine.lease(LeaseRequest(queues=("mail",), limit=count))
    await engine.settle([Settlement(lease=lease, verdict=Complete()) for lease in leases])
    return [lease.id for lease in leases]


async def depth(engine: Engine, name: str = "mail") -> int:
    views = {view.queue.name: view for view in await engine.queues()}
    return views[name].ready


async def test_jobs_are_forwarded_in_fair_turns(engine: Engine) -> None:
    await declare(engine, "mail", "mail.a", "mail.b", "post.c")
    await enqueue(engine, "mail.a", 4)
    await enqueue(engine, "mail.b", 2)
    await enqueue(engine, "post.c", 1)
    listener = RecordingListener()
    await Distributor(engine, [MAIL], tell=listener).once()
    assert listener.events == [Distributed(queue="mail", moved={"mail.a": 4, "mail.b": 2})]
    job = await engine.get("mail.a-00000")
    assert job is not None
    assert (job.state, job.queue, job.origin) == (State.WAITING, "mail", "mail.a")
    assert (job.attempt, job.token) == (0, None)
    [event] = job.events
    assert (event.kind, event.by) == (EventKind.FORWARDED, "(distributor)")
    assert await work(engine, 10) == [
        *("mail.a-00000", "mail.b-00000", "mail.a-00001", "mail.b-00001"),
        *("mail.a-00002", "mail.a-00003"),
    ]


async def test_a_noisy_queue_does_not_delay_a_quiet_one(engine: Engine) -> None:
    await declare(engine, "mail", "mail.noisy", "mail.quiet")
    await enqueue(engine, "mail.noisy", 10_000)
    distributor = Distributor(engine, [MAIL])
    for _ in range(3):
        await distributor.once()
        await work(engine, 50)
    await enqueue(engine, "mail.quiet", 20)
    started: list[str] = []
    while sum(id_.startswith("mail.quiet") for id_ in started) < 20:
        await distributor.once()
        started += await work(engine, 50)
    # The jobs that were in the work queue before, then the quiet queue's own.
    assert len(started) <= MAIL.depth + 50
    assert await depth(engine) <= MAIL.depth


async def test_weights(engine: Engine) -> None:
    await declare(engine, "mail", "mail.a", "mail.b")
    await enqueue(engine, "mail.a", 500)
    await enqueue(engine, "mail.b", 500)
    heavy = Distribution(source="mail.*", target="mail", depth=100, weights={"mail.a": 3})
    distributor = Distributor(engine, [heavy])
    started: list[str] = []
    for _ in range(4):
        await distributor.once()
        started += await work(engine, 100)
    counts = Counter(id_[:6] for id_ in started)
    assert counts == {"mail.a": 300, "mail.b": 100}


async def test_the_work_queue_is_filled_to_its_depth(engine: Engine) -> None:
    await declare(engine, "mail", "mail.a")
    await enqueue(engine, "mail.a", 300)
    distributor = Distributor(engine, [MAIL])
    for _ in range(3):
        await distributor.once()
        assert await depth(engine) == 100
    await work(engine, 30)
    await distributor.once()
    assert await depth(engine) == 100


async def test_jobs_that_cannot_be_leased_are_not_forwarded(
    engine: Engine, clock: ManualClock
) -> None:
    """Jobs that are delayed, in a paused queue, or not at the head of their group."""
    await declare(engine, "mail", "mail.a", "mail.b")
    await engine.declare(Queue(name="mail.shut", paused=True))
    await enqueue(engine, "mail.shut", 1)
    await enqueue(engine, "mail.a", 2, group="g")
    await enqueue(engine, "mail.b", 1, delay_ms=1000)
    distributor = Distributor(engine, [MAIL])
    await distributor.once()
    assert await work(engine, 10) == ["mail.a-00000"]
    clock.advance(1000)
    await distributor.once()
    assert sorted(await work(engine, 10)) == ["mail.a-00001", "mail.b-00000"]
    assert await depth(engine, "mail.shut") == 1


async def test_two_at_once(engine: Engine) -> None:
    await declare(engine, "mail", *(f"mail.{n}" for n in range(5)))
    for n in range(5):
        await enqueue(engine, f"mail.{n}", 100)
    listener = RecordingListener()
    distributors = [Distributor(engine, [MAIL], tell=listener) for _ in range(2)]
    started: list[str] = []
    while len(started) < 500:
        await asyncio.gather(*(each.once() for each in distributors))
        assert await depth(engine) <= 2 * MAIL.depth
        started += await work(engine, 60)
    assert len(set(started)) == 500
    moved = sum(
        sum(each.moved.values()) for each in listener.events if isinstance(each, Distributed)
    )
    assert moved == 500


class KillableEngine(MemoryEngine):
    """Ends the process before or after a settle."""

    kill: str | None = None

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        if self.kill == "before":
            raise Killed
        outcomes = await super().settle(settlements)
        if self.kill == "after":
            raise Killed
        return outcomes


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_killed_distributor_loses_nothing(clock: ManualClock, when: str) -> None:
    engine = KillableEngine(clock=clock)
    await engine.open()
    await declare(engine, "mail", "mail.a", "mail.b")
    await enqueue(engine, "mail.a", 30)
    await enqueue(engine, "mail.b", 30)
    engine.kill = when
    with pytest.raises(Killed):
        await Distributor(engine, [MAIL]).once()
    engine.kill = None
    assert len(await work(engine, 100)) == (60 if when == "after" else 0)
    clock.advance(60_000)
    reaper = Reaper(engine)
    while await reaper.once() == 0:
        pass
    await Distributor(engine, [MAIL]).once()
    again = await work(engine, 100)
    assert len(set(again)) == (0 if when == "after" else 60)
    jobs = (await engine.find(JobFilter(), limit=100)).jobs
    assert {(job.state, job.attempt) for job in jobs} == {(State.DONE, 1)}


async def test_leased_jobs_are_forwarded_when_a_later_lease_fails(clock: ManualClock) -> None:
    class Faulty(MemoryEngine):
        async def lease(self, request: LeaseRequest) -> list[Lease]:
            if request.queues == ("mail.b",):
                raise EngineUnavailable("out of reach")
            return await super().lease(request)

    engine = Faulty(clock=clock)
    await engine.open()
    await declare(engine, "mail", "mail.a", "mail.b")
    await enqueue(engine, "mail.a", 300)
    await enqueue(engine, "mail.b", 300)
    with pytest.raises(EngineUnavailable):
        await Distributor(engine, [MAIL]).once()
    assert await depth(engine) == 50
    assert (await engine.find(JobFilter(states=(State.LEASED,)), limit=1)).jobs == ()


async def test_a_dropped_work_queue(clock: ManualClock) -> None:
    class Dropping(MemoryEngine):
        async def lease(self, request: LeaseRequest) -> list[Lease]:
            leases = await super().lease(request)
            await self.drop("mail")
            return leases

    engine = Dropping(clock=clock)
    await engine.open()
    await declare(engine, "mail", "mail.a")
    await enqueue(engine, "mail.a", 3)
    distributor = Distributor(engine, [MAIL])
    await distributor.once()
    await distributor.once()
    jobs = (await engine.find(JobFilter(), limit=10)).jobs
    assert {(job.state, job.queue, job.attempt) for job in jobs} == {(State.WAITING, "mail.a", 0)}


async def test_upkeep_carries_out_stored_distributions(engine: Engine) -> None:
    await declare(engine, "mail", "mail.a")
    await enqueue(engine, "mail.a", 3)
    stored = Distributions(engine)
    distributor = next(each for each in Upkeep(engine).services if isinstance(each, Distributor))
    assert await distributor.once() is None
    await stored.put(Distribution(source="mail.?", target="mail"))
    await stored.put(MAIL)
    await engine.save([Record(kind="distribution", key="odd", value=b"not ours")])
    assert await stored.all() == [MAIL]
    await distributor.once()
    assert await depth(engine) == 3
    assert await stored.remove("mail")
    assert not await stored.remove("mail")
    assert await stored.all() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"source": "mail.*; DROP", "target": "mail"},
        {"source": "mail.[a-z]", "target": "mail"},
        {"source": "", "target": "mail"},
        {"source": "mail.*", "target": "no queue"},
        {"source": "mail.*", "target": "mail", "depth": 0},
        {"source": "mail.*", "target": "mail", "depth": 10**9},
        {"source": "mail.*", "target": "mail", "weights": {"mail.a": 0}},
    ],
)
async def test_an_invalid_distribution_is_refused(
    clock: ManualClock, wrong: dict[str, object]
) -> None:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    with pytest.raises(ConfigError):
        await Distributions(engine).put(Distribution(**wrong))  # type: ignore[arg-type]

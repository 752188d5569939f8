"""A stall is found only if slots are free, work waits and nothing is leased."""

import pytest

from holdfast.core.limits import Limit
from holdfast.core.model import LeaseRequest, NewJob, Queue
from holdfast.core.verdict import Complete, Settlement
from holdfast.engines.memory import MemoryEngine
from holdfast.testing.clock import ManualClock
from holdfast.worker.supervisor.health import STALL_MS, find_stall

WORDS = "slots are free and work waits in default, but nothing is leased"


@pytest.fixture
async def engine(clock: ManualClock) -> MemoryEngine:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    return engine


async def look(engine: MemoryEngine) -> str:
    return await find_stall(engine, {"default", "more"}, {"work"})


async def test_due_work_that_waits_too_long(engine: MemoryEngine, clock: ManualClock) -> None:
    await engine.enqueue([NewJob(id="a", task="work")])
    clock.advance(STALL_MS - 1)
    assert await look(engine) == ""
    clock.advance(1)
    assert await look(engine) == WORDS


async def test_nothing_to_do(engine: MemoryEngine, clock: ManualClock) -> None:
    clock.advance(STALL_MS * 10)
    assert await look(engine) == ""


async def test_work_for_others(engine: MemoryEngine, clock: ManualClock) -> None:
    """Tasks it does not know, or queues it does not serve."""
    await engine.declare(Queue(name="elsewhere"))
    await engine.enqueue([NewJob(id="a", task="other")])
    await engine.enqueue([NewJob(id="b", task="work", queue="elsewhere")])
    clock.advance(STALL_MS)
    assert await look(engine) == ""


async def test_a_paused_queue(engine: MemoryEngine, clock: ManualClock) -> None:
    await engine.enqueue([NewJob(id="a", task="work")])
    await engine.declare(Queue(name="default", paused=True))
    clock.advance(STALL_MS)
    assert await look(engine) == ""


async def test_work_blocked_by_a_limit(engine: MemoryEngine, clock: ManualClock) -> None:
    """The worker is healthy: no worker could start that now."""
    limit = Limit(name="one", concurrency=1)
    await engine.declare(Queue(name="default", limits=(limit,)))
    await engine.enqueue([NewJob(id=f"j{number}", task="work") for number in range(3)])
    [lease] = await engine.lease(LeaseRequest(queues=("default",), lease_ms=60_000, limit=3))
    clock.advance(STALL_MS)
    assert await look(engine) == ""
    await engine.settle([Settlement(lease=lease, verdict=Complete())])
    assert await look(engine) == WORDS


async def test_work_blocked_by_a_group_or_a_parent(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    """Beside work that is ready for others."""
    await engine.enqueue([NewJob(id="theirs", task="other"), NewJob(id="p", task="other")])
    await engine.enqueue([NewJob(id="head", task="other", group="g")])
    await engine.enqueue([NewJob(id="next", task="work", group="g")])
    await engine.enqueue([NewJob(id="child", task="work", after=("p",))])
    clock.advance(STALL_MS)
    assert await look(engine) == ""


async def test_work_that_is_not_due_or_taken(engine: MemoryEngine, clock: ManualClock) -> None:
    await engine.enqueue([NewJob(id="a", task="work")])
    await engine.lease(LeaseRequest(queues=("default",), lease_ms=60_000))
    await engine.enqueue([NewJob(id="b", task="work", delay_ms=60_000)])
    clock.advance(STALL_MS)
    assert await look(engine) == ""


async def test_fresh_work_behind_anothers_old_work(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    await engine.enqueue([NewJob(id="old", task="other")])
    clock.advance(STALL_MS)
    await engine.enqueue([NewJob(id="new", task="work")])
    assert await look(engine) == ""


async def test_old_work_behind_anothers_delayed_work(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    await engine.enqueue([NewJob(id="a", task="work")])
    await engine.enqueue([NewJob(id=f"d{n}", task="work", delay_ms=60_000) for n in range(10)])
    clock.advance(STALL_MS)
    assert await look(engine) == WORDS


async def test_delayed_work_behind_anothers_old_work(
    engine: MemoryEngine, clock: ManualClock
) -> None:
    await engine.enqueue([NewJob(id="old", task="other")])
    clock.advance(STALL_MS * 100)
    await engine.enqueue([NewJob(id="later", task="work", delay_ms=STALL_MS * 2)])
    clock.advance(STALL_MS)
    assert await look(engine) == ""

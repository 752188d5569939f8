"""Registered workers with their health, and orders that two operators may give at once."""

import asyncio

import msgspec
import pytest

from holdfast.core.model import Record
from holdfast.core.workers import (
    FORCED_MAX,
    KIND,
    ORDER_KIND,
    Health,
    WorkerOrder,
    WorkerRecord,
)
from holdfast.engines.base import Saved
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable, UsageError
from holdfast.ops.records import scan
from holdfast.ops.workers import Workers
from holdfast.testing.clock import ManualClock


@pytest.fixture
async def engine(clock: ManualClock) -> MemoryEngine:
    engine = MemoryEngine(clock=clock)
    await engine.open()
    return engine


async def register(engine: MemoryEngine, name: str, **facts: object) -> None:
    fixed = {"name": name, "id": f"id-of-{name}", "host": "h", "pid": 1, "started_at": 0}
    record = WorkerRecord(**fixed | facts)  # type: ignore[arg-type]
    await engine.save([Record(kind=KIND, key=name, value=msgspec.json.encode(record))])


def test_an_order_names_each_job_to_end_once() -> None:
    first = WorkerOrder(cordoned=True).nudged("a")
    again = first.nudged().nudged("a").nudged("b")
    assert first.forced_since(WorkerOrder()) == {"a"}
    assert again.forced_since(first) == {"a", "b"}
    assert again.forced_since(again) == frozenset()
    assert (again.renew, again.cordoned) == (4, True)
    assert WorkerOrder(renew=1, forced={"later": 10**18}).forced_since(first) == frozenset()
    many = again
    for number in range(500):
        many = many.nudged(f"j{number}")
    assert len(many.forced) == FORCED_MAX
    assert "j499" in many.forced


async def test_workers_by_name_with_their_health(engine: MemoryEngine, clock: ManualClock) -> None:
    workers = Workers(engine)
    assert await workers.all() == []
    await register(engine, "b", consecutive_failures=3)
    clock.advance(31_000)
    await register(engine, "a")
    views = await workers.all()
    assert [(view.name, view.health, view.age_ms) for view in views] == [
        ("a", Health.HEALTHY, 0),
        ("b", Health.DEGRADED, 31_000),
    ]
    clock.advance(30_000)
    found = await workers.get("b")
    assert found is not None
    assert (found.health, found.why) == (Health.UNHEALTHY, "no heartbeat for 61 s")
    assert await workers.get("c") is None


async def test_what_cannot_be_read_is_left_out(engine: MemoryEngine) -> None:
    await engine.save([Record(kind=KIND, key="x", value=b"{")])
    await engine.save([Record(kind=ORDER_KIND, key="x", value=b"[]")])
    await register(engine, "a")
    workers = Workers(engine)
    assert [view.name for view in await workers.all()] == ["a"]
    assert await workers.orders() == {}


async def test_a_cordon_shows_at_once_and_is_not_health(engine: MemoryEngine) -> None:
    await register(engine, "a")
    workers = Workers(engine)
    await workers.cordon("a", by="me")
    (view,) = await workers.all()
    assert (view.record.cordoned, view.health) == (True, Health.HEALTHY)
    await workers.uncordon("a")
    (view,) = await workers.all()
    assert not view.record.cordoned


async def test_orders_keep_what_they_do_not_change(engine: MemoryEngine) -> None:
    await register(engine, "a")
    workers = Workers(engine)
    await workers.cordon("a", by="me")
    await workers.drain("a", by="you")
    await workers.nudge("a")
    await workers.nudge("a")
    assert await workers.orders() == {
        "a": WorkerOrder(cordoned=True, ending="drain", ending_id="id-of-a", renew=2, by="you")
    }
    await workers.stop("a", grace="5s")
    order = (await workers.orders())["a"]
    assert (order.ending, order.grace_ms) == ("stop", 5_000)
    await workers.drain("a")
    assert (await workers.orders())["a"].grace_ms is None


async def test_only_a_stop_has_a_grace_period(engine: MemoryEngine) -> None:
    await register(engine, "a")
    with pytest.raises(UsageError, match="drain has no grace period: only stop has one"):
        await Workers(engine).order("drain", ["a"], grace=1)
    with pytest.raises(UsageError, match="grace 2d is out of range: expected at most 1d"):
        await Workers(engine).stop("a", grace="2d")
    assert await Workers(engine).orders() == {}


async def test_two_operators_at_once(engine: MemoryEngine) -> None:
    await register(engine, "a")
    workers = Workers(engine)
    await asyncio.gather(*(workers.nudge("a") for _ in range(8)), workers.cordon("a"))
    order = (await workers.orders())["a"]
    assert order.cordoned
    assert 1 <= order.renew <= 8


async def test_an_order_that_is_always_overtaken(
    engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register(engine, "a")

    async def stale(_records: object) -> list[Saved]:
        return [Saved.STALE]

    monkeypatch.setattr(engine, "save", stale)
    with pytest.raises(EngineUnavailable, match="the order to worker a is being changed by others"):
        await Workers(engine).cordon("a")


@pytest.mark.parametrize("act", ["cordon", "uncordon", "stop", "drain"])
async def test_orders_to_nobody_are_refused(engine: MemoryEngine, act: str) -> None:
    await register(engine, "a")
    with pytest.raises(
        UsageError,
        match='unknown worker "x": no worker with this name has registered; there are: a',
    ):
        await getattr(Workers(engine), act)("x")
    assert [each async for each in scan(engine, ORDER_KIND)] == []


async def test_a_worker_that_is_gone_can_be_forgotten(engine: MemoryEngine) -> None:
    await register(engine, "a")
    await register(engine, "b")
    workers = Workers(engine)
    await workers.cordon("a")
    await workers.forget("a")
    assert [view.name for view in await workers.all()] == ["b"]
    assert await workers.orders() == {}


async def test_more_than_a_page(engine: MemoryEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.bounds.PAGE_MAX", 3)
    for number in range(7):
        await register(engine, f"w{number}")
    assert len(await Workers(engine).all()) == 7

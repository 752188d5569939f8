"""The waiting jobs of a queue whose flow gets a new shape, while others are at work on them."""

import asyncio
import itertools
from typing import Any

import pytest

from holdfast.core.flow import Limit
from holdfast.core.model import JobFilter, Lease, LeaseRequest, Queue
from holdfast.core.verdict import Bury, Complete, Redrive, Retry, Settlement
from holdfast.engines.postgres import PostgresEngine, sorting
from holdfast.testing.contract.making import a_job, a_queue, lease_ids
from tests.engines.postgres.until import until

SHAPES = (
    a_queue("default"),
    a_queue("default", fairness="shares"),
    a_queue("default", limits=(Limit(name="l", key="{tenant}", concurrency=2),)),
    a_queue("default", fairness="noisy", limits=(Limit(name="t", key="{task}", concurrency=4),)),
)
STEPS_MAX = 8
HOWS = ("parent", "group", "retry", "redrive")


async def declare_unsorted(engine: PostgresEngine, queue: Queue) -> None:
    """As by a process that died before it sorted."""

    async def die(number: int) -> None:
        del number

    sort, engine._sort = engine._sort, die  # type: ignore[method-assign]
    await engine.declare(queue)
    engine._sort = sort  # type: ignore[method-assign]


async def prepare(engine: PostgresEngine, how: str, mark: str) -> Lease:
    """A job `c` that something holds up, and a lease whose end lets it go."""
    await engine.enqueue([a_job(f"r{n}-{mark}", tenant="a", priority=n) for n in range(3)])
    bond: dict[str, Any]
    if how == "parent":
        parent, bond = a_job(f"p-{mark}", queue="other"), {"after": (f"p-{mark}",)}
    else:
        parent, bond = a_job(f"p-{mark}", tenant="a", group="g"), {"group": "g"}
    await engine.enqueue([parent, a_job(f"c-{mark}", tenant="a", priority=9, **bond)])
    (lease,) = await engine.lease(LeaseRequest(ids=(parent.id,)))
    return lease


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(range(4), 2)))
async def test_a_job_that_is_let_go_between_two_steps(
    engine: PostgresEngine, monkeypatch: Any, look: Any, before: int, after: int
) -> None:
    """Whenever it happens, each job is in a lane of the new shape when the sorting is over."""
    monkeypatch.setattr(sorting, "STEP", 1)
    await engine.declare(a_queue("other"))
    number = await look.fetchval("SELECT number FROM queues WHERE name = 'default'")
    for how, steps in itertools.product(HOWS, range(STEPS_MAX)):
        mark = f"{how}-{steps}"
        await engine.declare(SHAPES[before])
        lease = await prepare(engine, how, mark)
        if how == "redrive":
            await engine.settle([Settlement(lease=lease, verdict=Bury())])
        await declare_unsorted(engine, SHAPES[after])
        for _ in range(steps):
            await engine._run(sorting.step, number)
        if how == "redrive":
            await engine.amend(JobFilter(ids=(lease.id,)), Redrive(), limit=1)
        else:
            verdict = Retry() if how == "retry" else Complete()
            await engine.settle([Settlement(lease=lease, verdict=verdict)])
        await engine._sort(number)
        assert await engine.recount(100) == 0, mark
        left = {f"{name}-{mark}" for name in ("r0", "r1", "r2", "c")}
        while left:
            leases = await engine.lease(LeaseRequest(queues=("default",), limit=9))
            assert leases, f"{how}: after {steps} steps {left} are left"
            assert await engine.recount(100) == 0, mark
            await engine.settle([Settlement(lease=one, verdict=Complete()) for one in leases])
            left -= {one.id for one in leases}
    assert await look.fetchval("SELECT count(*) FROM strays") == 0


async def test_sorting_ends_though_jobs_are_let_go_all_the_time(
    engine: PostgresEngine, monkeypatch: Any, look: Any
) -> None:
    """One more is let go before each step: no step is done over again for it."""
    monkeypatch.setattr(sorting, "STEP", 3)
    await engine.enqueue([a_job(f"j{n}") for n in range(12)])
    await declare_unsorted(engine, a_queue("default", fairness="shares"))
    number = await look.fetchval("SELECT number FROM queues WHERE name = 'default'")
    steps = 0
    while await engine._run(sorting.step, number):
        steps += 1
        assert steps < 20
        await engine.enqueue([a_job(f"g{steps}", group=f"g{steps}")])
    assert await look.fetchval("SELECT count(*) FROM jobs WHERE lane IS NULL") == 0
    assert await engine.recount(100) == 0


async def test_two_declarations_at_once(engine: PostgresEngine, look: Any) -> None:
    """The one that came to have lanes and the one that wants none, which read before that."""
    await engine.enqueue([a_job("a"), a_job("b")])
    transaction = look.transaction()
    await transaction.start()
    await look.execute("SELECT FROM queues WHERE name = 'default' FOR UPDATE")
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    waiting += " AND wait_event_type = 'Lock'"
    declared = []
    for count, shape in enumerate((SHAPES[2], a_queue("default", lease_ms=5_000)), 1):
        declared.append(asyncio.create_task(engine.declare(shape)))

        async def blocked(count: int = count) -> bool:
            await look.execute("SELECT pg_stat_clear_snapshot()")
            return bool(await look.fetchval(waiting) == count)

        await until(blocked)
    await transaction.commit()
    assert await asyncio.gather(*declared) == [True, True]
    assert await engine.recount(100) == 0
    (view,) = await engine.queues()
    assert await look.fetchval("SELECT laned FROM queues") == bool(view.queue.limits)
    assert await lease_ids(engine) == ["a", "b"]


@pytest.mark.parametrize("shape", [0, 1])
async def test_a_job_in_a_lane_of_another_shape_is_found(
    engine: PostgresEngine, look: Any, shape: int
) -> None:
    await engine.declare(SHAPES[1])
    await engine.enqueue([a_job("a"), a_job("b")])
    await engine.declare(SHAPES[shape])
    lane = await look.fetchval("SELECT min(number) FROM lanes") if shape == 0 else None
    await look.execute("UPDATE jobs SET lane = $1 WHERE id = 'a'", lane)
    assert await lease_ids(engine) == ["b"]
    assert await engine.recount(100) > 0
    assert await lease_ids(engine) == ["a"]
    assert await engine.recount(100) == 0

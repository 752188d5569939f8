"""Sorting waiting jobs into the lanes of new settings, while other calls change the jobs."""

import asyncio
import itertools
from typing import Any

import pytest

from holdfast.conformance.contract.cases import a_job, a_queue, lease_ids
from holdfast.core.limits import Limit
from holdfast.core.model import JobFilter, Lease, LeaseRequest, Queue
from holdfast.core.verdict import Bury, Complete, Redrive, Retry, Settlement
from holdfast.engines.postgres import PostgresEngine
from holdfast.engines.postgres.flow import lanes
from tests.engines.postgres.until import until, until_blocked

SHAPES = (
    a_queue("default"),
    a_queue("default", fairness="shares"),
    a_queue("default", limits=(Limit(name="l", key="{tenant}", concurrency=2),)),
    a_queue("default", fairness="noisy", limits=(Limit(name="t", key="{task}", concurrency=4),)),
)
STEPS_MAX = 8
HOWS = ("parent", "group", "retry", "redrive")


async def declare_unsorted(engine: PostgresEngine, queue: Queue) -> None:
    """Declare like a process that died before it sorted."""

    async def die(number: int) -> None:
        del number

    sort, engine._sort_into_lanes = engine._sort_into_lanes, die  # type: ignore[method-assign]
    await engine.declare(queue)
    engine._sort_into_lanes = sort  # type: ignore[method-assign]


async def prepare(engine: PostgresEngine, how: str, mark: str) -> Lease:
    """A blocked job `c`, and a lease whose end releases it."""
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
async def test_job_released_between_two_steps(
    engine: PostgresEngine, monkeypatch: Any, look: Any, before: int, after: int
) -> None:
    """At whatever step that is, every job is in a lane of the new settings in the end."""
    monkeypatch.setattr(lanes, "RELANE_BATCH", 1)
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
            await engine._run(lanes.relane_step, number)
        if how == "redrive":
            await engine.amend(JobFilter(ids=(lease.id,)), Redrive(), limit=1)
        else:
            verdict = Retry() if how == "retry" else Complete()
            await engine.settle([Settlement(lease=lease, verdict=verdict)])
        await engine._sort_into_lanes(number)
        assert await engine.recount(100) == 0, mark
        left = {f"{name}-{mark}" for name in ("r0", "r1", "r2", "c")}
        while left:
            leases = await engine.lease(LeaseRequest(queues=("default",), limit=9))
            assert leases, f"{how}: after {steps} steps {left} are left"
            assert await engine.recount(100) == 0, mark
            await engine.settle([Settlement(lease=one, verdict=Complete()) for one in leases])
            left -= {one.id for one in leases}
    assert await look.fetchval("SELECT count(*) FROM strays") == 0


async def test_sorting_ends_while_jobs_keep_arriving(
    engine: PostgresEngine, monkeypatch: Any, look: Any
) -> None:
    """A job arrives before each step, and no step is repeated for it."""
    monkeypatch.setattr(lanes, "RELANE_BATCH", 3)
    await engine.enqueue([a_job(f"j{n}") for n in range(12)])
    await declare_unsorted(engine, a_queue("default", fairness="shares"))
    number = await look.fetchval("SELECT number FROM queues WHERE name = 'default'")
    steps = 0
    while await engine._run(lanes.relane_step, number):
        steps += 1
        assert steps < 20
        await engine.enqueue([a_job(f"g{steps}", group=f"g{steps}")])
    assert await look.fetchval("SELECT count(*) FROM jobs WHERE lane IS NULL") == 0
    assert await engine.recount(100) == 0


async def test_two_declarations_at_once(engine: PostgresEngine, look: Any) -> None:
    """One gives the queue lanes; the other, which read the queue before, wants none."""
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
async def test_recount_finds_a_job_in_a_wrong_lane(
    engine: PostgresEngine, look: Any, shape: int
) -> None:
    await engine.declare(SHAPES[1])
    await engine.enqueue([a_job("a"), a_job("b")])
    await engine.declare(SHAPES[shape])
    lane = await look.fetchval("SELECT min(number) FROM lanes") if shape == 0 else None
    await look.execute("UPDATE jobs SET lane = $1 WHERE seq = ANY (seqs_of(1, '{a}'))", lane)
    assert await lease_ids(engine) == ["b"]
    assert await engine.recount(100) > 0
    assert await lease_ids(engine) == ["a"]
    assert await engine.recount(100) == 0


async def test_a_job_is_done_while_it_is_chosen_to_be_sorted(
    engine: PostgresEngine, look: Any
) -> None:
    """Late, by a lease that had lapsed. The others come into their lanes all the same."""
    await engine.enqueue([a_job("late"), a_job("next", tenant="t")])
    [late] = await engine.lease(LeaseRequest(queues=("default",), limit=1))
    await engine.settle([Settlement(lease=late, verdict=Retry())])
    await declare_unsorted(engine, a_queue("default", fairness="shares"))
    number = await look.fetchval("SELECT number FROM queues WHERE name = 'default'")
    await look.execute("UPDATE jobs SET token = 7 WHERE seq = $1", late.job.seq)
    async with look.transaction():
        done = "SELECT complete_jobs(1, NULL, ARRAY[$1::bigint], '{7}', '{}')"
        assert await look.fetchval(done, late.job.seq) is None
        sorting = asyncio.create_task(engine._run(lanes.relane_step, number))
        await until_blocked(look)
    await sorting
    assert await engine.recount(100) == 0
    [lease] = await engine.lease(LeaseRequest(queues=("default",), limit=9))
    assert lease.id == "next"

"""Backlogs that make a naive queue scan: a leased job costs at most twice as much as a plain one.

Counted in SQLite's VM steps of a second call, without work that is done only once.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import pytest

from holdfast.core.limits import Limit, Rate
from holdfast.core.model import LeaseRequest, NewJob, Queue
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.testing.clock import ManualClock
from tests.engines.sqlite.conftest import OpenEngine
from tests.engines.sqlite.vm_steps import BATCH, metered

MANY = 100_000
OTHERS = 1_000
PER_TENANT = Limit(name="per", key="{tenant}", concurrency=1)
PER_SECOND = Limit(name="rate", key="{tenant}", rate=Rate(count=1, per_ms=1_000))

# `count` copies of a job, each at the position it would have if it had been enqueued.
CLONE = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)
INSERT INTO hf_jobs(seq, ns, queue, holds, rank, due_at, place, expires_at, created_at, id, task,
  tenant, grp, payload, flow, lane)
SELECT :first + i, ns, queue, holds, rank, due_at, :first + i, expires_at, created_at,
  printf('%s-%09d', id, i), task, tenant, grp, payload, flow, lane
FROM n, hf_jobs WHERE id = :id
"""


def clone(path: Path, id: str, count: int) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("synchronous", "off")
    connection.pragma("cache_size", -200_000)
    with connection:
        first = connection.execute("SELECT number FROM hf_meta").get
        connection.execute(CLONE, {"count": count, "first": first, "id": id})
        connection.execute("UPDATE hf_meta SET number = number + ?", (count,))
    connection.close()


async def fill(engine: SQLiteEngine, count: int = OTHERS, **given: object) -> None:
    for start in range(0, count, 500):
        ids = range(start, min(start + 500, count))
        await engine.enqueue([NewJob(id=f"other-{n}", task="t", **given) for n in ids])  # type: ignore[arg-type]


async def steps_per_job(engine: SQLiteEngine, queue: str = "default") -> float:
    request = LeaseRequest(queues=(queue,), limit=BATCH, worker="w")
    steps = 0.0
    for _ in range(2):
        with metered(engine) as meter:
            leases = await engine.lease(request)
        assert len(leases) == BATCH
        assert all(lease.id.startswith("other") for lease in leases)
        steps = meter.steps / BATCH
    return steps


async def plain_steps(tmp_path: Path, clock: ManualClock) -> float:
    engine = SQLiteEngine(tmp_path / "plain.db", durability="relaxed", clock=clock)
    await engine.open()
    await fill(engine)
    steps = await steps_per_job(engine)
    await engine.close()
    return steps


async def delayed(engine: SQLiteEngine, path: Path, clock: ManualClock) -> None:
    await engine.enqueue([NewJob(id="delayed", task="t", priority=9, delay_ms=60_000)])
    clone(path, "delayed", MANY)
    await fill(engine)


async def behind_a_head(engine: SQLiteEngine, path: Path, clock: ManualClock) -> None:
    members = [NewJob(id=id_, task="t", group="g", priority=9) for id_ in ("head", "member")]
    await engine.enqueue(members)
    clone(path, "member", MANY)
    (head,) = await engine.lease(LeaseRequest(queues=("default",)))
    assert head.id == "head"
    await fill(engine)


async def at_its_limit(engine: SQLiteEngine, path: Path, clock: ManualClock) -> None:
    await engine.declare(Queue(name="default", limits=(PER_TENANT,)))
    jobs = [NewJob(id=id_, task="t", tenant="full", priority=9) for id_ in ("first", "full")]
    await engine.enqueue(jobs)
    clone(path, "full", MANY)
    (first,) = await engine.lease(LeaseRequest(queues=("default",)))
    assert first.id == "first"
    await engine.declare(Queue(name="default", limits=(PER_TENANT,), lease_ms=60_000))
    for start in range(0, OTHERS, 500):
        await engine.enqueue(
            [NewJob(id=f"other-{n}", task="t", tenant=f"t{n}") for n in range(start, start + 500)]
        )


async def at_its_limit_before_plain(engine: SQLiteEngine, path: Path, clock: ManualClock) -> None:
    limit = Limit(name="per", task="bounded", concurrency=1)
    await engine.declare(Queue(name="default", limits=(limit,)))
    jobs = [NewJob(id=id_, task="bounded", priority=9) for id_ in ("first", "full")]
    await engine.enqueue(jobs)
    clone(path, "full", MANY)
    (first,) = await engine.lease(LeaseRequest(queues=("default",)))
    assert first.id == "first"
    await fill(engine)


async def blocked(engine: SQLiteEngine, path: Path, clock: ManualClock) -> None:
    jobs = [
        NewJob(id="parent", task="t", delay_ms=60_000),
        NewJob(id="child", task="t", priority=9, after=("parent",)),
    ]
    await engine.enqueue(jobs)
    clone(path, "child", MANY)
    await fill(engine)


async def many_tenants(engine: SQLiteEngine, path: Path, clock: ManualClock) -> None:
    await engine.declare(Queue(name="default", fairness="shares"))
    for start in range(0, 10_000, 500):
        await engine.enqueue(
            [NewJob(id=f"other-{n}", task="t", tenant=f"t{n}") for n in range(start, start + 500)]
        )
    connection = apsw.Connection(str(path))
    connection.pragma("synchronous", "off")
    with connection:
        first = connection.execute("SELECT number FROM hf_meta").get
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9)"
            " INSERT INTO hf_jobs(seq, ns, queue, holds, rank, due_at, place, created_at, id, task,"
            " tenant, payload, flow, lane) SELECT ?1 + i * 100000 + seq, ns, queue, holds, rank,"
            " due_at, ?1 + i * 100000 + seq, created_at, id || '-' || i, task, tenant, payload,"
            " flow, lane FROM n CROSS JOIN hf_jobs",
            (first,),
        )
        connection.execute("UPDATE hf_meta SET number = number + 1000000")
    connection.close()


async def over_its_rate(engine: SQLiteEngine, path: Path, clock: ManualClock) -> None:
    await engine.declare(Queue(name="default", limits=(PER_SECOND,)))
    jobs = [NewJob(id=id_, task="t", tenant="fast", priority=9) for id_ in ("first", "fast")]
    await engine.enqueue(jobs)
    clone(path, "fast", MANY)
    (first,) = await engine.lease(LeaseRequest(queues=("default",)))
    assert first.id == "first"
    for start in range(0, OTHERS, 500):
        await engine.enqueue(
            [NewJob(id=f"other-{n}", task="t", tenant=f"t{n}") for n in range(start, start + 500)]
        )


SHAPES = (
    delayed,
    behind_a_head,
    at_its_limit,
    at_its_limit_before_plain,
    blocked,
    many_tenants,
    over_its_rate,
)
Build = Callable[[SQLiteEngine, Path, ManualClock], Awaitable[None]]


@pytest.mark.parametrize("build", SHAPES, ids=lambda build: build.__name__)
async def test_a_lease_costs_at_most_twice_a_plain_one(
    build: Build, open_engine: OpenEngine, path: Path, tmp_path: Path, clock: ManualClock
) -> None:
    plain = await plain_steps(tmp_path, clock)
    engine = await open_engine()
    await build(engine, path, clock)
    steps = await steps_per_job(engine)
    print(f"{build.__name__}: {steps:.0f} steps a job, {steps / plain:.2f} of plain")
    assert steps <= 2 * plain


async def test_expired_jobs_in_front_cost_less_than_leasing_them(
    open_engine: OpenEngine, path: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """As many expired jobs as others: each is held once on the way."""
    plain = await plain_steps(tmp_path, clock)
    engine = await open_engine()
    await engine.enqueue([NewJob(id="stale", task="t", priority=9, expires_ms=10)])
    clone(path, "stale", MANY - 1)
    await engine.enqueue([NewJob(id="other", task="t")])
    clone(path, "other", MANY - 1)
    clock.advance(20)
    request = LeaseRequest(queues=("default",), limit=1_000, worker="w")
    spent = []
    for _ in range(MANY // 1_000):
        with metered(engine) as meter:
            assert len(await engine.lease(request)) == 1_000
        spent.append(meter.steps)
    print(f"{sum(spent) / MANY:.0f} steps a job, plain {plain:.0f}; first call {spent[0]}")
    assert sum(spent) <= 2 * plain * MANY
    assert spent[1] <= 2 * plain * 1_000


async def test_completing_the_parents_of_a_fan_in_costs_at_most_twice_as_much(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    engine = await open_engine()
    parents = [f"parent-{n}" for n in range(10_000)]
    steps = {}
    for kind in ("plain", "parent"):
        for start in range(0, 10_000, 1_000):
            ids = [f"{kind}-{n}" for n in range(start, start + 1_000)]
            await engine.enqueue([NewJob(id=id_, task="t") for id_ in ids])
        if kind == "parent":
            await engine.enqueue([NewJob(id="child", task="t", after=tuple(parents))])
        total = 0
        for _ in range(100):
            leases = await engine.lease(LeaseRequest(queues=("default",), limit=BATCH))
            done = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
            with metered(engine) as meter:
                assert await engine.settle(done) == [Outcome.SETTLED] * BATCH
            total += meter.steps
        steps[kind] = total / 10_000
    print(f"{steps['parent']:.0f} steps a parent, plain {steps['plain']:.0f}")
    (child,) = await engine.lease(LeaseRequest(queues=("default",), limit=BATCH))
    assert child.id == "child"
    assert len(child.job.after) == 10_000
    assert steps["parent"] <= 2 * steps["plain"]

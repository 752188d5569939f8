"""Hard shapes cost no more than twice the plain case: counted in buffers for each leased job.

Each shape is beside a plain queue in the same database, so that its size is the same for both.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from holdfast.core.limits import Limit, Rate
from holdfast.core.model import LeaseRequest, NewJob, Queue
from holdfast.core.verdict import Complete, Settlement
from holdfast.engines.postgres import PostgresEngine
from tests.engines.postgres.test_query_cost import Meter

MANY = 20_000
BATCH = 100
ROUNDS = 3
RATIO_MAX = 2.2
"""A job in a lane also reads and writes its lane, slots and head."""
PARENT_PAGES_MAX = 25
"""The end of a parent also reads its id, writes an ending, and finds and deletes an edge."""

# Copies of one waiting job, with what tells it apart from the others of its shape.
COPY = """
WITH copies AS MATERIALIZED (
    SELECT j.*, nextval('numbers') AS number
    FROM generate_series(1, $1::int), all_jobs j WHERE j.id = $2::text
), bodies_ AS (
    INSERT INTO bodies (seq, ns, created_at, tenant, grp, id, task, payload)
    SELECT number, ns, created_at, tenant, grp, 'copy-' || number, task, payload FROM copies
)
INSERT INTO jobs (seq, place, due_at, expires_at, ns, queue, rank, holds, flow, lane, tenant, grp,
                  task)
SELECT number, number, coalesce($3::bigint, due_at), $4::bigint, ns, queue, $5::int, $6::int,
       flow | $7::int, lane, tenant, grp, task
FROM copies
"""
FAR = 9_999_999_999_999


class Shape(NamedTuple):
    queue: Queue
    first: Callable[[], list[NewJob]]
    """Jobs enqueued first; the first of them is copied."""
    then: Callable[[int], NewJob]
    """The lease that is measured."""
    due_at: int | None = None
    expires_at: int | None = None
    rank: int = 0
    holds: int = 0
    flow: int = 0
    leased: int = 0
    """Jobs leased before the measurement."""


def a_queue(**settings: Any) -> Queue:
    return Queue(name="shape", lease_ms=3_600_000, **settings)


def job(id_: str, **more: Any) -> NewJob:
    return NewJob(id=id_, task="work", queue="shape", payload=b"{}", **more)


def plain(number: int) -> NewJob:
    return job(f"then-{number}", tenant=f"t{number % 5}")


BY_TENANT = Limit(name="by-tenant", key="{tenant}", concurrency=1_000)
SHAPES = {
    "a-delayed": Shape(a_queue(), lambda: [job("first", priority=9)], plain, due_at=FAR, rank=-9),
    "b-group": Shape(
        a_queue(), lambda: [job("first", group="g")], plain, holds=1, flow=16, leased=1
    ),
    "c-limited": Shape(
        a_queue(limits=(Limit(name="l", key="{tenant}", concurrency=1),)),
        lambda: [job("first", tenant="full"), job("second", tenant="full")],
        lambda n: job(f"then-{n}", tenant=f"t{n}"),
        leased=1,
    ),
    "c-limited-in-order": Shape(
        a_queue(limits=(BY_TENANT,)),
        lambda: [job("first", tenant="full")],
        lambda n: job(f"then-{n}", tenant=f"t{n % 20}", priority=1),
    ),
    "d-children": Shape(
        a_queue(),
        lambda: [job("parent"), job("first", after=("parent",))],
        plain,
        holds=1,
        leased=1,
    ),
    "g-over-its-rate": Shape(
        a_queue(limits=(Limit(name="r", key="{tenant}", rate=Rate(count=1, per_ms=86_400_000)),)),
        lambda: [job("first", tenant="full"), job("second", tenant="full")],
        lambda n: job(f"then-{n}", tenant=f"t{n}"),
        leased=1,
    ),
    "h-expired": Shape(a_queue(), lambda: [job("first")], plain, expires_at=1),
}


async def lease(engine: PostgresEngine, queue: str, count: int) -> None:
    leases = await engine.lease(LeaseRequest(queues=(queue,), limit=count, worker="w"))
    assert len(leases) == count
    assert queue == "plain" or all(not one.id.startswith("copy") for one in leases)


async def pages(engine: PostgresEngine, queue: Queue, then: Callable[[int], NewJob]) -> float:
    """Buffers for each leased job, with warm caches."""
    total = 0
    for number in range(ROUNDS + 1):
        batch = [then(number * BATCH + n) for n in range(BATCH)]
        await engine.enqueue(batch)
        meter = Meter(engine)
        await lease(engine, queue.name, BATCH)
        meter.remove()
        total += sum(meter.pages.values()) if number else 0
    return total / ROUNDS / BATCH


def plain_then(number: int) -> NewJob:
    return NewJob(id=f"plain-{number}", task="work", queue="plain", payload=b"{}")


@pytest.mark.parametrize("name", SHAPES)
async def test_a_hard_shape(pg_dsn: str, look: Any, name: str) -> None:
    shape = SHAPES[name]
    engine = PostgresEngine(pg_dsn, connections=1)
    await engine.open()
    await engine.declare(Queue(name="plain"))
    await engine.declare(shape.queue)
    await engine.enqueue(shape.first())
    if shape.leased:
        await lease(engine, "shape", shape.leased)
    # The waiting job stands for all of them.
    waiting = await look.fetchval("SELECT id FROM all_jobs WHERE state = 0 LIMIT 1") or "first"
    if name == "b-group":
        await engine.enqueue([job("next", group="g")])
        waiting, shape = "next", shape._replace(flow=0)
    await look.execute(
        COPY, MANY, waiting, shape.due_at, shape.expires_at, shape.rank, shape.holds, shape.flow
    )
    await look.execute("VACUUM ANALYZE jobs, bodies, done")
    easy = await pages(engine, Queue(name="plain"), plain_then)
    hard = await pages(engine, shape.queue, shape.then)
    await engine.close()
    print(f"{name}: {hard:.1f} pages for each leased job, plain {easy:.1f}: {hard / easy:.2f}")
    assert hard <= RATIO_MAX * easy


async def test_many_tenants(pg_dsn: str, look: Any) -> None:
    """(e) Each with a few jobs, one after the other."""
    engine = PostgresEngine(pg_dsn, connections=1)
    await engine.open()
    await engine.declare(Queue(name="plain"))
    await engine.declare(a_queue(fairness="shares"))
    for start in range(0, MANY // 2, 1_000):
        await engine.enqueue(
            [job(f"j{n}", tenant=f"t{n % 1_000}") for n in range(start, start + 1_000)]
        )
    await look.execute("VACUUM ANALYZE jobs, bodies, done")
    easy = await pages(engine, Queue(name="plain"), plain_then)
    await lease(engine, "shape", BATCH)
    meter = Meter(engine)
    for _ in range(ROUNDS):
        await lease(engine, "shape", BATCH)
    meter.remove()
    await engine.close()
    hard = sum(meter.pages.values()) / ROUNDS / BATCH
    print(f"tenants: {hard:.1f} pages for each leased job, plain {easy:.1f}: {hard / easy:.2f}")
    assert hard <= RATIO_MAX * easy


async def test_a_child_of_many(pg_dsn: str) -> None:
    """(f) One child waits for many parents, which end."""
    engine = PostgresEngine(pg_dsn, connections=1)
    await engine.open()
    costs: dict[str, int] = {}
    for queue in ("plain", "shape"):
        await engine.declare(Queue(name=queue, lease_ms=3_600_000))
        ids = [f"{queue}-{n}" for n in range(2_000)]
        for start in range(0, len(ids), 1_000):
            await engine.enqueue(
                [
                    NewJob(id=id_, task="work", queue=queue, payload=b"{}")
                    for id_ in ids[start : start + 1_000]
                ]
            )
        if queue == "shape":
            await engine.enqueue([job("child", after=tuple(ids))])
        for number in range(ROUNDS + 1):
            leases = await engine.lease(LeaseRequest(queues=(queue,), limit=BATCH))
            meter = Meter(engine)
            await engine.settle([Settlement(lease=one, verdict=Complete()) for one in leases])
            meter.remove()
            if number:
                costs[queue] = costs.get(queue, 0) + sum(meter.pages.values())
    await engine.close()
    easy, hard = (costs[queue] / ROUNDS / BATCH for queue in ("plain", "shape"))
    print(f"parents: {hard:.1f} pages for each ended job, plain {easy:.1f}: {hard / easy:.2f}")
    assert hard <= easy + PARENT_PAGES_MAX

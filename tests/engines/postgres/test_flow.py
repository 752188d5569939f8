"""Flow control in a caller's transaction, after a crash, and when its counters are wrong."""

from typing import Any

import asyncpg
import pytest

from holdfast.conformance.contract.cases import a_job, a_queue, lease_ids, lease_one
from holdfast.core.limits import Limit
from holdfast.core.model import JobFilter, LeaseRequest, State
from holdfast.core.verdict import Cancel, Complete, Expedite, Outcome, Settlement
from holdfast.engines.postgres import PostgresEngine
from holdfast.engines.postgres.flow import dependencies

ONE = Limit(name="one", concurrency=1)


@pytest.mark.parametrize("commits", [True, False])
async def test_children_groups_and_slots_in_a_callers_transaction(
    engine: PostgresEngine, pg_dsn: str, commits: bool
) -> None:
    await engine.declare(a_queue("limited", limits=(ONE,)))
    await engine.enqueue([a_job("parent"), a_job("g1", group="g"), a_job("g2", group="g")])
    await engine.enqueue([a_job("a", queue="limited"), a_job("b", queue="limited")])
    request = LeaseRequest(queues=("default", "limited"), limit=9)
    leases = await engine.lease(request)
    assert [lease.id for lease in leases] == ["parent", "g1", "a"]
    connection = await asyncpg.connect(pg_dsn)
    transaction = connection.transaction()
    await transaction.start()
    within: Any = engine.within(connection)
    await within.enqueue([a_job("child", after=("parent",)), a_job("g3", group="g")])
    ends = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
    assert set(await within.settle(ends)) == {Outcome.SETTLED}
    await (transaction.commit() if commits else transaction.rollback())
    await connection.close()
    freed = [lease.id for lease in await engine.lease(request)]
    assert freed == (["g2", "child", "b"] if commits else [])
    assert await engine.recount(100) == 0


async def test_children_are_told_of_an_ending_after_a_crash(
    engine: PostgresEngine, look: Any
) -> None:
    """The process died after the end of the parent and before its children were told."""

    async def die(endings: object) -> None:
        del endings

    await engine.enqueue([a_job("parent"), a_job("child", after=("parent",))])
    engine._tell_children = die  # type: ignore[method-assign]
    lease = await lease_one(engine)
    await engine.settle([Settlement(lease=lease, verdict=Complete())])
    assert await lease_ids(engine) == []
    other = PostgresEngine(engine._pool._dsn)  # type: ignore[union-attr]
    await other.open()
    assert await other.recount(100) == 0, "another call may still tell them"
    await look.execute("UPDATE endings SET at = 0")
    assert await other.recount(100) == 1
    assert await lease_ids(other) == ["child"]
    assert await other.recount(100) == 0
    await other.close()


async def test_endings_are_told_in_order_in_small_batches(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies, "TELL_BATCH", 1)
    family = {"a": "q", "b": "p", "c": "ab", "d": "bq", "e": "cd"}
    await engine.enqueue([a_job(id_) for id_ in "pq"])
    await engine.enqueue([a_job(id_, after=tuple(parents)) for id_, parents in family.items()])
    assert await engine.amend(JobFilter(ids=("p", "q")), Cancel(), limit=9) == 2
    named = {}
    for id_ in family:
        job = await engine.get(id_)
        assert job is not None
        named[id_] = [event.text for event in job.events]
    first = {"a": "q", "b": "p", "c": "b", "d": "q", "e": "d"}
    assert named == {id_: [f"parent {parent} is cancelled"] for id_, parent in first.items()}


async def test_endings_are_told_in_order_of_arrival_with_and_without_flow_lock(
    engine: PostgresEngine,
) -> None:
    await engine.declare(a_queue("default", fairness="shares"))
    child = a_job("child", after=("q", "p"), after_on="death")
    await engine.enqueue([a_job("p", group="g"), a_job("q"), child])
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=2))
    ends = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
    assert await engine.settle(ends[::-1]) == [Outcome.SETTLED] * 2
    job = await engine.get("child")
    assert job is not None
    assert [event.text for event in job.events] == ["parent p is done"]


async def test_crash_between_declare_and_sorting(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(self: object, number: int) -> None:
        del self, number

    await engine.enqueue([a_job(f"j{n}", tenant=f"t{n % 2}") for n in range(4)])
    with monkeypatch.context() as patch:
        patch.setattr(PostgresEngine, "_sort_into_lanes", die)
        await engine.declare(
            a_queue("default", limits=(Limit(name="l", key="{tenant}", concurrency=1),))
        )
    assert await lease_ids(engine) == ["j0", "j1"]
    with monkeypatch.context() as patch:
        patch.setattr(PostgresEngine, "_sort_into_lanes", die)
        await engine.declare(a_queue("default"))
    assert await lease_ids(engine) == ["j2", "j3"]
    assert await engine.recount(100) == 0


async def test_many_jobs_are_sorted_in_batches(engine: PostgresEngine, look: Any) -> None:
    for start in range(0, 3_000, 1_000):
        await engine.enqueue(
            [
                a_job(f"j{n}", tenant=f"t{n % 7}", delay_ms=n % 2)
                for n in range(start, start + 1_000)
            ]
        )
    await engine.declare(a_queue("default", fairness="shares"))
    assert await look.fetchval("SELECT count(*) FROM jobs WHERE lane IS NULL") == 0
    assert await look.fetchval("SELECT count(*) FROM heads") == 7
    await engine.declare(a_queue("default"))
    assert await look.fetchval("SELECT count(*) FROM jobs WHERE lane IS NOT NULL OR flow <> 0") == 0
    await engine.recount(100)
    assert await look.fetchval("SELECT count(*) FROM lanes") == 0, "no job needs them"


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE slots SET used = used + 1",
        "UPDATE slots SET used = 0",
        "DELETE FROM heads",
        "UPDATE heads SET place = place + 1",
        "UPDATE heads SET parked = (SELECT max(number) FROM slots)",
        "UPDATE jobs SET flow = flow | 16, holds = holds + 1 WHERE seq = ANY (seqs_of(1, '{g1}'))",
    ],
)
async def test_recount_repairs_wrong_counters(engine: PostgresEngine, look: Any, harm: str) -> None:
    await engine.declare(a_queue("default", limits=(Limit(name="l", concurrency=2),)))
    await engine.enqueue([a_job("a"), a_job("g1", group="g"), a_job("g2", group="g"), a_job("b")])
    lease = await lease_one(engine)
    assert await engine.recount(100) == 0
    await look.execute(harm)
    mended = 0
    for _ in range(3):
        mended += await engine.recount(1)
    assert mended > 0
    assert await engine.recount(100) == 0
    assert await lease_ids(engine) == ["g1"]
    await engine.settle([Settlement(lease=lease, verdict=Complete())])
    assert await lease_ids(engine) == ["b"]


async def test_an_expedited_child_still_waits(engine: PostgresEngine) -> None:
    await engine.enqueue([a_job("parent", delay_ms=3_600_000), a_job("child", after=("parent",))])
    await engine.amend(JobFilter(ids=("child",)), Expedite(), limit=1)
    assert await lease_ids(engine) == []
    await engine.amend(JobFilter(ids=("parent",)), Expedite(), limit=1)
    assert await lease_ids(engine) == ["parent"]
    job = await engine.get("child")
    assert job is not None
    assert (job.state, job.after) == (State.WAITING, ("parent",))

"""Two calls for one row at the same time: one is held open until the other waits for it."""

import asyncio
from typing import Any

import asyncpg
import pytest

from holdfast.conformance.contract.cases import (
    a_job,
    a_queue,
    from_default,
    jobs,
    lease_ids,
    lease_one,
    settle,
)
from holdfast.core import bounds, retry_policy
from holdfast.core.model import JobFilter, LeaseRequest, Renewal, State, Status
from holdfast.core.verdict import Complete, Edit, Outcome, Retry, Settlement
from holdfast.engines.postgres import PostgresEngine
from holdfast.testing.clock import ManualClock
from tests.engines.postgres.until import until, until_blocked


async def test_a_completion_waits_for_a_renewal_and_wins(engine: PostgresEngine, look: Any) -> None:
    """The row is updated while the completion waits for it: the new version must be found."""
    await engine.enqueue(jobs("abc"))
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=3))
    async with look.transaction():
        await look.execute(
            "UPDATE jobs SET deadline_at = deadline_at + 1 WHERE seq = ANY (seqs_of(1, '{b}'))",
        )
        settlements = [Settlement(lease=lease, verdict=Complete(b"1")) for lease in leases]
        settling = asyncio.create_task(engine.settle(settlements))
        await until_blocked(look)
    assert await settling == [Outcome.SETTLED] * 3
    assert [job.state for id_ in "abc" if (job := await engine.get(id_))] == [State.DONE] * 3


async def test_a_completion_that_waited_for_its_own_repeat(
    engine: PostgresEngine, look: Any
) -> None:
    await engine.enqueue(jobs("ab"))
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=2))
    async with look.transaction():
        done = "SELECT complete_jobs(1, 1, seqs_of(1, '{a}'), ARRAY[$1::bigint], '{}')"
        assert await look.fetchval(done, leases[0].token) is None
        await look.execute("UPDATE jobs SET token = 1 WHERE seq = ANY (seqs_of(1, '{b}'))")
        settlements = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
        settling = asyncio.create_task(engine.settle(settlements))
        await until_blocked(look)
    assert await settling == [Outcome.SETTLED, Outcome.LOST]


async def test_a_renewal_that_waited_for_the_reaper_is_lost(
    engine: PostgresEngine, look: Any
) -> None:
    await engine.enqueue(jobs("a"))
    lease = await lease_one(engine)
    async with look.transaction():
        await look.execute(
            "UPDATE jobs SET state = 0, deadline_at = NULL WHERE seq = ANY (seqs_of(1, '{a}'))",
        )
        renewing = asyncio.create_task(engine.renew([Renewal(lease=lease)]))
        await until_blocked(look)
    assert await renewing == [None]


async def test_a_renewal_that_waited_past_its_deadline_is_lost(
    engine: PostgresEngine, look: Any
) -> None:
    await engine.enqueue(jobs("a"))
    lease = await lease_one(engine, lease_ms=1_000)
    async with look.transaction():
        await look.execute("SELECT FROM jobs WHERE seq = ANY (seqs_of(1, '{a}')) FOR UPDATE")
        renewing = asyncio.create_task(engine.renew([Renewal(lease=lease, lease_ms=60_000)]))
        await until_blocked(look)
        lapsed = "SELECT deadline_at <= now_ms(NULL) FROM all_jobs WHERE id = 'a'"
        await until(lambda: look.fetchval(lapsed))
    assert await renewing == [None]
    assert [overdue.id for overdue in (await engine.overdue(10)).leases] == ["a"]


async def test_edit_that_waited_changes_the_new_version(engine: PostgresEngine, look: Any) -> None:
    await engine.enqueue(jobs("ab"))
    async with look.transaction():
        await look.execute(
            "UPDATE jobs SET attempt = 7, version = 9 WHERE seq = ANY (seqs_of(1, '{a}'))",
        )
        editing = asyncio.create_task(
            engine.amend(JobFilter(ids=("a", "b")), Edit(payload=b""), limit=2)
        )
        await until_blocked(look)
    assert await editing == 2
    job = await engine.get("a")
    assert job is not None
    assert (job.attempt, job.version, job.payload) == (7, 10, b"")


async def test_lease_skips_locked_rows(engine: PostgresEngine, look: Any) -> None:
    await engine.enqueue(jobs("abc"))
    async with look.transaction():
        await look.execute("SELECT FROM jobs WHERE seq = ANY (seqs_of(1, '{b}')) FOR UPDATE")
        assert await lease_ids(engine) == ["a", "c"]
    assert await lease_ids(engine) == ["b"]


async def test_lease_skips_a_job_that_gets_a_child(engine: PostgresEngine, look: Any) -> None:
    await engine.declare(a_queue("deep", max_depth=1))
    await engine.enqueue(jobs("ab"))
    async with look.transaction():
        await look.execute("SELECT FROM queues WHERE name = 'deep' FOR UPDATE")
        adding = asyncio.create_task(engine.enqueue([a_job("c", queue="deep", after=("a",))]))
        await until_blocked(look)
        assert await lease_ids(engine) == ["b"]
    assert [receipt.status for receipt in await adding] == [Status.NEW]
    assert await lease_ids(engine) == ["a"]


async def test_lease_skips_a_job_whose_former_lease_is_settled(
    engine: PostgresEngine, look: Any
) -> None:
    await engine.enqueue(jobs("ab"))
    former = await engine.lease(LeaseRequest(queues=("default",), limit=2))
    await engine.settle([Settlement(lease=former[0], verdict=Retry())])
    await engine.enqueue(jobs("c"))
    again = [Settlement(lease=lease, verdict=Retry()) for lease in former]
    async with look.transaction():
        await look.execute("SELECT FROM jobs WHERE seq = ANY (seqs_of(1, '{b}')) FOR UPDATE")
        settling = asyncio.create_task(engine.settle(again))
        await until_blocked(look)
        assert await lease_ids(engine) == ["c"]
    assert await settling == [Outcome.SETTLED] * 2
    assert await lease_ids(engine) == ["a", "b"]


async def test_a_dropped_queue_goes_in_steps(engine: PostgresEngine, look: Any) -> None:
    """A job that another call holds is left to the pruner; readers see none of them."""
    await engine.declare(a_queue("q"))
    for start in range(0, 2_500, 500):
        await engine.enqueue(
            [a_job(f"j{n}", queue="q", key=f"k{n}") for n in range(start, start + 500)]
        )
    (lease,) = await engine.lease(LeaseRequest(queues=("q",)))
    await engine.settle([Settlement(lease=lease, verdict=Retry())])
    async with look.transaction():
        await look.execute("SELECT FROM jobs WHERE seq = ANY (seqs_of(1, '{j7}')) FOR UPDATE")
        await engine.drop("q")
        assert await look.fetchval("SELECT count(*) FROM bodies") == 1
    assert await engine.get("j7") is None
    assert (await engine.find(JobFilter(), limit=10)).jobs == ()
    await engine.finished(10)
    for table in ("jobs", "events", "keys"):
        assert await look.fetchval(f"SELECT count(*) FROM {table}") == 0
    await engine.declare(a_queue("q"))
    await engine.enqueue([a_job("j7", queue="q", key="k7")])
    assert [lease.id for lease in await engine.lease(LeaseRequest(queues=("q",)))] == ["j7"]


@pytest.mark.parametrize("key", [None, "k"])
async def test_leftovers_of_a_dropped_queue_take_no_id(
    engine: PostgresEngine, look: Any, key: str | None
) -> None:
    """A producer that gets DUPLICATE relies on a job that can be leased."""
    await engine.declare(a_queue("q"))
    await engine.enqueue([a_job("a", queue="q"), a_job("b", queue="q")])
    async with look.transaction():
        await look.execute("SELECT FROM jobs FOR UPDATE")
        await engine.drop("q")
    assert await look.fetchval("SELECT count(*) FROM bodies") == 2
    receipts = await engine.enqueue([a_job("a", key=key), a_job("c")])
    assert [receipt.status for receipt in receipts] == [Status.NEW] * 2
    assert await lease_ids(engine) == ["a", "c"]


async def test_held_keys_do_not_delay_the_removal_of_free_ones(pg_dsn: str, look: Any) -> None:
    """A call removes a bounded number and continues where the last one ended."""
    clock = ManualClock()
    engine = PostgresEngine(pg_dsn, clock=clock)
    await engine.open()
    for start in (0, 1_000):
        await engine.enqueue([a_job(f"j{n}", key=f"k{n}") for n in range(start, start + 1_000)])
    await engine.enqueue([a_job("z", key="free", priority=1)])
    lease = await lease_one(engine)
    await engine.settle([Settlement(lease=lease, verdict=Complete())])
    clock.advance(bounds.KEY_WINDOW_MS)
    await look.execute("UPDATE keys SET look_at = look_at - 1 WHERE key <> 'free'")
    left = []
    for _ in range(3):
        await engine.finished(1)
        left.append(await look.fetchval("SELECT count(*) FROM keys WHERE key = 'free'"))
    assert left == [1, 1, 0]
    assert await look.fetchval("SELECT count(*) FROM keys") == 2_000
    await engine.close()


async def test_default_isolation_level_of_the_database_does_not_matter(
    pg_dsn: str, look: Any
) -> None:
    """A bounded queue is counted after the wait for the call that fills it."""
    database = await look.fetchval("SELECT quote_ident(current_database())")
    await look.execute(
        f"ALTER DATABASE {database} SET default_transaction_isolation = 'repeatable read'"
    )
    engine = PostgresEngine(pg_dsn)
    await engine.open()
    await engine.declare(a_queue(max_depth=1))
    other = PostgresEngine(pg_dsn)
    await other.open()
    connection = await asyncpg.connect(pg_dsn)
    within: Any = engine.within(connection)
    async with connection.transaction(isolation="read_committed"):
        await within.enqueue(jobs("a"))
        enqueuing = asyncio.create_task(other.enqueue(jobs("b")))
        await until_blocked(look)
    assert [receipt.code for receipt in await enqueuing] == ["queue_full"]
    await connection.close()
    await other.close()
    await engine.close()


@pytest.mark.parametrize("wait_ms", [0, 60_000])
async def test_jobs_leased_for_a_cancelled_caller_are_given_back(
    engine: PostgresEngine, look: Any, wait_ms: int
) -> None:
    await engine.enqueue(jobs("ab"))
    async with look.transaction():
        await look.execute("LOCK TABLE queues")
        caller = asyncio.create_task(engine.lease(from_default(9, wait_ms=wait_ms)))
        await until_blocked(look)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0)
        assert not closing.done(), "it waits for calls in flight"
    await closing
    await engine.open()
    for id_ in "ab":
        job = await engine.get(id_)
        assert job is not None
        assert (job.state, job.attempt, job.releases) == (State.WAITING, 0, 0)


async def test_a_renewal_on_its_way_is_not_overlooked_by_the_reaper(pg_dsn: str, look: Any) -> None:
    clock = ManualClock()
    engine = PostgresEngine(pg_dsn, clock=clock)
    await engine.open()
    await engine.enqueue([a_job("a")])
    lease = await lease_one(engine)
    clock.advance(lease.lease_ms - 1)
    async with look.transaction():
        renewed = await look.fetch(
            "SELECT * FROM renew_leases(1, $1, $2, $3, $4, '{}', '{}', '{}')",
            clock.wall_ms(), ["a"], [lease.token], [lease.lease_ms],
        )  # fmt: skip
        assert len(renewed) == 1
        clock.advance(1)
        (lapsed,) = (await engine.overdue(9)).leases
    verdict = retry_policy.after_overdue(a_queue(), lapsed.job)
    assert await settle(engine, lapsed, verdict) is Outcome.LOST
    clock.advance(lease.lease_ms - 2)
    assert await settle(engine, lease, Complete(b"r")) is Outcome.SETTLED
    await engine.close()

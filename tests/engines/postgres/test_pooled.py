"""With `pooled` no state is kept in a session: each transaction may run on another connection.

The simulated pooler gives every statement outside a transaction, and every transaction, a session
that was just emptied.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.conformance.contract.cases import a_job, a_queue, jobs, lease_ids
from holdfast.core.model import (
    JobFilter,
    LeaseRequest,
    Note,
    Record,
    Renewal,
    State,
    Status,
)
from holdfast.core.verdict import (
    Cancel,
    Complete,
    Delete,
    Outcome,
    Redrive,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.engines.base import Saved
from holdfast.engines.postgres import PostgresEngine
from tests.engines.pg_connections import ForgetfulConnections


@pytest.fixture
async def pooled(pg_dsn: str) -> AsyncIterator[PostgresEngine]:
    with ForgetfulConnections() as reused:
        engine = reused.engine(pg_dsn, connections=2)
        await engine.open()
        yield engine
        await engine.close()


async def test_every_call(pooled: PostgresEngine) -> None:
    await pooled.declare(a_queue("q", max_depth=10))
    receipts = await pooled.enqueue([*jobs("abc"), a_job("d", key="k"), a_job("e", queue="q")])
    assert {receipt.status for receipt in receipts} == {Status.NEW}
    leases = await pooled.lease(LeaseRequest(queues=("default", "q"), limit=5, wait_ms=1_000))
    assert [lease.id for lease in leases] == ["a", "b", "c", "d", "e"]
    note = Note(progress=0.5, checkpoint=b"c", output=b"o")
    assert all(await pooled.renew([Renewal(lease=lease, note=note) for lease in leases]))
    verdicts: list[Verdict] = [
        Complete(then=(a_job("f"),)),
        Retry(),
        Complete(),
        Complete(),
        Complete(),
    ]
    settlements = [
        Settlement(lease=lease, verdict=verdict)
        for lease, verdict in zip(leases, verdicts, strict=True)
    ]
    assert await pooled.settle(settlements) == [Outcome.SETTLED] * 5
    assert await pooled.settle(settlements[2:]) == [Outcome.SETTLED] * 3
    job = await pooled.get("b")
    assert job is not None
    assert (job.state, job.checkpoint, len(job.events)) == (State.WAITING, b"c", 1)
    assert len((await pooled.find(JobFilter(), limit=10)).jobs) == 6
    assert (await pooled.tally(JobFilter(), "state", limit=9))[0].count == 4
    assert await pooled.amend(JobFilter(ids=("f",)), Cancel(), limit=1) == 1
    cancelled = JobFilter(states=(State.CANCELLED,))
    assert await pooled.amend(cancelled, Redrive(), limit=9) == 1
    assert await pooled.amend(JobFilter(ids=("a",)), Delete(), limit=9) == 1
    assert (await pooled.overdue(10)).leases == ()
    assert (await pooled.expired(10)).jobs == ()
    assert await pooled.finished(10) == []
    record = Record(kind="setting", key="a", value=b"v")
    assert await pooled.save([record]) == [Saved.SAVED]
    assert [one.value for one in await pooled.load("setting", limit=5)] == [b"v"]
    await pooled.drop("q")
    assert [view.queue.name for view in await pooled.queues()] == ["default"]
    assert set(await lease_ids(pooled)) == {"b", "f"}


async def test_waiting_lease_polls(pooled: PostgresEngine, pg_dsn: str) -> None:
    """A job of another engine is found without a notification."""
    waiting = asyncio.create_task(pooled.lease(LeaseRequest(queues=("default",), wait_ms=60_000)))
    other = PostgresEngine(pg_dsn, pooled=True)
    await other.open()
    await other.enqueue(jobs("a"))
    assert [lease.id for lease in await waiting] == ["a"]
    await other.close()

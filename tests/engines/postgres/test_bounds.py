"""Calls at their bounds: the largest batches, and many expired jobs in front."""

from typing import Any

import pytest

from holdfast.conformance.contract.cases import a_job, a_queue
from holdfast.core.model import LeaseRequest, Note, Renewal, State, Status
from holdfast.core.verdict import Bury, Complete, Outcome, Settlement
from holdfast.engines.postgres import PostgresEngine, script
from holdfast.engines.postgres.script import Statement

LARGE = bytes(range(256)) * 16
COUNT = 40


@pytest.fixture
def carried(engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes sent with each statement; ten large values are the most allowed."""
    most = 10 * len(LARGE)
    for module in ("script", "enqueue", "settle"):
        path = f"holdfast.engines.postgres.{module}.STATEMENT_BYTES_MAX"
        monkeypatch.setattr(path, most)
    sizes: list[int] = []
    pool, _ = engine._opened()
    fetch = pool._fetch

    async def weigh(connection: Any, statement: Statement) -> list[Any]:
        columns = [value for value in statement.values if isinstance(value, list)]
        sizes.append(
            sum(len(one) for column in columns for one in column if isinstance(one, bytes))
        )
        return await fetch(connection, statement)

    monkeypatch.setattr(pool, "_fetch", weigh)
    return sizes


async def test_large_batches_are_split_into_statements(
    engine: PostgresEngine, carried: list[int]
) -> None:
    """The server copies the values of a statement several times: 1,000 × 1 MiB took 4 GB."""
    ids = [f"j{number}" for number in range(COUNT)]
    receipts = await engine.enqueue([a_job(id_, payload=LARGE) for id_ in ids])
    assert [receipt.status for receipt in receipts] == [Status.NEW] * COUNT
    again = await engine.enqueue([a_job(id_, payload=LARGE) for id_ in reversed(ids)])
    assert [receipt.status for receipt in again] == [Status.DUPLICATE] * COUNT
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=COUNT))
    assert [lease.id for lease in leases] == ids
    note = Note(checkpoint=LARGE)
    renewed = await engine.renew([Renewal(lease=lease, note=note) for lease in reversed(leases)])
    assert [lease and lease.id for lease in renewed] == ids[::-1]
    half = COUNT // 2
    done = [Settlement(lease=lease, verdict=Complete(LARGE)) for lease in leases[:half]]
    assert await engine.settle(done) == [Outcome.SETTLED] * half
    assert await engine.settle(done) == [Outcome.SETTLED] * half
    dead = [Settlement(lease=one, verdict=Bury(), note=Note(output=LARGE)) for one in leases[half:]]
    assert await engine.settle(dead) == [Outcome.SETTLED] * half
    for id_, state in ((ids[0], State.DONE), (ids[-1], State.DEAD)):
        job = await engine.get(id_)
        assert job is not None
        assert (job.state, job.payload, job.checkpoint) == (state, LARGE, LARGE)
    assert max(carried) > 5 * len(LARGE), "nothing was measured"
    assert max(carried) <= script.STATEMENT_BYTES_MAX + 100 * COUNT


async def test_expired_jobs_behind_ready_ones_of_another_queue(engine: PostgresEngine) -> None:
    """More expired jobs than one statement puts aside, after the first queue's jobs were leased."""
    await engine.declare(a_queue("first"))
    await engine.declare(a_queue("second"))
    await engine.enqueue([a_job("a", queue="first"), a_job("b", queue="second")])
    for start in range(0, 6_000, 1_000):
        ids = [f"x{number}" for number in range(start, start + 1_000)]
        await engine.enqueue([a_job(id_, queue="second", expires_ms=0) for id_ in ids])
    request = LeaseRequest(queues=("first", "second"), limit=5)
    leases = [lease.id for _ in range(2) for lease in await engine.lease(request)]
    assert leases == ["a", "b"]


async def test_id_requested_twice_counts_once(engine: PostgresEngine) -> None:
    await engine.enqueue([a_job("a"), a_job("b")])
    leases = await engine.lease(LeaseRequest(ids=("a", "a", "b"), limit=2))
    assert [lease.id for lease in leases] == ["a", "b"]

"""Waiting leases are woken at once by another engine or process; no other call is notified."""

import asyncio
import subprocess
import sys
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from holdfast.conformance.contract.cases import a_job, a_queue, jobs, lease_one
from holdfast.core.limits import Limit, Rate
from holdfast.core.model import Lease, LeaseRequest
from holdfast.core.verdict import Complete, Retry, Settlement
from holdfast.engines.lease import LeaseAttempt
from holdfast.engines.postgres import PostgresEngine
from holdfast.engines.postgres import engine as engine_module
from holdfast.engines.postgres import wait as wait_module
from holdfast.engines.postgres.wait import LeaseWait, NextDue
from holdfast.engines.postgres.within import AsyncPostgresWithin
from holdfast.testing.clock import ManualClock
from tests.engines.postgres.until import until, until_notified, until_waiting

PATIENT = LeaseRequest(queues=("default",), wait_ms=60_000)


async def test_notifications_only_while_a_lease_waits(engine: PostgresEngine, look: Any) -> None:
    heard: list[str] = []
    await look.add_listener("holdfast_1", lambda *told: heard.append(told[-1]))
    await engine.enqueue(jobs("ab"))
    await engine.enqueue([a_job("c", key="k")])
    await look.execute("SELECT 1")
    assert heard == []
    for _ in "abc":
        await lease_one(engine)
    waiting = asyncio.create_task(engine.lease(PATIENT))
    await until_notified(engine)
    await engine.enqueue([a_job(f"n{number}") for number in range(100)])
    await waiting
    await look.execute("SELECT 1")
    assert len(heard) == 1, "one for the batch"


async def test_another_engine_wakes(engine: PostgresEngine, pg_dsn: str, monkeypatch: Any) -> None:
    # Without polling a wait ends by a notification or not at all.
    monkeypatch.setattr(engine_module, "_NET_MS", (3_600_000, 3_600_000))
    other = PostgresEngine(pg_dsn)
    await other.open()
    await other.declare(a_queue("q", paused=True))

    async def woken(act: Any, queue: str = "default") -> str:
        waiting = asyncio.create_task(engine.lease(LeaseRequest(queues=(queue,), wait_ms=60_000)))
        await until_notified(engine)
        await act()
        (lease,) = await waiting
        return lease.id

    assert await woken(lambda: other.enqueue(jobs("a"))) == "a"
    assert await woken(lambda: other.enqueue([a_job("b", delay_ms=50)])) == "b"
    assert await woken(lambda: other.enqueue([a_job("c", key="k")])) == "c"
    await other.enqueue([a_job("p", queue="q")])
    assert await woken(lambda: other.declare(a_queue("q")), "q") == "p"
    await other.close()


async def test_retry_by_another_engine_wakes(
    engine: PostgresEngine, pg_dsn: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(engine_module, "_NET_MS", (3_600_000, 3_600_000))
    other = PostgresEngine(pg_dsn)
    await other.open()
    await other.enqueue(jobs("a"))
    lease = await lease_one(other)
    waiting = asyncio.create_task(engine.lease(PATIENT))
    await until_notified(engine)
    await other.settle([Settlement(lease=lease, verdict=Retry(20))])
    assert [again.id for again in await waiting] == ["a"]
    await other.close()


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("waits_for", ["its time", "its name's time", "a rate"])
async def test_job_due_between_lease_and_wait(
    pg_dsn: str, monkeypatch: Any, waits_for: str, is_first: bool
) -> None:
    monkeypatch.setattr(engine_module, "_NET_MS", (3_600_000, 3_600_000))
    clock = ManualClock()
    engine = PostgresEngine(pg_dsn, clock=clock, pooled=True)
    await engine.open()
    queue = a_queue("default", limits=(Limit(name="slow", rate=Rate(count=1, per_ms=1_000)),))
    if waits_for == "a rate":
        await engine.declare(queue)
        await engine.enqueue(jobs("ab"))
        assert (await lease_one(engine)).id == "a"
    else:
        await engine.enqueue([a_job("b", delay_ms=1_000)])
    linger = engine._next_due
    late_ms = [1_000]
    rung = sys.maxsize

    async def late(request: LeaseRequest, seen_at: int | None) -> Any:
        if is_first or engine._bell.ticket > rung:
            clock.advance(late_ms.pop() if late_ms else 0)
        return await linger(request, seen_at)

    monkeypatch.setattr(engine, "_next_due", late)
    request = LeaseRequest(ids=("b",)) if waits_for == "its name's time" else PATIENT
    waiting = asyncio.create_task(engine.lease(replace(request, wait_ms=3_600_000)))
    if not is_first:
        await until_waiting(engine)
        rung = engine._bell.ticket
        engine._bell.ring()
    assert [lease.id for lease in await waiting] == ["b"]
    await engine.close()


async def test_only_due_jobs_of_other_tasks_count_as_skipped(engine: PostgresEngine) -> None:
    await engine.declare(a_queue("q"))
    await engine.declare(a_queue("full", limits=(Limit(name="one", concurrency=1),)))
    await engine.enqueue([a_job(f"due{n}", task="other", priority=n) for n in range(3)])
    await engine.enqueue([a_job("late", task="other", delay_ms=60_000), a_job("mine", task="mine")])
    await engine.enqueue([a_job(f"full{n}", queue="full", task="mine") for n in range(2)])
    await engine.enqueue([a_job("q", queue="q")])
    request = LeaseRequest(queues=("default", "full"), tasks=frozenset({"mine"}), limit=9)
    assert [lease.id for lease in await engine.lease(request)] == ["mine", "full0"]
    now = (await engine._next_due(request, None)).at
    assert await engine._count_skipped(request, now) == 3


class Script:
    """An engine that has no job; `lease_s` is the time that each lease takes."""

    def __init__(self, *, fresh: tuple[bool, ...] = (), lease_s: float = 0.0) -> None:
        self.fresh = list(fresh)
        self.lease_s = lease_s
        self.now_s = 0.0
        self.counted = 0

    async def lease(self, _request: LeaseRequest) -> list[Lease]:
        self.now_s += self.lease_s
        return []

    async def next_due(self, _request: LeaseRequest, _since: int | None) -> NextDue:
        return NextDue(0, None, self.fresh.pop(0) if self.fresh else False)

    async def count_skipped(self, _request: LeaseRequest, _now: int) -> int:
        self.counted += 1
        return 5_000

    async def attempts(self, count: int) -> list[LeaseAttempt]:
        wait = LeaseWait(self.lease, self.next_due, self.count_skipped, lambda: self.now_s)
        request = replace(PATIENT, tasks=frozenset({"mine"}))
        return [await wait.attempt(request) for _ in range(count)]


async def test_a_new_registration_is_followed_by_checks_for_earlier_transactions() -> None:
    """They may commit without notifying: when they looked, no lease was registered as waiting."""
    attempts = await Script(fresh=(False, True, False)).attempts(6)
    assert [attempt.next_ms for attempt in attempts] == [None, 25, 100, 400, None, None]


async def test_a_transaction_that_did_not_see_the_waiting_lease(
    engine: PostgresEngine, pg_dsn: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(engine_module, "_NET_MS", (3_600_000, 3_600_000))
    monkeypatch.setattr(wait_module, "_RECHECKS_MS", (1,) * 1_000_000)
    connection = await asyncpg.connect(pg_dsn)
    transaction = connection.transaction()
    await transaction.start()
    within = engine.within(connection)
    assert isinstance(within, AsyncPostgresWithin)
    await within.enqueue(jobs("a"))
    waiting = asyncio.create_task(engine.lease(PATIENT))
    await until_waiting(engine)
    await transaction.commit()
    assert [lease.id for lease in await waiting] == ["a"]
    await connection.close()


async def test_skipped_jobs_are_counted_after_a_slow_attempt_that_was_not_the_first() -> None:
    slow, fast = Script(lease_s=1.0), Script()
    assert [attempt.skipped for attempt in await slow.attempts(3)] == [0, 5_000, 5_000]
    assert [attempt.skipped for attempt in await fast.attempts(3)] == [0, 0, 0]
    assert (slow.counted, fast.counted) == (2, 0)


ENQUEUE = """
import asyncio, sys
from holdfast.core.model import NewJob
from holdfast.engines.postgres import PostgresEngine
async def main():
    engine = PostgresEngine(sys.argv[1])
    await engine.open()
    await engine.enqueue([NewJob(id="far", task="work")])
    await engine.close()
asyncio.run(main())
"""


async def test_another_process_wakes(engine: PostgresEngine, pg_dsn: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(engine_module, "_NET_MS", (3_600_000, 3_600_000))
    waiting = asyncio.create_task(engine.lease(PATIENT))
    await until_notified(engine)
    command = [sys.executable, "-c", ENQUEUE, pg_dsn]
    await asyncio.to_thread(subprocess.run, command, check=True)
    assert [lease.id for lease in await waiting] == ["far"]


async def test_listener_reconnects(engine: PostgresEngine, look: Any) -> None:
    waiting = asyncio.create_task(engine.lease(PATIENT))
    await until_waiting(engine)
    listening = (
        "SELECT pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND query LIKE 'LISTEN%' AND pid <> $1"
    )
    (before,) = await look.fetch(listening, 0)
    await look.execute("SELECT pg_terminate_backend($1)", before[0])
    after = await until(lambda: look.fetch(listening, before[0]))
    assert len(after) == 1
    await engine.enqueue(jobs("a"))
    assert [lease.id for lease in await waiting] == ["a"]


async def test_completed_job_leaves_no_other_rows(engine: PostgresEngine, look: Any) -> None:
    await engine.enqueue(jobs("abc"))
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=3))
    await engine.settle([Settlement(lease=lease, verdict=Complete(b"1")) for lease in leases])
    counts = {"bodies": 3, "done": 3, "jobs": 0, "events": 0, "notes": 0, "keys": 0, "records": 0}
    for table, count in counts.items():
        assert await look.fetchval(f"SELECT count(*) FROM {table}") == count

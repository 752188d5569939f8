"""Leasing for a worker that knows few tasks, behind a backlog of other tasks."""

import asyncio
from pathlib import Path

import apsw
import pytest

from holdfast.core import bounds
from holdfast.core.model import LeaseRequest, NewJob, Queue, Renewal
from holdfast.engines.lease import LeaseAttempt
from holdfast.engines.sqlite import SQLiteEngine, lease
from holdfast.engines.sqlite.flow import lane_order
from holdfast.testing.clock import ManualClock
from tests.engines.sqlite.conftest import OpenEngine
from tests.engines.sqlite.vm_steps import FILL, metered

MINE = frozenset({"mine"})


@pytest.fixture
async def engine(open_engine: OpenEngine) -> SQLiteEngine:
    return await open_engine()


def fill(path: Path, count: int, due_at: int) -> None:
    """Insert due jobs of the task `work` into the default queue."""
    connection = apsw.Connection(str(path))
    connection.pragma("synchronous", "off")
    values = {
        "count": count,
        "first": 1_000,
        "queue": connection.execute("SELECT id FROM hf_queues").get,
        "state": 0,
        "rank": 0,
        "due_at": due_at,
        "finished_at": None,
    }
    with connection:
        connection.execute(FILL, values)
        connection.execute("UPDATE hf_meta SET number = ?", (1_000 + count,))
    connection.close()


async def test_a_long_backlog_of_other_tasks_is_passed(
    engine: SQLiteEngine, path: Path, clock: ManualClock
) -> None:
    fill(path, bounds.SCAN_MAX + 5_000, clock.wall_ms() - 1)
    request = LeaseRequest(queues=("default",), tasks=MINE, limit=10)
    assert await engine.lease(request) == []
    await engine.enqueue([NewJob(id=f"mine-{n}", task="mine") for n in range(3)])
    with metered(engine) as meter:
        leases = await engine.lease(request)
    assert [one.id for one in leases] == ["mine-0", "mine-1", "mine-2"]
    # The writer's connection, which also renews leases, passed few of them.
    assert meter.steps < 60 * (lease.SCAN_STEP_MAX + lane_order.PASS_MAX)


async def test_every_job_of_a_known_task_is_found_at_any_position(
    engine: SQLiteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SCAN_STEP_MAX", 7)
    monkeypatch.setattr(lease, "PASS_MAX", 5)
    await engine.declare(Queue(name="other"))
    mine = set()
    for priority in (3, 0, -2):
        for queue in ("default", "other"):
            tasks = ["foreign" if n % 11 else "mine" for n in range(40)]
            jobs = [
                NewJob(
                    id=f"{queue}-{priority}-{n}", queue=queue, task=task, priority=priority,
                    delay_ms=60_000 if n % 3 == 2 and task == "foreign" else 0,
                )
                for n, task in enumerate(tasks)
            ]  # fmt: skip
            mine |= {job.id for job in jobs if job.task == "mine"}
            await engine.enqueue(jobs)
    request = LeaseRequest(queues=("other", "default"), tasks=MINE, limit=3)
    found: list[str] = []
    while leases := await engine.lease(request):
        found += [one.id for one in leases]
    assert len(found) == len(set(found))
    assert set(found) == mine
    assert found[:4] == ["other-3-0", "other-3-11", "other-3-22", "other-3-33"]


async def test_expired_and_delayed_jobs_of_a_known_task_among_others(
    engine: SQLiteEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SCAN_STEP_MAX", 7)
    monkeypatch.setattr(lease, "EXPIRED_MAX", 4)
    await engine.enqueue([NewJob(id=f"f{n}", task="foreign") for n in range(50)])
    await engine.enqueue([NewJob(id=f"e{n}", task="mine", expires_ms=5) for n in range(20)])
    await engine.enqueue([NewJob(id="later", task="mine", delay_ms=1_000)])
    await engine.enqueue([NewJob(id="now", task="mine")])
    clock.advance(10)
    request = LeaseRequest(queues=("default",), tasks=MINE, limit=2)
    assert [one.id for one in await engine.lease(request)] == ["now"]
    assert await engine._try_lease(request) == LeaseAttempt([], next_ms=990, skipped=50)
    clock.advance(990)
    assert [one.id for one in await engine.lease(request)] == ["later"]


async def test_a_renewal_runs_between_the_steps_of_a_long_scan(
    engine: SQLiteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SCAN_STEP_MAX", 1)
    await engine.enqueue([NewJob(id=f"f{n}", task="foreign") for n in range(300)])
    await engine.enqueue([NewJob(id="held", task="held")])
    (held,) = await engine.lease(LeaseRequest(queues=("default",), tasks=frozenset({"held"})))
    looking = asyncio.create_task(engine.lease(LeaseRequest(queues=("default",), tasks=MINE)))
    await asyncio.sleep(0)
    assert await engine.renew([Renewal(lease=held)]) != [None]
    assert not looking.done()
    assert await looking == []

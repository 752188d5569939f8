"""Flow-control rows stay right through kills, a program's own transactions and interrupted relanes,
and a recount repairs and prunes them."""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import apsw
import pytest

from holdfast.core.limits import Limit
from holdfast.core.model import LeaseRequest, NewJob, Queue
from holdfast.core.verdict import Complete, Outcome, Settlement
from holdfast.engines.sqlite import SQLiteEngine, queues
from holdfast.engines.sqlite.flow import lanes
from holdfast.errors import EngineUnavailable
from holdfast.ops.workers import end_overdue_and_expired
from holdfast.testing.clock import ManualClock
from tests.engines.sqlite.conftest import OpenEngine

FAIR = Queue(
    name="default",
    fairness="shares",
    limits=(Limit(name="per", key="{tenant}", concurrency=3), Limit(name="all", concurrency=20)),
)
# Enqueues, leases and settles with all kinds of flow control until it is killed.
CHILD = """
import asyncio, sys
from holdfast.core.model import LeaseRequest, NewJob
from holdfast.core.verdict import Bury, Complete, Retry, Settlement
from holdfast.engines.sqlite import SQLiteEngine

async def main(path, name):
    engine = SQLiteEngine(path, durability="relaxed")
    await engine.open()
    verdicts = (Complete(), Complete(), Retry(), Bury())
    number = 0
    while True:
        ids = [f"{name}-{number + n}" for n in range(6)]
        number += 6
        await engine.enqueue([
            NewJob(id=id_, task="t", tenant=f"t{n % 3}", group=f"g{n % 2}" if n % 3 else None,
                   after=(ids[0],) if n == 5 else (), after_on="either")
            for n, id_ in enumerate(ids)
        ])
        print(number, flush=True)
        leases = await engine.lease(LeaseRequest(queues=("default",), limit=5, lease_ms=600_000))
        await engine.settle([
            Settlement(lease=lease, verdict=verdicts[n % 4]) for n, lease in enumerate(leases[:4])
        ])

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


class RenewedInTheMeantime(ManualClock):
    """The lease is renewed, and its first deadline passes, just before the boot clock is read."""

    def __init__(self) -> None:
        super().__init__()
        self.path: Path | None = None

    def boot_ms(self) -> int:
        if self.path is not None:
            connection = apsw.Connection(str(self.path))
            connection.execute("UPDATE hf_jobs SET deadline = deadline + 60_000")
            connection.close()
            self.path = None
            self.advance(10_000)
        return super().boot_ms()


async def test_a_lease_renewed_since_the_snapshot_is_not_overdue(
    open_engine: OpenEngine, path: Path
) -> None:
    clock = RenewedInTheMeantime()
    engine = await open_engine(clock=clock)
    await engine.enqueue([NewJob(id="a", task="t")])
    await engine.lease(LeaseRequest(queues=("default",), lease_ms=5_000))
    assert not (await engine.overdue(10)).leases
    clock.path = path
    found = await engine.overdue(10)
    assert (found.leases, found.next_ms) == ((), 55_000)


async def test_kills_leave_nothing_to_repair(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    engine = SQLiteEngine(path, durability="relaxed")
    await engine.open()
    await engine.declare(FAIR)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for kill in range(6):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, str(path), f"k{kill}", stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None
        for _ in range(dice.randrange(1, 12)):
            assert await child.stdout.readline(), "the child ended by itself"
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()
        assert await engine.recount(1_000) == 0, f"seed {seed}, after kill {kill}"
    slots = (await engine.flow("default", limit=100)).slots
    used = {slot.key: slot.used for slot in slots if slot.limit == "per"}
    assert max(used.values()) <= 3
    assert sum(used.values()) == sum(view.leased for view in await engine.queues())
    await engine.close()


async def test_flow_control_in_a_programs_own_transaction(
    open_engine: OpenEngine, path: Path
) -> None:
    engine = await open_engine()
    await engine.declare(FAIR)
    own = apsw.Connection(str(path))
    own.execute("BEGIN IMMEDIATE")
    jobs = [
        NewJob(id="parent", task="t", tenant="a", group="g"),
        NewJob(id="behind", task="t", tenant="a", group="g"),
        NewJob(id="child", task="t", tenant="b", after=("parent",)),
    ]
    engine.within(own).enqueue(jobs)
    own.execute("COMMIT")
    request = LeaseRequest(queues=("default",), limit=9)
    (lease,) = await engine.lease(request)
    assert lease.id == "parent"
    done = [Settlement(lease=lease, verdict=Complete())]
    own.execute("BEGIN IMMEDIATE")
    assert engine.within(own).settle(done) == [Outcome.SETTLED]
    own.execute("ROLLBACK")
    assert await engine.lease(request) == []
    own.execute("BEGIN IMMEDIATE")
    assert engine.within(own).settle(done) == [Outcome.SETTLED]
    own.execute("COMMIT")
    own.close()
    assert {lease.id for lease in await engine.lease(request)} == {"behind", "child"}
    assert await engine.recount(100) == 0


async def test_an_interrupted_relane_is_finished_by_the_next_lease(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine()
    jobs = [NewJob(id=f"j{n}", task="t", tenant=f"t{n % 2}") for n in range(10)]
    await engine.enqueue(jobs)
    monkeypatch.setattr(lanes, "RELANE_STEP", 3)
    with monkeypatch.context() as killed:
        killed.setattr(engine, "_relane", lambda _queue: asyncio.sleep(0))
        await engine.declare(FAIR)
        assert await engine._read(lambda transaction: transaction.queues["default"].needs_relane)
    other = await open_engine()
    leases = await other.lease(LeaseRequest(queues=("default",), limit=10))
    assert len(leases) == 6, "three of each tenant"
    assert not await engine._read(lambda transaction: transaction.queues["default"].needs_relane)
    assert await engine.recount(100) == 0


async def test_a_recount_repairs_wrong_counts(open_engine: OpenEngine, path: Path) -> None:
    engine = await open_engine()
    await engine.declare(FAIR)
    await engine.enqueue([NewJob(id=f"j{n}", task="t", tenant="a") for n in range(5)])
    await engine.enqueue([NewJob(id=f"g{n}", task="t", tenant="b", group="g") for n in range(2)])
    foreign = apsw.Connection(str(path))
    with foreign:
        foreign.execute("UPDATE hf_slots SET used = 3 WHERE name = 'per' AND key = 'a'")
        foreign.execute("UPDATE hf_lanes SET due_at = NULL, place = NULL WHERE tenant = 'b'")
        foreign.execute("UPDATE hf_jobs SET holds = holds | 4 WHERE id = 'g0'")
        foreign.execute("UPDATE hf_tenants SET leased = 7 WHERE tenant = 'a'")
    foreign.close()
    assert await engine.recount(100) > 0
    assert await engine.recount(100) == 0
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=10))
    assert {lease.id for lease in leases} == {"j0", "j1", "j2", "g0"}


async def test_unused_lanes_and_slots_are_pruned(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.declare(Queue(name="default", limits=FAIR.limits))
    await engine.enqueue([NewJob(id=f"j{n}", task="t", tenant=f"t{n}") for n in range(5)])
    leases = await engine.lease(LeaseRequest(queues=("default",), limit=10))
    await engine.recount(100)
    count = "SELECT (SELECT count(*) FROM hf_lanes), (SELECT count(*) FROM hf_slots)"
    assert await engine._read(lambda transaction: transaction.run(count).fetchone()) == (5, 6)
    await engine.settle([Settlement(lease=lease, verdict=Complete()) for lease in leases])
    await engine.recount(100)
    assert await engine._read(lambda transaction: transaction.run(count).fetchone()) == (0, 0)


async def test_jobs_do_not_expire_by_a_setting_whose_change_was_interrupted(
    open_engine: OpenEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine()
    await engine.declare(Queue(name="q", expires_ms=10))
    await engine.enqueue([NewJob(id=id_, task="t", queue="q") for id_ in "ab"])
    await engine.enqueue([NewJob(id="own", task="t", queue="q", expires_ms=10)])

    def interrupted(*_: object, **__: object) -> None:
        raise EngineUnavailable("killed")

    with monkeypatch.context() as killed:
        killed.setattr(queues, "expiry_step", interrupted)
        with pytest.raises(EngineUnavailable, match="killed"):
            await engine.declare(Queue(name="q"))
    clock.advance(10)
    ended = await end_overdue_and_expired(engine, 2)
    assert (ended.buried, ended.next_ms) == (0, 0)
    ended = await end_overdue_and_expired(engine, 2)
    assert (ended.buried, ended.next_ms) == (1, None)
    leases = await engine.lease(LeaseRequest(queues=("q",), limit=9))
    assert [lease.id for lease in leases] == ["a", "b"]
    job = await engine.get("a")
    assert job is not None
    assert job.expires_at is None

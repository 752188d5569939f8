"""The wall clock is set back and forth: no lease ends early, and each ends in time."""

import pytest

from holdfast.core.model import LeaseRequest, NewJob, Queue, Renewal
from holdfast.core.verdict import Complete, Outcome, Retry, Settlement
from holdfast.testing.clock import ManualClock
from tests.crash.faults.conftest import OpenEngine

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LEASE_MS = 30_000

JUMPS = pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, DAY_MS, -DAY_MS])


@JUMPS
async def test_no_lease_ends_early(
    clock: ManualClock, open_engine: OpenEngine, jump_ms: int
) -> None:
    engine = await open_engine()
    await engine.declare(Queue(name="work", lease_ms=LEASE_MS))
    await engine.enqueue([NewJob(id="held", task="noop", queue="work")])
    (lease,) = await engine.lease(LeaseRequest(queues=("work",)))
    clock.jump(jump_ms)
    clock.advance(LEASE_MS - 1)
    assert not (await engine.overdue(10)).leases
    assert not await engine.lease(LeaseRequest(queues=("work",)))
    (renewed,) = await engine.renew([Renewal(lease=lease)])
    assert renewed is not None
    clock.jump(-2 * jump_ms)
    clock.advance(LEASE_MS - 1)
    assert (await engine.overdue(10)).next_ms == 1
    outcomes = await engine.settle([Settlement(lease=renewed, verdict=Complete())])
    assert outcomes == [Outcome.SETTLED]


@JUMPS
async def test_every_lease_ends(clock: ManualClock, open_engine: OpenEngine, jump_ms: int) -> None:
    engine = await open_engine()
    await engine.declare(Queue(name="work", lease_ms=LEASE_MS))
    await engine.enqueue([NewJob(id="held", task="noop", queue="work")])
    await engine.lease(LeaseRequest(queues=("work",)))
    clock.jump(jump_ms)
    clock.advance(LEASE_MS)
    overdue = await engine.overdue(10)
    assert [lease.id for lease in overdue.leases] == ["held"]
    await engine.settle([Settlement(lease=overdue.leases[0], verdict=Retry())])
    (again,) = await engine.lease(LeaseRequest(queues=("work",)))
    assert again.job.attempt == 2


@JUMPS
async def test_a_process_that_sees_the_jump_agrees_with_one_that_did_not(
    clock: ManualClock, open_engine: OpenEngine, jump_ms: int
) -> None:
    """Two engines on one file whose wall clocks differ, as during a jump."""
    other_clock = ManualClock(wall_ms=clock.wall_ms() + jump_ms, boot_ms=clock.boot_ms())
    one, other = await open_engine(), await open_engine(clock=other_clock)
    await one.declare(Queue(name="work", lease_ms=LEASE_MS))
    await one.enqueue([NewJob(id="held", task="noop", queue="work")])
    (lease,) = await one.lease(LeaseRequest(queues=("work",)))
    assert not (await other.overdue(10)).leases
    assert not await other.lease(LeaseRequest(queues=("work",)))
    clock.advance(LEASE_MS)
    other_clock.advance(LEASE_MS)
    for engine in (one, other):
        assert [found.token for found in (await engine.overdue(10)).leases] == [lease.token]


async def test_a_reboot_ends_every_lease_at_once(
    clock: ManualClock, open_engine: OpenEngine
) -> None:
    engine = await open_engine()
    await engine.enqueue([NewJob(id="held", task="noop")])
    await engine.lease(LeaseRequest(queues=("default",)))
    await engine.close()
    clock.reboot()
    engine = await open_engine()
    assert [lease.id for lease in (await engine.overdue(10)).leases] == ["held"]

"""Renewals in batches; lost and cancelled jobs are reported once; outages are survived."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from holdfast.core import bounds
from holdfast.core.model import JobFilter, Lease, Note, Renewal
from holdfast.core.verdict import Cancel, Complete, Delete
from holdfast.errors import EngineUnavailable, OutcomeUnknown, StorageFull
from holdfast.testing.clock import ManualClock
from holdfast.worker.supervisor import held_leases as module
from holdfast.worker.supervisor.held_leases import HeldLease, HeldLeases, Renewer
from tests.worker.doubles import TroubledEngine, hold_new
from tests.worker.live_workers import alongside, until


class RenewerDriver:
    """A renewer, and the jobs it reported."""

    def __init__(self, engine: TroubledEngine) -> None:
        self.engine = engine
        self.held = HeldLeases()
        self.lost: list[HeldLease] = []
        self.cancelled: list[HeldLease] = []
        self.renewer = Renewer(engine, self.held, self.lost.append, self.cancelled.append)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with alongside(self.renewer.run()):
            yield


@pytest.fixture
async def driver(clock: ManualClock) -> RenewerDriver:
    engine = TroubledEngine(clock)
    await engine.open()
    return RenewerDriver(engine)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.001)
    monkeypatch.setattr(module, "_TICK_S_MAX", 0.005)


async def test_nothing_is_renewed_before_its_time(driver: RenewerDriver) -> None:
    await hold_new(driver.engine, driver.held, "a")
    await driver.renewer._turn()
    assert "renew" not in driver.engine.asked


async def test_where_each_renewal_is_a_request_leases_are_renewed_together(
    driver: RenewerDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver.renewer, "_sweeps", True)
    first, second, third = await hold_new(driver.engine, driver.held, *"abc")
    assert first.lease.lease_ms == 30_000
    first.renewed_at -= 14.0
    second.renewed_at -= 8.0
    await driver.renewer._turn()
    assert "renew" not in driver.engine.asked, "none is at half of its lease"
    first.renewed_at -= 1.5
    before = third.renewed_at
    await driver.renewer._turn()
    assert driver.engine.asked["renew"] == 1
    assert first.renewed_at > before - 1
    assert second.renewed_at > before - 1, "it would be due soon"
    assert third.renewed_at == before


async def test_everything_due_goes_in_one_batch(driver: RenewerDriver) -> None:
    helds = await hold_new(driver.engine, driver.held, *"abc")
    (later,) = await hold_new(driver.engine, driver.held, "d")
    for held in helds:
        held.renewed_at -= 10.0
    await driver.renewer._turn()
    assert driver.engine.asked["renew"] == 1
    assert [held.renewed_at > later.renewed_at for held in helds] == [True] * 3
    await driver.renewer._turn()
    assert driver.engine.asked["renew"] == 1


async def test_many_go_in_batches_that_the_engine_takes(driver: RenewerDriver) -> None:
    ids = [f"j{number}" for number in range(bounds.BATCH_MAX)]
    await hold_new(driver.engine, driver.held, *ids)
    await hold_new(driver.engine, driver.held, "another")
    driver.renewer.at_once()
    await driver.renewer._turn()
    assert driver.engine.asked["renew"] == 2


async def test_the_pace_follows_the_shortest_lease(driver: RenewerDriver) -> None:
    assert await driver.renewer._turn() == module._TICK_S_MAX
    (held,) = await hold_new(driver.engine, driver.held, "a")
    held.lease = type(held.lease)(job=held.job, token=held.lease.token, lease_ms=120)
    assert await driver.renewer._turn() == pytest.approx(0.01)


async def test_a_lost_lease_is_reported_once(driver: RenewerDriver, clock: ManualClock) -> None:
    (held,) = await hold_new(driver.engine, driver.held, "a")
    clock.advance(held.lease.lease_ms)
    driver.renewer.at_once()
    await driver.renewer._turn()
    driver.renewer.at_once()
    await driver.renewer._turn()
    assert (driver.lost, held.lost) == ([held], True)
    assert driver.engine.asked["renew"] == 1


async def test_a_verdict_is_kept_though_the_lease_lapsed(
    driver: RenewerDriver, clock: ManualClock
) -> None:
    """A late settle may still win."""
    (held,) = await hold_new(driver.engine, driver.held, "a")
    driver.held.decide(held, Complete())
    clock.advance(held.lease.lease_ms)
    driver.renewer.at_once()
    await driver.renewer._turn()
    assert (driver.lost, held.lost) == ([], False)


async def test_decided_jobs_are_renewed_too(driver: RenewerDriver, clock: ManualClock) -> None:
    (held,) = await hold_new(driver.engine, driver.held, "a")
    driver.held.decide(held, Complete())
    held.add_note(Note(output=b"its own way"))
    clock.advance(20_000)
    driver.renewer.at_once()
    await driver.renewer._turn()
    clock.advance(20_000)
    job = await driver.engine.get("a")
    assert job is not None
    assert job.deadline_at == clock.wall_ms() + 10_000
    # The note goes with the verdict.
    assert (job.output, held.note) == (None, Note(output=b"its own way"))


async def test_notes_are_stored_soon(driver: RenewerDriver) -> None:
    (held,) = await hold_new(driver.engine, driver.held, "a")
    held.add_note(Note(progress=0.5, checkpoint=b"1"))
    await driver.renewer._turn()
    assert "renew" not in driver.engine.asked
    held.renewed_at -= module._NOTES_S
    await driver.renewer._turn()
    job = await driver.engine.get("a")
    assert job is not None
    assert (job.progress, job.checkpoint, held.note) == (0.5, b"1", None)


async def test_a_note_that_comes_meanwhile_is_kept(driver: RenewerDriver) -> None:
    (held,) = await hold_new(driver.engine, driver.held, "a")
    held.add_note(Note(progress=0.5))
    driver.renewer.at_once()
    turn = asyncio.create_task(driver.renewer._turn())
    renew = driver.engine.renew

    async def slow(renewals: Sequence[Renewal]) -> list[Lease | None]:
        answers = await renew(renewals)
        held.add_note(Note(progress=0.7))
        return answers

    driver.engine.renew = slow  # type: ignore[method-assign]
    await turn
    assert held.note == Note(progress=0.7)


async def test_a_cancel_request_is_reported_once(driver: RenewerDriver) -> None:
    (held, _) = await hold_new(driver.engine, driver.held, *"ab")
    await driver.engine.amend(JobFilter(ids=("a",)), Cancel(by="me"), limit=1)
    for _turn in range(2):
        driver.renewer.at_once()
        await driver.renewer._turn()
    assert (driver.cancelled, held.lease.cancel_requested) == ([held], True)


async def test_a_job_dropped_meanwhile_is_not_reported(driver: RenewerDriver) -> None:
    (held,) = await hold_new(driver.engine, driver.held, "a")
    await driver.engine.amend(JobFilter(ids=("a",)), Delete(force=True), limit=1)
    renew = driver.engine.renew

    async def late(renewals: Sequence[Renewal]) -> list[Lease | None]:
        driver.held.drop(held)
        return await renew(renewals)

    driver.engine.renew = late  # type: ignore[method-assign]
    driver.renewer.at_once()
    await driver.renewer._turn()
    assert (driver.lost, held.lost) == ([], False)


@pytest.mark.usefixtures("hurried")
async def test_a_cancel_request_outlasts_an_outage(driver: RenewerDriver) -> None:
    (held,) = await hold_new(driver.engine, driver.held, "a")
    await driver.engine.amend(JobFilter(ids=("a",)), Cancel(by="me"), limit=1)
    driver.engine.trouble["renew"] = [EngineUnavailable("down")]
    driver.renewer.at_once()
    with pytest.raises(EngineUnavailable):
        await driver.renewer._turn()
    await driver.renewer._turn()
    assert driver.cancelled == [held]


@pytest.mark.parametrize("error", [EngineUnavailable, OutcomeUnknown, StorageFull])
@pytest.mark.usefixtures("hurried")
async def test_it_survives_an_outage(driver: RenewerDriver, error: type[Exception]) -> None:
    (held,) = await hold_new(driver.engine, driver.held, "a")
    held.renewed_at = before = held.renewed_at - 10.0
    driver.engine.trouble["renew"] = [error("down")] * 3
    async with driver.running():
        await until(lambda: held.renewed_at > before)
    assert (driver.lost, driver.engine.asked["renew"]) == ([], 4)

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


class Story:
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
async def story(clock: ManualClock) -> Story:
    engine = TroubledEngine(clock)
    await engine.open()
    return Story(engine)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.001)
    monkeypatch.setattr(module, "_TICK_S_MAX", 0.005)


async def test_nothing_is_renewed_before_its_time(story: Story) -> None:
    await hold_new(story.engine, story.held, "a")
    await story.renewer._turn()
    assert "renew" not in story.engine.asked


async def test_everything_due_goes_in_one_batch(story: Story) -> None:
    helds = await hold_new(story.engine, story.held, *"abc")
    (later,) = await hold_new(story.engine, story.held, "d")
    for held in helds:
        held.renewed_at -= 10.0
    await story.renewer._turn()
    assert story.engine.asked["renew"] == 1
    assert [held.renewed_at > later.renewed_at for held in helds] == [True] * 3
    await story.renewer._turn()
    assert story.engine.asked["renew"] == 1


async def test_many_go_in_batches_that_the_engine_takes(story: Story) -> None:
    ids = [f"j{number}" for number in range(bounds.BATCH_MAX)]
    await hold_new(story.engine, story.held, *ids)
    await hold_new(story.engine, story.held, "another")
    story.renewer.at_once()
    await story.renewer._turn()
    assert story.engine.asked["renew"] == 2


async def test_the_pace_follows_the_shortest_lease(story: Story) -> None:
    assert await story.renewer._turn() == module._TICK_S_MAX
    (held,) = await hold_new(story.engine, story.held, "a")
    held.lease = type(held.lease)(job=held.job, token=held.lease.token, lease_ms=120)
    assert await story.renewer._turn() == pytest.approx(0.01)


async def test_a_lost_lease_is_reported_once(story: Story, clock: ManualClock) -> None:
    (held,) = await hold_new(story.engine, story.held, "a")
    clock.advance(held.lease.lease_ms)
    story.renewer.at_once()
    await story.renewer._turn()
    story.renewer.at_once()
    await story.renewer._turn()
    assert (story.lost, held.lost) == ([held], True)
    assert story.engine.asked["renew"] == 1


async def test_a_verdict_is_kept_though_the_lease_lapsed(story: Story, clock: ManualClock) -> None:
    """A late settle may still win."""
    (held,) = await hold_new(story.engine, story.held, "a")
    story.held.decide(held, Complete())
    clock.advance(held.lease.lease_ms)
    story.renewer.at_once()
    await story.renewer._turn()
    assert (story.lost, held.lost) == ([], False)


async def test_decided_jobs_are_renewed_too(story: Story, clock: ManualClock) -> None:
    (held,) = await hold_new(story.engine, story.held, "a")
    story.held.decide(held, Complete())
    held.add_note(Note(output=b"its own way"))
    clock.advance(20_000)
    story.renewer.at_once()
    await story.renewer._turn()
    clock.advance(20_000)
    job = await story.engine.get("a")
    assert job is not None
    assert job.deadline_at == clock.wall_ms() + 10_000
    # The note goes with the verdict.
    assert (job.output, held.note) == (None, Note(output=b"its own way"))


async def test_notes_are_stored_soon(story: Story) -> None:
    (held,) = await hold_new(story.engine, story.held, "a")
    held.add_note(Note(progress=0.5, checkpoint=b"1"))
    await story.renewer._turn()
    assert "renew" not in story.engine.asked
    held.renewed_at -= module._NOTES_S
    await story.renewer._turn()
    job = await story.engine.get("a")
    assert job is not None
    assert (job.progress, job.checkpoint, held.note) == (0.5, b"1", None)


async def test_a_note_that_comes_meanwhile_is_kept(story: Story) -> None:
    (held,) = await hold_new(story.engine, story.held, "a")
    held.add_note(Note(progress=0.5))
    story.renewer.at_once()
    turn = asyncio.create_task(story.renewer._turn())
    renew = story.engine.renew

    async def slow(renewals: Sequence[Renewal]) -> list[Lease | None]:
        answers = await renew(renewals)
        held.add_note(Note(progress=0.7))
        return answers

    story.engine.renew = slow  # type: ignore[method-assign]
    await turn
    assert held.note == Note(progress=0.7)


async def test_a_cancel_request_is_reported_once(story: Story) -> None:
    (held, _) = await hold_new(story.engine, story.held, *"ab")
    await story.engine.amend(JobFilter(ids=("a",)), Cancel(by="me"), limit=1)
    for _turn in range(2):
        story.renewer.at_once()
        await story.renewer._turn()
    assert (story.cancelled, held.lease.cancel_requested) == ([held], True)


async def test_a_job_dropped_meanwhile_is_not_reported(story: Story) -> None:
    (held,) = await hold_new(story.engine, story.held, "a")
    await story.engine.amend(JobFilter(ids=("a",)), Delete(force=True), limit=1)
    renew = story.engine.renew

    async def late(renewals: Sequence[Renewal]) -> list[Lease | None]:
        story.held.drop(held)
        return await renew(renewals)

    story.engine.renew = late  # type: ignore[method-assign]
    story.renewer.at_once()
    await story.renewer._turn()
    assert (story.lost, held.lost) == ([], False)


@pytest.mark.usefixtures("hurried")
async def test_a_cancel_request_outlasts_an_outage(story: Story) -> None:
    (held,) = await hold_new(story.engine, story.held, "a")
    await story.engine.amend(JobFilter(ids=("a",)), Cancel(by="me"), limit=1)
    story.engine.trouble["renew"] = [EngineUnavailable("down")]
    story.renewer.at_once()
    with pytest.raises(EngineUnavailable):
        await story.renewer._turn()
    await story.renewer._turn()
    assert story.cancelled == [held]


@pytest.mark.parametrize("error", [EngineUnavailable, OutcomeUnknown, StorageFull])
@pytest.mark.usefixtures("hurried")
async def test_it_survives_an_outage(story: Story, error: type[Exception]) -> None:
    (held,) = await hold_new(story.engine, story.held, "a")
    held.renewed_at = before = held.renewed_at - 10.0
    story.engine.trouble["renew"] = [error("down")] * 3
    async with story.running():
        await until(lambda: held.renewed_at > before)
    assert (story.lost, story.engine.asked["renew"]) == ([], 4)

"""Renewals in batches; what was lost or shall stop is told once, and outages are waited out."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from holdfast.core import limits
from holdfast.core.model import JobFilter, Lease, Note, Renewal
from holdfast.core.verdict import Cancel, Complete, Delete
from holdfast.errors import EngineUnavailable, OutcomeUnknown, StorageFull
from holdfast.testing.clock import ManualClock
from holdfast.worker import renewer as module
from holdfast.worker.hand import Hand, Held
from holdfast.worker.renewer import Renewer
from tests.worker.doubles import TroubledEngine, in_hand
from tests.worker.running import alongside, until


class Story:
    """A renewer, and what it told."""

    def __init__(self, engine: TroubledEngine) -> None:
        self.engine = engine
        self.hand = Hand()
        self.lost: list[Held] = []
        self.cancelled: list[Held] = []
        self.renewer = Renewer(engine, self.hand, self.lost.append, self.cancelled.append)

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
    await in_hand(story.engine, story.hand, "a")
    await story.renewer._turn()
    assert "renew" not in story.engine.asked


async def test_everything_due_goes_in_one_batch(story: Story) -> None:
    helds = await in_hand(story.engine, story.hand, *"abc")
    (later,) = await in_hand(story.engine, story.hand, "d")
    for held in helds:
        held.renewed_at -= 10.0
    await story.renewer._turn()
    assert story.engine.asked["renew"] == 1
    assert [held.renewed_at > later.renewed_at for held in helds] == [True] * 3
    await story.renewer._turn()
    assert story.engine.asked["renew"] == 1


async def test_many_go_in_batches_that_the_engine_takes(story: Story) -> None:
    ids = [f"j{number}" for number in range(limits.BATCH_MAX)]
    await in_hand(story.engine, story.hand, *ids)
    await in_hand(story.engine, story.hand, "another")
    story.renewer.at_once()
    await story.renewer._turn()
    assert story.engine.asked["renew"] == 2


async def test_the_pace_follows_the_shortest_lease(story: Story) -> None:
    assert await story.renewer._turn() == module._TICK_S_MAX
    (held,) = await in_hand(story.engine, story.hand, "a")
    held.lease = type(held.lease)(job=held.job, token=held.lease.token, lease_ms=120)
    assert await story.renewer._turn() == pytest.approx(0.01)


async def test_what_is_lost_is_told_once(story: Story, clock: ManualClock) -> None:
    (held,) = await in_hand(story.engine, story.hand, "a")
    clock.advance(held.lease.lease_ms)
    story.renewer.at_once()
    await story.renewer._turn()
    story.renewer.at_once()
    await story.renewer._turn()
    assert (story.lost, held.lost) == ([held], True)
    assert story.engine.asked["renew"] == 1


async def test_a_verdict_is_kept_though_the_lease_lapsed(story: Story, clock: ManualClock) -> None:
    """A late settle may still win."""
    (held,) = await in_hand(story.engine, story.hand, "a")
    story.hand.judge(held, Complete())
    clock.advance(held.lease.lease_ms)
    story.renewer.at_once()
    await story.renewer._turn()
    assert (story.lost, held.lost) == ([], False)


async def test_judged_jobs_are_renewed_too(story: Story, clock: ManualClock) -> None:
    (held,) = await in_hand(story.engine, story.hand, "a")
    story.hand.judge(held, Complete())
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


async def test_notes_are_passed_on_soon(story: Story) -> None:
    (held,) = await in_hand(story.engine, story.hand, "a")
    held.add_note(Note(progress=0.5, checkpoint=b"1"))
    await story.renewer._turn()
    assert "renew" not in story.engine.asked
    held.renewed_at -= module._NOTES_S
    await story.renewer._turn()
    job = await story.engine.get("a")
    assert job is not None
    assert (job.progress, job.checkpoint, held.note) == (0.5, b"1", None)


async def test_a_note_that_comes_meanwhile_is_kept(story: Story) -> None:
    (held,) = await in_hand(story.engine, story.hand, "a")
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


async def test_a_wish_to_cancel_is_told_once(story: Story) -> None:
    (held, _) = await in_hand(story.engine, story.hand, *"ab")
    await story.engine.amend(JobFilter(ids=("a",)), Cancel(by="me"), limit=1)
    for _turn in range(2):
        story.renewer.at_once()
        await story.renewer._turn()
    assert (story.cancelled, held.lease.cancel_requested) == ([held], True)


async def test_what_was_dropped_meanwhile_is_not_told(story: Story) -> None:
    (held,) = await in_hand(story.engine, story.hand, "a")
    await story.engine.amend(JobFilter(ids=("a",)), Delete(force=True), limit=1)
    renew = story.engine.renew

    async def late(renewals: Sequence[Renewal]) -> list[Lease | None]:
        story.hand.drop(held)
        return await renew(renewals)

    story.engine.renew = late  # type: ignore[method-assign]
    story.renewer.at_once()
    await story.renewer._turn()
    assert (story.lost, held.lost) == ([], False)


@pytest.mark.usefixtures("hurried")
async def test_a_wish_to_cancel_outlasts_an_outage(story: Story) -> None:
    (held,) = await in_hand(story.engine, story.hand, "a")
    await story.engine.amend(JobFilter(ids=("a",)), Cancel(by="me"), limit=1)
    story.engine.trouble["renew"] = [EngineUnavailable("down")]
    story.renewer.at_once()
    with pytest.raises(EngineUnavailable):
        await story.renewer._turn()
    await story.renewer._turn()
    assert story.cancelled == [held]


@pytest.mark.parametrize("error", [EngineUnavailable, OutcomeUnknown, StorageFull])
@pytest.mark.usefixtures("hurried")
async def test_an_outage_is_waited_out(story: Story, error: type[Exception]) -> None:
    (held,) = await in_hand(story.engine, story.hand, "a")
    held.renewed_at = before = held.renewed_at - 10.0
    story.engine.trouble["renew"] = [error("down")] * 3
    async with story.running():
        await until(lambda: held.renewed_at > before)
    assert (story.lost, story.engine.asked["renew"]) == ([], 4)

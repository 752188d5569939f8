"""All jobs of one store into another, with their past, their keys and what belongs to them.

The source is brought to rest and never changed otherwise; the target stays shut until it was
compared with the source. Whoever is killed in the middle is taken up by the next run.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from holdfast.core.model import Job, JobFilter, QueueView, State
from holdfast.errors import UsageError
from holdfast.moving import closing, copying
from holdfast.moving.closing import reopen
from holdfast.moving.comparing import Comparing, Comparison
from holdfast.moving.records import Coming, Leaving, Phase, Side, coming, leaving
from holdfast.upkeep.paging import records
from holdfast.upkeep.redrives import RECORD_KIND as REDRIVE_KIND
from holdfast.upkeep.redrives import decode as decode_redrive
from holdfast.upkeep.schedules import RECORD_KIND as SCHEDULE_KIND

__all__ = ["Comparison", "Migration", "Moved", "Side", "Survey", "reopen"]

Tell = Callable[[int], None]


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to move. Where `more` is true there is at least as much. `refusal` says why
    it cannot be; `resumes` that it was begun, and `is_done` that it is over."""

    jobs: int
    states: dict[State, int]
    more: bool
    queues: int
    leased: tuple[str, ...] = ()
    resumes: bool = False
    is_done: bool = False
    refusal: str = ""


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended. Until `comparison.is_same` the target stays shut; None is a comparison that an
    earlier run made."""

    jobs: int
    records: dict[str, int] = {}
    comparison: Comparison | None = None

    @property
    def is_verified(self) -> bool:
        return self.comparison is None or self.comparison.is_same


class Migration:
    """`now` reads the clock of the source."""

    def __init__(self, source: Side, target: Side, now: Callable[[], int]) -> None:
        self._source = source
        self._target = target
        self._now = now
        self._leaving = leaving(source.engine)
        self._coming = coming(target.engine)

    async def survey(self) -> Survey:
        """Nothing is changed."""
        out, in_ = await self._leaving.read(), await self._coming.read()
        views = await self._source.engine.queues()
        states = _states(views)
        leased = await self._source.engine.find(JobFilter(states=(State.LEASED,)), limit=10)
        resumes = in_ is not None and out is not None and in_.id == out.id
        return Survey(
            jobs=sum(states.values()),
            states=states,
            more=any(view.estimated for view in views),
            queues=len(views),
            leased=tuple(job.id for job in leased.jobs),
            resumes=resumes,
            is_done=resumes and in_ is not None and in_.phase is Phase.DONE,
            refusal=await self._running_redrive() if resumes else await self._refusal(in_),
        )

    async def begin(self) -> None:
        """Close the queues of the source, and write down what is being done."""
        survey = await self.survey()
        if survey.refusal:
            raise UsageError(survey.refusal)
        known = self._leaving.value
        if known is None:
            known = Leaving(id=secrets.token_hex(8), to=self._target.place)
            await self._leaving.write(known)
        elif known.to != self._target.place:
            await self._leaving.write(replace(known, to=self._target.place))
        if not survey.resumes:
            await self._coming.write(
                Coming(id=known.id, source=self._source.place, begun_at=self._now())
            )
        await closing.close(self._source.engine, self._leaving)

    async def drain(self, *, wait_ms: int, tell: Tell) -> list[Job]:
        """Wait for what is leased; what still is when the time is over, some of it."""
        return await closing.drain(self._source.engine, self._leaving, wait_ms=wait_ms, tell=tell)

    async def copy(self, tell: Tell) -> None:
        """What is not there yet. Nothing to do once it was compared."""
        source, target = self._source, self._target
        if self._at().phase not in (Phase.JOBS, Phase.REST):
            return
        await copying.declare_queues(source, target, self._known(), shut=True)
        tell(self._at().jobs)
        await copying.copy_jobs(source, target, self._coming, tell)
        await copying.copy_keys(source, target)

    async def compare(self, tell: Tell) -> Moved:
        """And open the target, if all is the same."""
        at = self._at()
        if at.phase in (Phase.COMPARED, Phase.DONE):
            # It was killed while it opened the target, where work may go on since.
            await self._open()
            return Moved(jobs=at.jobs)
        source, target = self._source, self._target
        copied = await copying.copy_records(source.engine, target.engine, self._known())
        comparing = Comparing(source, target, begun_at=at.begun_at, now=self._now())
        found = await comparing.run(copied, tell)
        if found.is_same:
            await self._coming.write(replace(at, phase=Phase.COMPARED))
            await self._open()
        counts = {kind: len(values) for kind, values in copied.items()}
        return Moved(jobs=at.jobs, records=counts, comparison=found)

    def _known(self) -> Leaving:
        known = self._leaving.value
        assert known is not None, "begin comes first"
        return known

    def _at(self) -> Coming:
        at = self._coming.value
        assert at is not None, "begin comes first"
        return at

    async def _open(self) -> None:
        if self._at().phase is Phase.COMPARED:
            source, target, known = self._source, self._target, self._known()
            await copying.declare_queues(source, target, known, shut=False)
            await self._coming.write(replace(self._at(), phase=Phase.DONE))

    async def _refusal(self, in_: Coming | None) -> str:
        if in_ is not None:
            return (
                f"the target has what came from {in_.source}, by another move: give one that is"
                " empty"
            )
        if await _holds_jobs(self._target):
            return "the target has jobs already: give one that is empty"
        if await self._target.engine.load(SCHEDULE_KIND, limit=1):
            return "the target has schedules already: give one that is empty"
        return await self._running_redrive()

    async def _running_redrive(self) -> str:
        """It would go on putting jobs back in the source."""
        async for record in records(self._source.engine, REDRIVE_KIND):
            redrive = decode_redrive(record)
            if not redrive.state.ended:
                return f"redrive {redrive.id} is going on in the source: cancel it, or let it end"
        return ""


async def _holds_jobs(side: Side) -> bool:
    after: int | None = None
    while True:
        page = await side.engine.find(JobFilter(), limit=1, after=after)
        if page.jobs:
            return True
        after = page.after
        if after is None:
            return False


def _states(views: list[QueueView]) -> dict[State, int]:
    states = dict.fromkeys(State, 0)
    for view in views:
        states[State.WAITING] += view.ready + view.delayed + view.blocked
        for state in (State.LEASED, State.DONE, State.DEAD, State.CANCELLED):
            states[state] += getattr(view, state.value)
    return states

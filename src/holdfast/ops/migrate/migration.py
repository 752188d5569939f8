"""A migration from one store to another, step by step: survey, begin, drain, copy, compare.

The comparison reads jobs from both stores side by side, since they were copied in the same order.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec
from msgspec.structs import replace

from holdfast.core import transfer
from holdfast.core.model import Job, JobFilter, Queue, QueueView, Reason, State
from holdfast.core.retry_policy import retention_ms
from holdfast.core.transfer import HeldKey, Sum, Whole
from holdfast.errors import UsageError
from holdfast.ops.jobs.acts import ACT_KIND, ACTS, ActState
from holdfast.ops.migrate import steps
from holdfast.ops.migrate.progress import (
    Phase,
    Side,
    SourceProgress,
    TargetProgress,
    source_progress,
    target_progress,
)
from holdfast.ops.migrate.steps import BATCH, BATCH_BYTES_MAX, CopiedRecords, key_pages
from holdfast.ops.queues import queue_settings
from holdfast.ops.records import scan
from holdfast.ops.redrives import REDRIVE_KIND, REDRIVES
from holdfast.ops.schedules import SCHEDULE_KIND

ProgressCallback = Callable[[int], None]
"""Gets the number of jobs that were processed since its last call."""

_WRONG_MAX = 20


class MigrationSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of a migration; with `more` the numbers are lower bounds. `refusal` is the reason
    why it cannot begin; `resumes` is true for a migration that was begun, `is_done` for one that is
    complete.
    """

    jobs: int
    states: dict[State, int]
    more: bool
    queues: int
    leased: tuple[str, ...] = ()
    resumes: bool = False
    is_done: bool = False
    refusal: str = ""


class MigrationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a migration. The target stays closed until `comparison.is_same`; the comparison
    is None if an earlier run made it.
    """

    jobs: int
    records: dict[str, int] = {}
    comparison: Comparison | None = None

    @property
    def is_verified(self) -> bool:
        """True if the comparison found no difference."""
        return self.comparison is None or self.comparison.is_same


class Migration:
    """One move. `now` reads the source's clock."""

    def __init__(self, source: Side, target: Side, now: Callable[[], int]) -> None:
        self._source = source
        self._target = target
        self._now = now
        self._source_progress = source_progress(source.engine)
        self._target_progress = target_progress(target.engine)

    async def survey(self) -> MigrationSurvey:
        """Read what there is to move. Nothing is changed."""
        out, in_ = await self._source_progress.read(), await self._target_progress.read()
        views = await self._source.engine.queues()
        states = _states(views)
        leased = await self._source.engine.find(JobFilter(states=(State.LEASED,)), limit=10)
        resumes = in_ is not None and out is not None and in_.id == out.id
        return MigrationSurvey(
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
        """Record the migration in both stores, and close the queues of the source."""
        survey = await self.survey()
        if survey.refusal:
            raise UsageError(survey.refusal)
        known = self._source_progress.value
        if known is None:
            known = SourceProgress(id=secrets.token_hex(8), to=self._target.place)
            await self._source_progress.write(known)
        elif known.to != self._target.place:
            await self._source_progress.write(replace(known, to=self._target.place))
        if not survey.resumes:
            await self._target_progress.write(
                TargetProgress(id=known.id, source=self._source.place, begun_at=self._now())
            )
        await steps.close_queues(self._source.engine, self._source_progress)

    async def drain(self, *, wait_ms: int, tell: ProgressCallback) -> list[Job]:
        """Wait until no job is leased; on timeout, return some of those that still are."""
        return await steps.drain(
            self._source.engine, self._source_progress, wait_ms=wait_ms, tell=tell
        )

    async def copy(self, tell: ProgressCallback) -> None:
        """Copy what is not in the target yet. Does nothing once the stores were compared."""
        source, target = self._source, self._target
        if self._at().phase not in (Phase.JOBS, Phase.REST):
            return
        await steps.declare_queues(source, target, self._known(), shut=True)
        tell(self._at().jobs)
        await steps.copy_jobs(source, target, self._target_progress, tell)
        await steps.copy_keys(source, target)

    async def compare(self, tell: ProgressCallback) -> MigrationResult:
        """Compare the stores, and open the target if they are the same."""
        at = self._at()
        if at.phase in (Phase.COMPARED, Phase.DONE):
            # A run was killed while it opened the target, so jobs may already run there.
            await self._open()
            return MigrationResult(jobs=at.jobs)
        source, target = self._source, self._target
        copied = await steps.copy_records(source.engine, target.engine, self._known())
        comparer = Comparer(source, target, begun_at=at.begun_at, now=self._now())
        found = await comparer.run(copied, tell)
        if found.is_same:
            await self._target_progress.write(replace(at, phase=Phase.COMPARED))
            await self._open()
        counts = {kind: len(values) for kind, values in copied.items()}
        return MigrationResult(jobs=at.jobs, records=counts, comparison=found)

    def _known(self) -> SourceProgress:
        known = self._source_progress.value
        assert known is not None, "begin comes first"
        return known

    def _at(self) -> TargetProgress:
        at = self._target_progress.value
        assert at is not None, "begin comes first"
        return at

    async def _open(self) -> None:
        if self._at().phase is Phase.COMPARED:
            source, target, known = self._source, self._target, self._known()
            await steps.declare_queues(source, target, known, shut=False)
            await self._target_progress.write(replace(self._at(), phase=Phase.DONE))

    async def _refusal(self, in_: TargetProgress | None) -> str:
        if in_ is not None:
            return f"the target was filled from {in_.source} by another move: give an empty store"
        if await _holds_jobs(self._target):
            return "the target already has jobs: give an empty store"
        if await self._target.engine.load(SCHEDULE_KIND, limit=1):
            return "the target already has schedules: give an empty store"
        return await self._running_redrive() or await self._running_act()

    async def _running_act(self) -> str:
        """The refusal if an act would keep changing jobs in the source."""
        async for record in scan(self._source.engine, ACT_KIND):
            act = ACTS.require(record)
            if act.state is ActState.RUNNING:
                return f"act {act.id} is running in the source: stop it, or let it end"
        return ""

    async def _running_redrive(self) -> str:
        """The refusal if a redrive would keep putting jobs back in the source."""
        async for record in scan(self._source.engine, REDRIVE_KIND):
            redrive = REDRIVES.require(record)
            if not redrive.state.ended:
                return f"redrive {redrive.id} is running in the source: cancel it, or let it end"
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


class Comparison(msgspec.Struct):
    """Checksums by state of both sides. `ended` counts jobs that upkeep buried, cancelled or
    deleted on one side since they were copied, as it will on the other. `wrong` lists the first of
    `wrong_count` other differences."""

    source: dict[State, Sum] = msgspec.field(default_factory=lambda: defaultdict(Sum))
    target: dict[State, Sum] = msgspec.field(default_factory=lambda: defaultdict(Sum))
    ended: int = 0
    keys: int = 0
    wrong: list[str] = []
    wrong_count: int = 0

    @property
    def is_same(self) -> bool:
        """True if nothing differs but what upkeep did."""
        return self.wrong_count == 0

    def differs(self, text: str) -> None:
        """Count a difference, and keep its text if there is room."""
        self.wrong_count += 1
        if len(self.wrong) < _WRONG_MAX:
            self.wrong.append(text)


class Comparer:
    """Compares a source with its target. `begun_at` and `now` are on the source's clock."""

    def __init__(self, source: Side, target: Side, *, begun_at: int, now: int) -> None:
        self._source = source
        self._target = target
        self._begun_at = begun_at
        self._now = now
        self._queues: dict[str, Queue] = {}
        self._found = Comparison()

    async def run(self, copied: CopiedRecords, tell: Callable[[int], None]) -> Comparison:
        """Compare everything. `tell` gets the number of jobs compared since its last call."""
        self._queues = await queue_settings(self._source.engine)
        await self._compare_jobs(tell)
        for name in self._queues:
            await self._compare_keys(name)
        for kind, values in copied.items():
            await self._compare_records(kind, values)
        return self._found

    async def _compare_jobs(self, tell: Callable[[int], None]) -> None:
        sources, targets = _all_jobs(self._source), _all_jobs(self._target)
        one, other = await anext(sources, None), await anext(targets, None)
        compared = 0
        while one is not None or other is not None:
            if one is not None and other is not None and one.job.id == other.job.id:
                self._compare(one, other)
            elif one is not None and await _is_missing(one.job, self._target):
                self._count(self._found.source, one)
                self._missing(one.job, "is not in the target")
                one = await anext(sources, None)
                continue
            elif other is not None and await _is_missing(other.job, self._source):
                self._count(self._found.target, other)
                self._missing(other.job, "is no longer in the source")
                other = await anext(targets, None)
                continue
            else:
                # Both jobs exist on both sides; each appears again at its place on the other side.
                self._out_of_order(one, other)
            compared += 1
            if compared % BATCH == 0:
                tell(BATCH)
            one, other = await anext(sources, None), await anext(targets, None)

    def _out_of_order(self, one: Whole | None, other: Whole | None) -> None:
        for sums, whole in ((self._found.source, one), (self._found.target, other)):
            if whole is not None:
                self._count(sums, whole)
                self._found.differs(f"job {whole.job.id} is at another place in the order")

    def _compare(self, one: Whole, other: Whole) -> None:
        same = self._count(self._found.source, one) == self._count(self._found.target, other)
        if same:
            return
        if self._is_ended(one.job) or self._is_ended(other.job):
            self._found.ended += 1
        else:
            text = f"job {one.job.id} was changed in the source or the target during the move"
            self._found.differs(text)

    def _is_ended(self, job: Job) -> bool:
        """True if upkeep ended the job since the move began."""
        is_late = job.finished_at is not None and job.finished_at >= self._begun_at
        return is_late and job.reason in (Reason.EXPIRED, Reason.DEPENDENCY)

    def _count(self, sums: dict[State, Sum], whole: Whole) -> int:
        digest = transfer.digest(whole)
        sums[whole.job.state].add(digest)
        return digest

    def _missing(self, job: Job, text: str) -> None:
        """A job that only one side has: upkeep deleted it, or it was lost."""
        queue = self._queues.get(job.queue)
        kept_ms = retention_ms(queue, job.state) if queue else 0
        if job.finished_at is not None and job.finished_at + kept_ms <= self._now:
            self._found.ended += 1
        else:
            self._found.differs(f"job {job.id} {text}")

    async def _compare_records(self, kind: str, copied: Mapping[str, bytes | None]) -> None:
        """Compare with the copied values: in the source a schedule may have ticked since."""
        present = {each.key: each.value async for each in scan(self._target.engine, kind)}
        for key, value in copied.items():
            if present.get(key) != value:
                self._found.differs(f"the {kind} {key} was changed in the target during the move")

    async def _compare_keys(self, queue: str) -> None:
        """Compare once-only keys; one that is past its window may be gone on either side."""
        present: dict[str, HeldKey] = {}
        pages = key_pages(self._target, queue)
        async for page in key_pages(self._source, queue):
            last = page[-1].key.encode()
            while not present or max(key.encode() for key in present) < last:
                more = await anext(pages, None)
                if more is None:
                    break
                present |= {held.key: held for held in more}
            for held in page:
                self._found.keys += 1
                if present.pop(held.key, None) != held and held.until_at > self._now:
                    self._found.differs(f"key {held.key!r} of queue {queue} was not moved")
            present = {key: held for key, held in present.items() if key.encode() > last}


async def _is_missing(job: Job, side: Side) -> bool:
    return await side.engine.get(job.id) is None


async def _all_jobs(side: Side) -> AsyncIterator[Whole]:
    after: int | None = 0
    while after is not None:
        batch = await side.mover.jobs(after=after, limit=BATCH, bytes_max=BATCH_BYTES_MAX)
        for whole in batch.wholes:
            yield whole
        after = batch.after

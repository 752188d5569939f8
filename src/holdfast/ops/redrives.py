"""Redrives of dead letters: the stored record, its rate and canaries; start, read and cancel one.

Upkeep's redriver carries them out. Every change is a compare-and-set on the record that was
read, so a cancel and a step of the redriver never overwrite each other. Time is counted from the
last save of the record, so differences between the clocks of machines do not matter.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from holdfast.core import bounds, checks, codec, limits
from holdfast.core.bounds import Count, Instant
from holdfast.core.limits import Rate
from holdfast.core.model import Job, JobFilter, Record, State
from holdfast.core.text import show_ms
from holdfast.engines.base import Engine
from holdfast.engines.extras import DeadLetterMove, DeadLetterQueues, extra
from holdfast.errors import UnknownQueue, Unsupported, UsageError
from holdfast.notation.durations import show_at
from holdfast.notation.policies import show_rate
from holdfast.ops.records import TRIES_MAX, RecordKind, check_same, scan
from holdfast.ops.views import at_of

REDRIVE_KIND = "redrive"
BATCH_KIND = "redriven"

_REDRIVES_MOST = 1_000_000

BATCH = 200
"""Jobs are read with their payloads: a thousand of them could be a gigabyte."""

_BATCHES_MAX = 10**9
_AHEAD_US_MAX = 2**62

CANARIES_MAX = 100
MOVE_RATE_MAX = 500
"""The highest rate of a move on Amazon SQS."""
CANARY_WAIT_MS = 10 * bounds.MINUTE_MS
REDRIVES_MAX = 3


class RedriveState(StrEnum):
    """CANARY: the first jobs were put back, and the rest wait for their outcome. STOPPED: the
    canaries failed."""

    RUNNING = "running"
    CANARY = "canary"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        """True once nothing more is put back."""
        return self not in (RedriveState.RUNNING, RedriveState.CANARY)


_MOVE_STATES = {
    "running": RedriveState.RUNNING,
    "finished": RedriveState.FINISHED,
    "cancelled": RedriveState.CANCELLED,
    "failed": RedriveState.STOPPED,
}


class RedrivePlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The dead letters to put back, the operator, and the options.

    A job that was redriven `redrives_max` times before is left alone. `patch` is a JSON merge
    patch for each payload. With `canary` a hundredth of the jobs goes first.
    """

    wanted: JobFilter
    """The dead letters to put back."""
    by: str = ""
    """Who asked for it."""
    rate: Rate | None = None
    """How many to put back per period."""
    canary: bool = False
    """Put a hundredth of them back first, and stop if one of them dies of the same cause."""
    canary_wait_ms: int = CANARY_WAIT_MS
    """How long to wait for these."""
    redrives_max: int = REDRIVES_MAX
    """Leave jobs alone that were put back this often before."""
    patch: bytes | None = None
    """JSON merge patch for each payload."""
    delay_ms: int = 0
    """Delay of each job."""


class RedriveOutcome(StrEnum):
    """The end of a job that was put back: RECURRED died of the same failure again, OTHER was
    cancelled or is gone."""

    DONE = "done"
    DIED = "died"
    RECURRED = "recurred"
    OTHER = "other"


class TakenJob(msgspec.Struct, frozen=True, array_like=True):
    """A dead letter as it was read; it is put back only if its version is still the same."""

    id: str
    version: Count
    fingerprint: str | None = None
    outcome: RedriveOutcome | None = None


class RedriveRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The progress of a redrive.

    `pending` are the jobs that the next write puts back; they are saved first, so that any process
    can finish the step after a crash. `after` is the cursor of the walk. Of the jobs it reached,
    `retried` were put back, `capped` were at the redrive limit, `unfit` have a payload that
    cannot be patched, and `changed` were changed by others at the same moment.
    """

    id: str
    plan: RedrivePlan
    total: Count
    estimated: bool = False
    started_at: Instant = 0
    ended_at: Instant | None = None
    state: RedriveState = RedriveState.RUNNING
    text: str = ""
    after: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    walked: bool = False
    ahead_us: Annotated[int, Meta(ge=0, le=_AHEAD_US_MAX)] = 0
    pending: Annotated[tuple[TakenJob, ...], Meta(max_length=BATCH)] = ()
    batch: Annotated[int, Meta(ge=0, le=_BATCHES_MAX)] = 0
    retried: Count = 0
    capped: Count = 0
    unfit: Count = 0
    changed: Count = 0
    followed: bool = False

    @property
    def canaries(self) -> int:
        """The number of canaries: a hundredth of the jobs, at least one."""
        if not self.plan.canary:
            return 0
        return min(max(1, -(-self.total // 100)), CANARIES_MAX)

    @property
    def left(self) -> int:
        """The number of matching jobs that were not reached yet."""
        done = self.retried + self.capped + self.unfit + self.changed
        return 0 if self.walked else max(0, self.total - done - len(self.pending))

    @property
    def mark(self) -> str:
        """The text in a job's timeline that names the redrive which put it back."""
        return f"redrive {self.id}"


class RedriveBatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Some of the jobs that were put back. Once it is full and all jobs have ended, only the counts
    by outcome are kept, in `ends`."""

    taken: Annotated[tuple[TakenJob, ...], Meta(max_length=2 * BATCH)] = ()
    ends: dict[RedriveOutcome, Count] = {}

    @property
    def is_full(self) -> bool:
        """True if no job may be added."""
        return bool(self.ends) or len(self.taken) >= BATCH

    @property
    def open(self) -> tuple[TakenJob, ...]:
        """The jobs that have not ended, as far as is known."""
        return tuple(each for each in self.taken if each.outcome is None)

    @property
    def outcomes(self) -> Counter[RedriveOutcome]:
        """The number of ended jobs by outcome."""
        return Counter(self.ends) + Counter(each.outcome for each in self.taken if each.outcome)

    def plus(self, more: Sequence[TakenJob]) -> RedriveBatch:
        """The batch with more jobs. Repeating it adds nothing: known jobs are left out, and a full
        batch stays as it is, since only a repeated step can offer it the jobs that filled it."""
        if self.is_full:
            return self
        known = {job.id for job in self.taken}
        added = tuple(job for job in more if job.id not in known)
        return replace(self, taken=(*self.taken, *added))

    def with_outcomes(self, jobs: Mapping[str, Job]) -> RedriveBatch:
        """The batch with the outcomes of open jobs, taken from these jobs."""
        taken = tuple(
            each if each.outcome else replace(each, outcome=outcome_of(each, jobs.get(each.id)))
            for each in self.taken
        )
        now = replace(self, taken=taken)
        return RedriveBatch(ends=dict(now.outcomes)) if now.is_full and not now.open else now


def outcome_of(before: TakenJob, job: Job | None) -> RedriveOutcome | None:
    """The outcome of a job; None while it has not ended."""
    if job is None or job.state is State.CANCELLED:
        return RedriveOutcome.OTHER
    if job.state is State.DONE:
        return RedriveOutcome.DONE
    if job.is_dead_letter:
        known = before.fingerprint is not None
        return (
            RedriveOutcome.RECURRED
            if known and before.fingerprint == job.fingerprint
            else RedriveOutcome.DIED
        )
    return None


def jobs_allowed(redrive: RedriveRecord, age_ms: int) -> int:
    """The number of jobs that may be taken now. A rate allows one second's worth at once, so that
    1,000/s does not need a thousand steps.
    """
    rate = redrive.plan.rate
    most = BATCH
    if rate is not None:
        free_us = limits.clamp_free_us(rate, redrive.ahead_us - age_ms * 1_000, 0)
        most = min(most, limits.starts_now(rate, free_us, 0))
    if redrive.retried < redrive.canaries:
        most = min(most, redrive.canaries - redrive.retried)
    return most


def with_burst(rate: Rate) -> Rate:
    """The rate with a burst of one second's worth."""
    return replace(rate, burst=max(rate.burst, min(BATCH, rate.count * 1_000 // rate.per_ms)))


def charge_rate(redrive: RedriveRecord, age_ms: int, count: int = 0) -> RedriveRecord:
    """The record with its rate advanced to now, and `count` more jobs charged to it."""
    rate = redrive.plan.rate
    if rate is None:
        return redrive
    free_us = limits.clamp_free_us(rate, redrive.ahead_us - age_ms * 1_000, 0)
    return replace(redrive, ahead_us=limits.after_starts(rate, free_us, 0, count))


def next_take_ms(redrive: RedriveRecord) -> int:
    """The time from the last save until one more job may be taken."""
    rate = redrive.plan.rate
    return 0 if rate is None else limits.free_ms(rate, redrive.ahead_us, 0)


def is_late(redrive: RedriveRecord, age_ms: int, tolerance_ms: int) -> bool:
    """True if the next step is late by more than `tolerance_ms`: then no upkeep is running."""
    if redrive.state.ended:
        return False
    waits = redrive.state is RedriveState.CANARY
    due_ms = redrive.plan.canary_wait_ms if waits else next_take_ms(redrive)
    return age_ms > due_ms + tolerance_ms


class CanaryVerdict(msgspec.Struct, frozen=True):
    """Continue, or stop for a reason; with neither, wait."""

    go: bool = False
    stop: str = ""


def judge_canaries(
    taken: Sequence[TakenJob], jobs: Mapping[str, Job], *, waited_ms: int, wait_ms: int
) -> CanaryVerdict:
    """Stop as soon as one canary died of the same failure again, or if none succeeded in time."""
    outcomes = {each: each.outcome or outcome_of(each, jobs.get(each.id)) for each in taken}
    for each, outcome in outcomes.items():
        if outcome is RedriveOutcome.RECURRED:
            return CanaryVerdict(stop=f"fingerprint {each.fingerprint} recurred in job {each.id}")
    counts = Counter(outcomes.values())
    open_ = counts[None]
    if open_ and waited_ms < wait_ms:
        return CanaryVerdict()
    # A job that is gone was done and pruned, or deleted: dead letters are kept longer.
    others = [each for each, outcome in outcomes.items() if outcome is RedriveOutcome.OTHER]
    gone = sum(each.id not in jobs for each in others)
    if counts[RedriveOutcome.DONE] + gone or not taken:
        return CanaryVerdict(go=True)
    many = "the canary" if len(taken) == 1 else f"none of {len(taken)} canaries"
    failed = "did not succeed" if len(taken) == 1 else "succeeded"
    within = (
        f" within {wait_ms // 1_000} s" if open_ else f": {counts[RedriveOutcome.DIED]} died again"
    )
    return CanaryVerdict(stop=f"{many} {failed}{within}")


def _check_stored(key: str, redrive: RedriveRecord) -> None:
    check_same("id", redrive.id, key)
    _check_plan(redrive.plan)


REDRIVES = RecordKind(REDRIVE_KIND, RedriveRecord, strict=True, check=_check_stored)
BATCHES = RecordKind(BATCH_KIND, RedriveBatch, label="redrive", strict=True)


class RedriveSurvey(NamedTuple):
    """The number of matching dead letters, or a lower bound with `more`. `capped` others have
    reached the redrive limit."""

    fitting: int = 0
    capped: int = 0
    more: bool = False


class RedriveView(msgspec.Struct, frozen=True, kw_only=True):
    """A redrive and the outcomes of the jobs it put back: `recurred` of the `died` ones died of
    the same failure again, `other` were cancelled or are gone, and `open` have not ended. `age_ms`
    is the time since its last step."""

    redrive: RedriveRecord
    age_ms: int = 0
    done: int = 0
    died: int = 0
    recurred: int = 0
    other: int = 0
    open: int = 0


class Redrives:
    """The redrives of one store. `wall_ms` stamps the times that people read. On an engine with
    `DeadLetterQueues`, a redrive is a move of all dead letters of a queue, whose name is its id."""

    def __init__(self, engine: Engine, wall_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._wall_ms = wall_ms
        self._queues = extra(engine, DeadLetterQueues)

    async def survey(self, plan: RedrivePlan, *, most: int | None = None) -> RedriveSurvey:
        """Count the jobs of a redrive, until `most` that fit are found."""
        if self._queues is not None:
            check_move(self._engine, plan)
            return await _survey_queues(self._engine, plan.wanted.queue)
        return await survey(self._engine, _checked_plan(plan), most)

    async def start(self, plan: RedrivePlan, found: RedriveSurvey | None = None) -> RedriveRecord:
        """Store a new redrive, durable on return. `found` is the survey, if it was taken before."""
        plan = _checked_plan(plan)
        if self._queues is not None:
            return await self._start_move(self._queues, plan)
        if plan.rate is not None:
            plan = replace(plan, rate=with_burst(plan.rate))
        found = found or await survey(self._engine, plan)
        now = self._wall_ms()
        for _ in range(TRIES_MAX):
            redrive = RedriveRecord(
                id=f"{now // 1_000:x}-{secrets.token_hex(2)}",
                plan=plan,
                total=found.fitting,
                estimated=found.more,
                started_at=now,
            )
            if await REDRIVES.create(self._engine, redrive.id, redrive):
                return redrive
        raise REDRIVES.busy("(new)")

    async def cancel(self, id: str, by: str) -> RedriveRecord:
        """Cancel a redrive. Jobs that are being put back at this moment are finished first."""
        if self._queues is not None:
            move = await self._queues.cancel_dead_move(id)
            if move is None:
                raise UsageError(f"the dead letters of queue {id[:80]!r} were never moved")
            return _move_record(move)

        def change(redrive: RedriveRecord | None) -> RedriveRecord:
            if redrive is None:
                raise UsageError(f"redrive {id[:80]!r} does not exist")
            if redrive.state.ended:
                return redrive
            text = f"by {by}" if by else ""
            return end_redrive(redrive, RedriveState.CANCELLED, text, self._wall_ms())

        cancelled = await REDRIVES.update(self._engine, id, change)
        assert cancelled is not None
        return cancelled

    async def get(self, id: str) -> RedriveView | None:
        """One redrive; None if there is none with this id."""
        if self._queues is not None:
            moves = await self._moves(id)
            return moves[0] if moves else None
        stored = await REDRIVES.read(self._engine, id)
        if stored is None:
            return None
        return await self._view(REDRIVES.require(stored.record), stored.age_ms)

    async def all(self) -> list[RedriveView]:
        """Every readable redrive, oldest first."""
        if self._queues is not None:
            return await self._moves()
        return [
            await self._view(stored.value, stored.age_ms)
            async for stored in REDRIVES.read_all(self._engine)
            if stored.value is not None
        ]

    async def going_on(self, *, ended_since: int | None = None) -> list[RedriveView]:
        """The readable redrives that have not ended, or not before `ended_since`."""

        def wanted(redrive: RedriveRecord) -> bool:
            at = redrive.ended_at
            recent = ended_since is not None and at is not None and at >= ended_since
            return recent or not redrive.state.ended

        if self._queues is not None:
            return [view for view in await self._moves() if wanted(view.redrive)]
        return [
            await self._view(stored.value, stored.age_ms)
            async for stored in REDRIVES.read_all(self._engine)
            if stored.value is not None and wanted(stored.value)
        ]

    async def _start_move(self, queues: DeadLetterQueues, plan: RedrivePlan) -> RedriveRecord:
        check_move(self._engine, plan)
        if plan.wanted.queue is None:
            raise UsageError("name the queue whose dead letters are moved back")
        rate = None if plan.rate is None else _per_second(plan.rate)
        return _move_record(await queues.move_dead(plan.wanted.queue, rate=rate))

    async def _moves(self, queue: str | None = None) -> list[RedriveView]:
        assert self._queues is not None
        try:
            moves = await self._queues.dead_moves(None if queue is None else [queue])
        except UnknownQueue:
            return []
        records = sorted(map(_move_record, moves), key=lambda record: record.started_at)
        return [RedriveView(redrive=record) for record in records]

    async def _view(self, redrive: RedriveRecord, age_ms: int) -> RedriveView:
        outcomes: Counter[RedriveOutcome] = Counter()
        async for each in redrive_batches(self._engine, redrive.id):
            batch = BATCHES.decode(each)
            outcomes += Counter() if batch is None else batch.outcomes
        return RedriveView(
            redrive=redrive,
            age_ms=age_ms,
            done=outcomes[RedriveOutcome.DONE],
            died=outcomes[RedriveOutcome.DIED] + outcomes[RedriveOutcome.RECURRED],
            recurred=outcomes[RedriveOutcome.RECURRED],
            other=outcomes[RedriveOutcome.OTHER],
            open=max(0, redrive.retried - outcomes.total()),
        )


def check_move(engine: Engine, plan: RedrivePlan) -> None:
    """Raise Unsupported unless the plan is to move all dead letters of a queue back, or of all
    queues."""
    only = JobFilter(queue=plan.wanted.queue, states=plan.wanted.states)
    for feature, is_wanted in (
        ("putting single dead letters back", plan.wanted != only),
        ("a redrive with canaries", plan.canary),
        ("changes to the payloads of dead letters", plan.patch is not None),
        ("a redrive with a delay", plan.delay_ms > 0),
        ("a limit on redrives, which are not counted", plan.redrives_max != REDRIVES_MAX),
    ):
        if is_wanted:
            remedy = (
                "move all dead letters of a queue back, or put them back yourself with"
                " @app.on_dead_letter"
            )
            raise Unsupported(engine.traits.name, feature, remedy)


async def _survey_queues(engine: Engine, queue: str | None) -> RedriveSurvey:
    views = await engine.queues(names=None if queue is None else [queue])
    if queue is not None and not views:
        raise checks.unknown_queue(queue)
    return RedriveSurvey(sum(view.dead for view in views), more=True)


def _per_second(rate: Rate) -> int:
    """The rate of a move, which is a whole number a second."""
    count, rest = divmod(rate.count * bounds.SECOND_MS, rate.per_ms)
    if rest or not 1 <= count <= MOVE_RATE_MAX:
        raise UsageError(
            f"the rate {show_rate(rate)} does not fit a move on SQS: use a whole number from 1/s to"
            f" {MOVE_RATE_MAX}/s"
        )
    return count


def _move_record(move: DeadLetterMove) -> RedriveRecord:
    """A move as a redrive. Its counts are estimates of the store."""
    rate = None if move.rate is None else Rate(count=move.rate, per_ms=bounds.SECOND_MS)
    return RedriveRecord(
        id=move.queue,
        plan=RedrivePlan(wanted=JobFilter(queue=move.queue), rate=rate),
        total=move.moved + move.left,
        estimated=True,
        started_at=move.started_at,
        state=_MOVE_STATES[move.state],
        text=move.text,
        walked=move.state != "running",
        retried=move.moved,
    )


async def survey(engine: Engine, plan: RedrivePlan, most: int | None = None) -> RedriveSurvey:
    """Count the dead letters that match the plan, until `most` that fit are found."""
    most = bounds.SCAN_MAX if most is None else most
    fitting = capped = 0
    after: int | None = None
    while True:
        page = await engine.find(plan.wanted, limit=BATCH, after=after)
        over = sum(job.redrives >= plan.redrives_max for job in page.jobs)
        fitting, capped, after = fitting + len(page.jobs) - over, capped + over, page.after
        enough = fitting >= most or fitting + capped >= bounds.SCAN_MAX
        if after is None or enough:
            return RedriveSurvey(fitting, capped, more=after is not None)


async def redrive_batches(engine: Engine, id: str) -> AsyncIterator[Record]:
    """The records of one redrive's batches, in order."""
    async for record in scan(engine, BATCH_KIND, after=f"{id}/"):
        if not record.key.startswith(f"{id}/"):
            return
        yield record


def batch_key(id: str, number: int) -> str:
    """The key of one batch of a redrive; keys sort by number."""
    return f"{id}/{number:06d}"


def end_redrive(redrive: RedriveRecord, state: RedriveState, text: str, now: int) -> RedriveRecord:
    """The redrive in a final state."""
    return replace(redrive, state=state, text=text, ended_at=now)


def _checked_plan(plan: RedrivePlan) -> RedrivePlan:
    """The plan as it will be read back, bounded to dead letters. UsageError if it is not valid."""
    try:
        read = msgspec.json.decode(msgspec.json.encode(plan), type=RedrivePlan)
    except (msgspec.MsgspecError, TypeError) as error:
        raise UsageError(f"the redrive cannot be stored: {error}") from None
    _check_plan(read)
    return replace(read, wanted=replace(read.wanted, states=(State.DEAD,)))


def _check_plan(plan: RedrivePlan) -> None:
    """Raise UsageError unless the filter, the numbers and the patch are valid."""
    checks.check_filter(plan.wanted)
    rate = plan.rate or Rate(count=1, per_ms=1)
    for name, value, low, high in (
        ("redrives_max", plan.redrives_max, 1, _REDRIVES_MOST),
        ("canary_wait_ms", plan.canary_wait_ms, 1, bounds.DELAY_MS_MAX),
        ("delay_ms", plan.delay_ms, 0, bounds.DELAY_MS_MAX),
        ("the count of its rate", rate.count, 1, bounds.RATE_COUNT_MAX),
        ("the per_ms of its rate", rate.per_ms, 1, bounds.DAY_MS),
        ("the burst of its rate", rate.burst, 1, bounds.RATE_COUNT_MAX),
    ):
        if not low <= value <= high:
            raise UsageError(f"{name} {value} is out of range: expected {low} to {high}")
    if plan.patch is not None:
        codec.decode(plan.patch)


class RedriveDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a redrive, its progress, and the outcomes of its jobs.

    Of the jobs it reached, `capped` were at the redrive limit, `unfit` have a payload that cannot
    be patched, and `changed` were changed by others. Of the `retried` ones, `recurred` of the
    `died` died of the same failure again, and `other` were cancelled or are gone.
    """

    id: str
    state: RedriveState
    text: str
    by: str
    started_at: str
    ended_at: str | None
    filter: JobFilter
    rate: str | None
    canaries: int
    max_redrives: int
    edit: Any
    delay: str
    total: int
    estimated: bool
    retried: int
    left: int
    capped: int
    unfit: int
    changed: int
    done: int
    died: int
    recurred: int
    other: int
    open: int


def redrive_details(view: RedriveView) -> RedriveDetails:
    """A redrive as people read it."""
    redrive = view.redrive
    plan = redrive.plan
    return RedriveDetails(
        id=redrive.id,
        state=redrive.state,
        text=redrive.text,
        by=plan.by,
        started_at=show_at(redrive.started_at),
        ended_at=at_of(redrive.ended_at),
        filter=replace(plan.wanted, states=None),
        rate=None if plan.rate is None else show_rate(plan.rate),
        canaries=redrive.canaries,
        max_redrives=plan.redrives_max,
        edit=None if plan.patch is None else codec.decode(plan.patch),
        delay=show_ms(plan.delay_ms),
        total=redrive.total,
        estimated=redrive.estimated,
        retried=redrive.retried,
        left=redrive.left,
        capped=redrive.capped,
        unfit=redrive.unfit,
        changed=redrive.changed,
        done=view.done,
        died=view.died,
        recurred=view.recurred,
        other=view.other,
        open=view.open,
    )

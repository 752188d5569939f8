"""A redrive: dead letters that are put back to work bit by bit, as a record beside the jobs.

Pure: what a redrive is, how many jobs it may take now, and what its canaries say. Time is counted
from the last save of the record, so that clocks that differ between machines do not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.core import flow, limits
from holdfast.core.flow import Rate
from holdfast.core.model import Job, JobFilter, State

BATCH = 200
"""Jobs are read with their payloads, so that a thousand could be a gigabyte."""

CANARIES_MAX = 100
CANARY_WAIT_MS = 10 * limits.MINUTE_MS
REDRIVES_MAX = 3


class RedriveState(StrEnum):
    """Canary: the first few are out, and nothing more is done until it is known what becomes of
    them. Stopped: by what became of them."""

    RUNNING = "running"
    CANARY = "canary"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        return self not in (RedriveState.RUNNING, RedriveState.CANARY)


class RedrivePlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which dead letters, for whom, and how.

    A job that was redriven `redrives_max` times before is left alone. `patch` is a JSON merge
    patch, which each payload gets first. With `canary` a hundredth goes first.
    """

    wanted: JobFilter
    by: str = ""
    rate: Rate | None = None
    canary: bool = False
    canary_wait_ms: int = CANARY_WAIT_MS
    redrives_max: int = REDRIVES_MAX
    patch: bytes | None = None
    delay_ms: int = 0


class Fate(StrEnum):
    """What became of a job that was put back: `recurred` is dead of the same as before, and
    `other` was cancelled or is gone."""

    DONE = "done"
    DIED = "died"
    RECURRED = "recurred"
    OTHER = "other"


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """A dead letter as it was read: it is put back only if it is so still."""

    id: str
    version: int
    fingerprint: str | None = None
    fate: Fate | None = None


class RedriveRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`pending` is what its next write will put back: saved before, so that whoever finds it after
    a crash can finish it. `after` is how far the walk came. Of those met, `retried` were put back,
    `capped` had been too often, `unfit` have a payload that cannot be patched, and `changed` were
    changed by others in the same moment.
    """

    id: str
    plan: RedrivePlan
    total: int
    estimated: bool = False
    started_at: int = 0
    ended_at: int | None = None
    state: RedriveState = RedriveState.RUNNING
    text: str = ""
    after: int | None = None
    walked: bool = False
    ahead_us: int = 0
    pending: tuple[Taken, ...] = ()
    batch: int = 0
    retried: int = 0
    capped: int = 0
    unfit: int = 0
    changed: int = 0
    followed: bool = False

    @property
    def canaries(self) -> int:
        """A hundredth, at least one."""
        if not self.plan.canary:
            return 0
        return min(max(1, -(-self.total // 100)), CANARIES_MAX)

    @property
    def left(self) -> int:
        met = self.retried + self.capped + self.unfit + self.changed
        return 0 if self.walked else max(0, self.total - met - len(self.pending))

    @property
    def mark(self) -> str:
        """What the timeline of a job says, and how it is known which redrive put it back."""
        return f"redrive {self.id}"


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Some of the jobs that were put back. Once it is full and all have ended, only how many ended
    which way is kept, in `ends`."""

    taken: tuple[Taken, ...] = ()
    ends: dict[Fate, int] = {}

    @property
    def is_full(self) -> bool:
        return bool(self.ends) or len(self.taken) >= BATCH

    @property
    def open(self) -> tuple[Taken, ...]:
        return tuple(each for each in self.taken if each.fate is None)

    @property
    def fates(self) -> Counter[Fate]:
        return Counter(self.ends) + Counter(each.fate for each in self.taken if each.fate)

    def plus(self, more: Sequence[Taken]) -> Batch:
        """With those too. Whoever is there is not added again, and nothing is added to a full one:
        it is asked twice only by those who do over what filled it."""
        if self.is_full:
            return self
        there = {each.id for each in self.taken}
        added = tuple(each for each in more if each.id not in there)
        return replace(self, taken=(*self.taken, *added))

    def seen(self, jobs: Mapping[str, Job]) -> Batch:
        """With what has become of those that were open."""
        taken = tuple(
            each if each.fate else replace(each, fate=fate_of(each, jobs.get(each.id)))
            for each in self.taken
        )
        now = replace(self, taken=taken)
        return Batch(ends=dict(now.fates)) if now.is_full and not now.open else now


def fate_of(before: Taken, job: Job | None) -> Fate | None:
    """None while it has not ended. A redrive takes the reason away: a job that has one and waits
    died again, and waits in a dead queue."""
    if job is None or job.state is State.CANCELLED:
        return Fate.OTHER
    if job.state is State.DONE:
        return Fate.DONE
    if job.state is State.DEAD or (job.state is State.WAITING and job.reason is not None):
        known = before.fingerprint is not None
        return Fate.RECURRED if known and before.fingerprint == job.fingerprint else Fate.DIED
    return None


def ration(redrive: RedriveRecord, age_ms: int) -> int:
    """How many jobs may be taken now. A rate lets through what a second is worth at once, so that
    a thousand a second are no thousand steps."""
    rate = redrive.plan.rate
    most = BATCH
    if rate is not None:
        free_us = flow.sane_us(rate, redrive.ahead_us - age_ms * 1_000, 0)
        most = min(most, flow.starts_now(rate, free_us, 0))
    if redrive.retried < redrive.canaries:
        most = min(most, redrive.canaries - redrive.retried)
    return most


def stepwise(rate: Rate) -> Rate:
    """The rate with a burst of what a second is worth."""
    return replace(rate, burst=max(rate.burst, min(BATCH, rate.count * 1_000 // rate.per_ms)))


def spent(redrive: RedriveRecord, age_ms: int, count: int = 0) -> RedriveRecord:
    """As of now, with so many more taken."""
    rate = redrive.plan.rate
    if rate is None:
        return redrive
    free_us = flow.sane_us(rate, redrive.ahead_us - age_ms * 1_000, 0)
    return replace(redrive, ahead_us=flow.after_starts(rate, free_us, 0, count))


def next_ms(redrive: RedriveRecord) -> int:
    """From its last save to when one more may be taken."""
    rate = redrive.plan.rate
    return 0 if rate is None else flow.free_ms(rate, redrive.ahead_us, 0)


def is_late(redrive: RedriveRecord, age_ms: int, patience_ms: int) -> bool:
    """Is its next step overdue by more than that? Then nobody runs upkeep."""
    if redrive.state.ended:
        return False
    waits = redrive.state is RedriveState.CANARY
    due_ms = redrive.plan.canary_wait_ms if waits else next_ms(redrive)
    return age_ms > due_ms + patience_ms


class Omen(msgspec.Struct, frozen=True):
    """What canaries say: go on, or stop for a reason. Neither: wait."""

    go: bool = False
    stop: str = ""


def omen(taken: Sequence[Taken], jobs: Mapping[str, Job], *, waited_ms: int, wait_ms: int) -> Omen:
    """Stop as soon as one died of the same as before, or when none came through in the end."""
    fates = {each: each.fate or fate_of(each, jobs.get(each.id)) for each in taken}
    for each, fate in fates.items():
        if fate is Fate.RECURRED:
            return Omen(stop=f"fingerprint {each.fingerprint} recurred in job {each.id}")
    counts = Counter(fates.values())
    open_ = counts[None]
    if open_ and waited_ms < wait_ms:
        return Omen()
    # One that is gone was done and is kept no longer, or was deleted: dead letters are kept longer.
    gone = sum(fate is Fate.OTHER and each.id not in jobs for each, fate in fates.items())
    if counts[Fate.DONE] + gone or not taken:
        return Omen(go=True)
    many = "the canary" if len(taken) == 1 else f"none of {len(taken)} canaries"
    came = "did not come through" if len(taken) == 1 else "came through"
    within = f" within {wait_ms // 1_000} s" if open_ else f": {counts[Fate.DIED]} died again"
    return Omen(stop=f"{many} {came}{within}")

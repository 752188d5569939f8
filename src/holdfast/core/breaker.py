"""Circuit breakers: what keeps failing is left alone for a while, then tried with one job.

Pure: a record of what all workers saw, its age by the engine's clock, and what happened since go
in; the next record comes out. Nothing here reads a clock: a record that is open was saved when it
opened, so its age is how long that was ago.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.core import limits

KIND = "breaker"
TASK_PREFIX, HOST_PREFIX = "task:", "host:"

PROBE_MS = 15 * limits.SECOND_MS
"""A probe that nobody has renewed for so long may be made by another worker."""
_LAST_MAX = 200


class Breaker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When it opens, and for how long. By `failures` in a row; or, with a `share`, when of the
    last `window_ms` at least `calls_min` attempts were made and so large a share of them failed.
    The cool-down doubles each time a probe fails, up to its most."""

    failures: int = 5
    share: float | None = None
    calls_min: int = 20
    window_ms: int = limits.MINUTE_MS
    cooldown_ms: int = 30 * limits.SECOND_MS
    cooldown_ms_max: int = 10 * limits.MINUTE_MS


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all workers know of one breaker. `streak` failures in a row; `good` and `bad` attempts
    of a window that is `window_ms` old. It is open for `open_ms` from when it was saved, or, when
    `by` somebody's hand, until somebody closes it. `openings` in a row lengthen the cool-down.
    `prober` is the id of the worker whose one job decides."""

    policy: Breaker = Breaker()
    state: BreakerState = BreakerState.CLOSED
    streak: int = 0
    good: int = 0
    bad: int = 0
    window_ms: int = 0
    openings: int = 0
    open_ms: int = 0
    prober: str = ""
    last: str = ""
    by: str = ""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """What attempts came to, in the order in which they ended: `first` failures before the first
    success, `last` after the last one, and never more than `longest` in between."""

    good: int = 0
    bad: int = 0
    first: int = 0
    longest: int = 0
    last: int = 0
    text: str = ""

    def plus(self, *, good: bool, text: str = "") -> Results:
        if good:
            return replace(self, good=self.good + 1, last=0)
        last = self.last + 1
        return replace(
            self,
            bad=self.bad + 1,
            first=self.first if self.good else last,
            longest=max(self.longest, last),
            last=last,
            text=text[:_LAST_MAX] or self.text,
        )


NO_RESULTS = Results()


def counted(record: BreakerRecord, results: Results, policy: Breaker, age_ms: int) -> BreakerRecord:
    """With these results of attempts that were no probes. One that is not closed ignores them:
    they began before it opened."""
    if record.state is not BreakerState.CLOSED or results == NO_RESULTS:
        return record
    most = max(record.streak + results.first, results.longest)
    streak = results.last + (0 if results.good else record.streak)
    known = replace(record, policy=policy, streak=streak, last=results.text or record.last)
    too_many = most >= policy.failures
    if policy.share is not None:
        fresh = record.window_ms + age_ms >= policy.window_ms
        good = results.good + (0 if fresh else record.good)
        bad = results.bad + (0 if fresh else record.bad)
        spent_ms = 0 if fresh else record.window_ms + age_ms
        known = replace(known, good=good, bad=bad, window_ms=spent_ms)
        calls = good + bad
        too_many = calls >= policy.calls_min and bad >= policy.share * calls
    if not too_many:
        return known
    return _opened(replace(known, streak=max(most, known.bad)))


def may_probe(record: BreakerRecord, age_ms: int) -> bool:
    """Is it time for one job, and is nobody about to run it?"""
    match record.state:
        case BreakerState.OPEN:
            return not record.by and age_ms >= record.open_ms
        case BreakerState.HALF_OPEN:
            return age_ms >= PROBE_MS
        case BreakerState.CLOSED:
            return False


def probing(record: BreakerRecord, worker: str) -> BreakerRecord:
    return replace(record, state=BreakerState.HALF_OPEN, prober=worker)


def probed(record: BreakerRecord, worker: str, *, good: bool, text: str = "") -> BreakerRecord:
    """What the probe decides, if it is still this worker's to decide."""
    if record.state is not BreakerState.HALF_OPEN or record.prober != worker:
        return record
    if good:
        return closed(record)
    return _opened(replace(record, streak=record.streak + 1, last=text[:_LAST_MAX] or record.last))


def closed(record: BreakerRecord) -> BreakerRecord:
    """As new; what went wrong last stays to be read."""
    return BreakerRecord(policy=record.policy, last=record.last)


def opened_by(record: BreakerRecord, by: str) -> BreakerRecord:
    """By hand: it stays open until it is closed by hand."""
    return replace(record, state=BreakerState.OPEN, prober="", by=by or "somebody")


def is_forgotten(record: BreakerRecord, age_ms: int) -> bool:
    """Nothing was heard of it for a day: its task may be gone. A worker that has the task writes
    it anew, closed; what a person opened stays."""
    return not record.by and age_ms > record.open_ms + limits.DAY_MS


def is_plain(record: BreakerRecord) -> bool:
    """Says it nothing that a new one would not?"""
    return record.state is BreakerState.CLOSED and not (record.streak or record.good or record.bad)


def left_ms(record: BreakerRecord, age_ms: int) -> int | None:
    """How long until a probe; None when nobody knows."""
    if record.state is BreakerState.OPEN and not record.by:
        return max(0, record.open_ms - age_ms)
    return None


def told(record: BreakerRecord, name: str) -> str:
    """How it stands, in a sentence without instants."""
    last = f", last: {record.last}" if record.last else ""
    match record.state:
        case BreakerState.CLOSED:
            return f"the breaker of {name} is closed"
        case BreakerState.OPEN if record.by:
            return f"the breaker of {name} was opened by {record.by}"
        case BreakerState.OPEN:
            return f"the breaker of {name} is open after {_failures(record.streak)}{last}"
        case BreakerState.HALF_OPEN:
            return (
                f"the breaker of {name} is half open: one job is tried first, "
                f"after {_failures(record.streak)}{last}"
            )


def title(key: str) -> str:
    """`task:mail:send` → `task mail:send`."""
    kind, _, name = key.partition(":")
    return f"{kind} {name}"


def _opened(record: BreakerRecord) -> BreakerRecord:
    policy = record.policy
    # Bounded before it is shifted: a breaker may have opened for years.
    open_ms = min(policy.cooldown_ms << min(record.openings, 32), policy.cooldown_ms_max)
    return replace(
        record,
        state=BreakerState.OPEN,
        good=0,
        bad=0,
        window_ms=0,
        openings=record.openings + 1,
        open_ms=max(open_ms, policy.cooldown_ms),
        prober="",
        by="",
    )


def _failures(count: int) -> str:
    return "1 failure" if count == 1 else f"{count} failures"

"""Circuit breakers: a failing task or host is paused for a cool-down, then probed with one job.

Pure: the shared record, its age by the engine's clock and new results go in, the next record comes
out. A breaker is saved when it opens, so the age of its record is the time since then.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.bounds import Count, Share, Span

KIND = "breaker"
TASK_PREFIX, HOST_PREFIX = "task:", "host:"

PROBE_MS = 15 * bounds.SECOND_MS
"""After this time without a renewal, another worker may take over the probe."""
_LAST_MAX = 200


class Breaker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The policy of a breaker. It opens after `failures` in a row or, with a `share`, when at least
    `calls_min` attempts ended within `window_ms` and that share of them failed. The cool-down
    doubles each time a probe fails, up to `cooldown_ms_max`."""

    failures: Count = 5
    """Failures in a row that open it."""
    share: Share | None = None
    """The share of failed attempts that opens it, from 0 to 1."""
    calls_min: Count = 20
    """Attempts in the window before the share counts."""
    window_ms: Span = bounds.MINUTE_MS
    """The window of the share."""
    cooldown_ms: Span = 30 * bounds.SECOND_MS
    """How long it stays open before a job probes it."""
    cooldown_ms_max: Span = 10 * bounds.MINUTE_MS
    """The longest cool-down."""


class BreakerState(StrEnum):
    """Jobs start while it is closed, not while it is open; half open, one job probes."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one breaker, shared by all workers. `streak` counts failures in a row; `good`
    and `bad` count attempts in a window that is `window_ms` old. It stays open for `open_ms` after
    it was saved or, if an operator opened it (`by`), until an operator closes it. `openings` in a
    row lengthen the cool-down. `prober` is the id of the worker that runs the probe."""

    policy: Breaker = Breaker()
    state: BreakerState = BreakerState.CLOSED
    streak: Count = 0
    good: Count = 0
    bad: Count = 0
    window_ms: Span = 0
    openings: Count = 0
    open_ms: Span = 0
    prober: str = ""
    last: str = ""
    by: str = ""


class AttemptResults(msgspec.Struct, frozen=True, kw_only=True):
    """Results of attempts in the order in which they ended: `first` failures before the first
    success, `last` failures after the last one, and at most `longest` in a row."""

    good: int = 0
    bad: int = 0
    first: int = 0
    longest: int = 0
    last: int = 0
    text: str = ""

    def plus(self, *, good: bool, text: str = "") -> AttemptResults:
        """These results and one more."""
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


NO_RESULTS = AttemptResults()


def count_results(
    record: BreakerRecord, results: AttemptResults, policy: Breaker, age_ms: int
) -> BreakerRecord:
    """The record after results of attempts that were not probes; it may open. A breaker that is
    not closed ignores them, because those attempts began before it opened."""
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
    """Whether a probe is due and no other worker is running one."""
    match record.state:
        case BreakerState.OPEN:
            return not record.by and age_ms >= record.open_ms
        case BreakerState.HALF_OPEN:
            return age_ms >= PROBE_MS
        case BreakerState.CLOSED:
            return False


def remedy(*, is_probed: bool) -> str:
    """What a person can do about an open breaker. One that a person opened is not probed."""
    wait = "wait for the next probe, or " if is_probed else ""
    return f"{wait}close it if the cause is fixed"


def probing(record: BreakerRecord, worker: str) -> BreakerRecord:
    """Half open: this worker runs the probe."""
    return replace(record, state=BreakerState.HALF_OPEN, prober=worker)


def probed(record: BreakerRecord, worker: str, *, good: bool, text: str = "") -> BreakerRecord:
    """Close or reopen after a probe, if it is still this worker's probe."""
    if record.state is not BreakerState.HALF_OPEN or record.prober != worker:
        return record
    if good:
        return closed(record)
    return _opened(replace(record, streak=record.streak + 1, last=text[:_LAST_MAX] or record.last))


def closed(record: BreakerRecord) -> BreakerRecord:
    """Closed, with all counters reset; the last error text stays."""
    return BreakerRecord(policy=record.policy, last=record.last)


def opened_by(record: BreakerRecord, by: str) -> BreakerRecord:
    """Opened by an operator: it stays open until an operator closes it."""
    return replace(record, state=BreakerState.OPEN, prober="", by=by or "somebody")


def is_forgotten(record: BreakerRecord, age_ms: int) -> bool:
    """Whether the record was not used for a day and may be deleted: its task may no longer exist. A
    worker that has the task creates it again, closed. A breaker opened by an operator stays.
    """
    return not record.by and age_ms > record.open_ms + bounds.DAY_MS


def is_plain(record: BreakerRecord) -> bool:
    """Whether the record equals that of a breaker that has never seen a failure."""
    return record.state is BreakerState.CLOSED and not (record.streak or record.good or record.bad)


def left_ms(record: BreakerRecord, age_ms: int) -> int | None:
    """Milliseconds until the next probe; None if no probe is due."""
    if record.state is BreakerState.OPEN and not record.by:
        return max(0, record.open_ms - age_ms)
    return None


def describe(record: BreakerRecord, name: str) -> str:
    """Describe the state of the breaker in a sentence, without instants."""
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
                f"the breaker of {name} is half open: one job runs as a probe, "
                f"after {_failures(record.streak)}{last}"
            )


def title(key: str) -> str:
    """`task:mail:send` → `task mail:send`."""
    kind, _, name = key.partition(":")
    return f"{kind} {name}"


def _opened(record: BreakerRecord) -> BreakerRecord:
    policy = record.policy
    # Bounded before the shift: a breaker may have opened any number of times.
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

"""An alert as it is stored, and what becomes of it: raised, told, ended, told again, forgotten.

Pure. Every change is one conditional write of its record, and who makes it tells. What is to be
told is stored with it, so that whoever finds it after a crash can tell it. Instants are the
engine's; when its clock was set back, what should have been long ago is taken to have been.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from holdfast.alerts.judging import Reading, exceeds
from holdfast.alerts.rules import RULES, Severity, Unit
from holdfast.core import limits
from holdfast.core.model import Record

KIND: Final = "alert"
SEEN_MS: Final = 30 * limits.SECOND_MS
"""How often it is written down that an alert goes on, and how its value is."""
STALE_MS: Final = 3 * SEEN_MS
"""An alert that nobody saw for so long may be over: nobody looks."""
KEPT_MS: Final = limits.DAY_MS
"""How long one that has ended stays."""
TRIES_MAX: Final = 10
_RETRY_MS_FIRST = 30 * limits.SECOND_MS
_RETRY_MS_MAX = 15 * limits.MINUTE_MS
_ODD = re.compile(r"[^\x21-\x7e]")

What = Literal["raised", "ended"]


class Telling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is to be told, from when it was decided until it is done. `tries` have begun. `first` is
    when it was raised, if that it was is not yet told either, and comes first."""

    what: What
    at: int
    tried_at: int
    tries: int = 1
    first: int | None = None


class Alert(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`told_at` is when it was last told that it was raised, `told` whether that was this time.
    `by` is the server that saw it last."""

    rule: str
    about: str
    severity: Severity
    unit: Unit
    value: int
    threshold: int
    text: str
    raised_at: int
    seen_at: int
    queue: str = ""
    ended_at: int | None = None
    told_at: int | None = None
    told: bool = False
    by: str = ""
    telling: Telling | None = None

    @property
    def is_raised(self) -> bool:
        return self.ended_at is None

    @property
    def key(self) -> str:
        return key_of(self.rule, self.about)


def key_of(rule: str, about: str) -> str:
    """A queue's name is plain; a partition's need not be."""
    return f"{rule}/{_ODD.sub('_', about)[:120]}"


def after(
    known: Alert | None, reading: Reading | None, *, now: int, cool_down_ms: int, by: str
) -> Alert | None:
    """The alert as it is to be stored: the same object when nothing changes, None when there is
    none to keep."""
    raised = known is not None and known.is_raised
    if reading is not None and exceeds(reading, raised=raised):
        return _holding(known, reading, now=now, cool_down_ms=cool_down_ms, by=by)
    if known is None:
        return None
    if raised:
        if reading is None or reading.sure:
            return _ending(known, now=now, by=by)
        fresh = _since(known.seen_at, now) < SEEN_MS
        return known if fresh else replace(known, seen_at=now, by=by)
    gone = known.ended_at is not None and _since(known.ended_at, now) >= KEPT_MS
    return None if gone and known.telling is None else known


def _holding(
    known: Alert | None, reading: Reading, *, now: int, cool_down_ms: int, by: str
) -> Alert:
    rule = reading.rule
    now_seen = Alert(
        rule=rule.name,
        about=reading.about,
        queue=reading.queue,
        severity=rule.severity,
        unit=rule.unit,
        value=reading.value,
        threshold=reading.threshold,
        text=reading.text,
        raised_at=now,
        seen_at=now,
        by=by,
    )
    if known is not None:
        was = known.is_raised
        now_seen = replace(
            now_seen,
            raised_at=known.raised_at if was else now,
            told=known.told and was,
            told_at=known.told_at,
            telling=known.telling,
        )
    if not now_seen.told and (
        now_seen.told_at is None or _since(now_seen.told_at, now) >= cool_down_ms
    ):
        telling = Telling(what="raised", at=now, tried_at=now)
        return replace(now_seen, told=True, told_at=now, telling=telling)
    if known is not None and known.is_raised and _since(known.seen_at, now) < SEEN_MS:
        return known
    return now_seen


def _ending(known: Alert, *, now: int, by: str) -> Alert:
    """What each server sees for itself is over when the one that saw it says so, or none sees it
    any more. Who was not told that it was raised is not told that it ended."""
    rule = RULES.get(known.rule)
    if rule is not None and rule.own and known.by != by and _since(known.seen_at, now) < STALE_MS:
        return known
    telling = known.telling
    if known.told:
        untold = telling is not None and telling.what == "raised"
        first = telling.at if telling is not None and untold else None
        telling = Telling(what="ended", at=now, tried_at=now, first=first)
    return replace(known, ended_at=now, seen_at=now, telling=telling)


def retried(alert: Alert, now: int) -> Alert:
    """With one more try, if it is time for that; else the same object. After too many there is
    nothing to be told any more."""
    telling = alert.telling
    if telling is None:
        return alert
    wait_ms = min(_RETRY_MS_MAX, _RETRY_MS_FIRST << (telling.tries - 1))
    if _since(telling.tried_at, now) < wait_ms:
        return alert
    if telling.tries >= TRIES_MAX:
        return replace(alert, telling=None)
    return replace(alert, telling=replace(telling, tries=telling.tries + 1, tried_at=now))


def record_of(alert: Alert, version: int) -> Record:
    value = msgspec.json.encode(alert)
    return Record(kind=KIND, key=alert.key, value=value, version=version)


def alert_of(record: Record) -> Alert | None:
    """None for what another version wrote and this one cannot read."""
    try:
        return msgspec.json.decode(record.value or b"", type=Alert)
    except msgspec.DecodeError:
        return None


def _since(then: int, now: int) -> float:
    """For ever, if that is still to come."""
    return now - then if now >= then else float("inf")

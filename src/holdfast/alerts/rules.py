"""The alert rules: their thresholds, their evaluation on facts, and the next state of an alert.

Pure. Thresholds are stored settings, and may differ by queue. Every change of an alert is one
conditional write, and its writer notifies; the pending notice is stored with the alert, so that
another server can deliver it after a crash. Instants are the engine's; after its clock was set
back, an instant in the future counts as long past.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.alerts.facts import WINDOW_MS, AlertFacts, Growth
from holdfast.config import SETTINGS, Levels, Settings
from holdfast.core import bounds
from holdfast.core.explain import ABSENT_MS, NAMES_MAX, serves
from holdfast.core.model import QueueView
from holdfast.core.text import counted, show_ms
from holdfast.core.workers import addressee
from holdfast.errors import ConfigError
from holdfast.ops.alerts import SEEN_MS, STALE_MS, Alert, PendingNotice, Severity, Unit
from holdfast.ops.workers import WorkerView
from holdfast.telemetry.meter import OTHER, QUEUES_MAX

COOL_DOWN: Final = "alert-cool-down"

RETENTION_MS: Final = bounds.DAY_MS
"""Retention of ended alerts."""

TRIES_MAX: Final = 10

_RETRY_MS_FIRST = 30 * bounds.SECOND_MS
_RETRY_MS_MAX = 15 * bounds.MINUTE_MS


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    """An alert is raised beyond the threshold in `setting`, and ends when the value is back at the
    share `clear` of it, so that a value around the threshold makes one alert. Counts are over
    `window_ms`. With `floor`, a value below the threshold is bad. With `own`, each server measures
    it separately, and it concerns the whole store."""

    name: str
    setting: str
    severity: Severity
    unit: Unit
    description: str
    window_ms: int = 0
    clear: float = 0.8
    floor: bool = False
    own: bool = False
    scale: int = 1


RULES: Final[dict[str, AlertRule]] = {
    rule.name: rule
    for rule in (
        AlertRule(
            name="dead_letters",
            setting="alert-dead",
            severity="warn",
            unit="jobs",
            window_ms=WINDOW_MS,
            description="Jobs of the queue that died within the last minute.",
        ),
        AlertRule(
            name="dead_depth",
            setting="alert-dead-depth",
            severity="warn",
            unit="jobs",
            description="Dead letters of the queue.",
        ),
        AlertRule(
            name="depth",
            setting="alert-depth",
            severity="critical",
            unit="jobs",
            description="Ready jobs of the queue: due and not leased.",
        ),
        AlertRule(
            name="oldest_age",
            setting="alert-age",
            severity="warn",
            unit="ms",
            description="How long the oldest ready job of the queue has been due.",
        ),
        AlertRule(
            name="no_worker",
            setting="alert-no-worker",
            severity="critical",
            unit="ms",
            clear=0,
            description="How long the oldest ready job of a queue without a worker has been due.",
        ),
        AlertRule(
            name="retention",
            setting="alert-retention",
            severity="critical",
            unit="ms",
            description="Age of the oldest ready job of a queue whose store deletes jobs by their"
            " age, without a dead letter.",
        ),
        AlertRule(
            name="in_flight",
            setting="alert-in-flight",
            severity="critical",
            unit="jobs",
            description="Leased jobs of a queue whose store grants a bounded number of leases.",
        ),
        AlertRule(
            name="partition_out",
            setting="alert-partition",
            severity="critical",
            unit="ms",
            clear=0,
            own=True,
            description="How long a partition has been shut out.",
        ),
        AlertRule(
            name="disk_floor",
            setting="alert-disk",
            severity="critical",
            unit="bytes",
            clear=1.1,
            floor=True,
            own=True,
            scale=1024**2,
            description="Bytes that are free on the disk of the store.",
        ),
        AlertRule(
            name="dead_messages",
            setting="alert-dead-messages",
            severity="warn",
            unit="messages",
            window_ms=WINDOW_MS,
            description="Messages to the worker of the queue that the broker gave up within the"
            " last minute.",
        ),
        AlertRule(
            name="dead_message_depth",
            setting="alert-dead-message-depth",
            severity="critical",
            unit="messages",
            description="Dead messages that wait at the broker for the dead-letter handler.",
        ),
        AlertRule(
            name="unreadable_records",
            setting="alert-records",
            severity="warn",
            unit="records",
            clear=0,
            description="Stored records that cannot be read; `doctor` names them.",
        ),
    )
}


class Thresholds:
    """The current thresholds. For a setting that cannot be read the default applies, and `wrong`
    gets the reason.
    """

    def __init__(self, held: Settings, wrong: Callable[[str], None]) -> None:
        self.cool_down_ms: int = _threshold(held, COOL_DOWN, wrong)
        self._levels: dict[str, Levels] = {}
        for rule in RULES.values():
            value = _threshold(held, rule.setting, wrong)
            if isinstance(value, bool):
                value = Levels(0 if value else None)
            self._levels[rule.name] = value

    def of(self, rule: AlertRule, queue: str = "") -> int | None:
        """The threshold of a rule for a queue; None if the rule is off."""
        level = self._levels[rule.name].of(queue)
        return None if level is None else level * rule.scale


def _threshold(held: Settings, name: str, wrong: Callable[[str], None]) -> Any:
    try:
        value = held.value(name)
    except ConfigError as error:
        wrong(str(error))
        value = None
    return SETTINGS[name].read(SETTINGS[name].default) if value is None else value


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a rule for a queue, or for what `about` names. Unless it is `sure`, the actual
    value may be worse.
    """

    rule: AlertRule
    about: str
    value: int
    threshold: int
    text: str
    queue: str = ""
    sure: bool = True


def exceeds(measured: Measurement, *, raised: bool) -> bool:
    """True if the value is beyond the threshold or, once the alert is raised, not yet back at the
    level that ends it."""
    level = measured.threshold * (measured.rule.clear if raised else 1)
    return measured.value < level if measured.rule.floor else measured.value > level


def measure(facts: AlertFacts, levels: Thresholds) -> Iterator[Measurement]:
    """The measurements of every rule that is on, in no order."""
    for queue, growth in facts.grown.items():
        yield from _of_rule(
            "dead_letters",
            levels,
            queue,
            growth.dead,
            f"{counted(growth.dead, 'job')} of {_queue_text(queue)} died within a minute",
            sure=facts.minute,
        )
        if facts.broker is not None:
            yield from _of_rule(
                "dead_messages",
                levels,
                queue,
                growth.dead_messages,
                f"the broker gave up {counted(growth.dead_messages, 'message')} to"
                f" {_receiver_text(queue)} within a minute: it does not take its jobs in time",
                sure=facts.minute,
            )
    present = [
        each
        for each in facts.workers
        if each.age_ms <= ABSENT_MS and not each.record.cordoned and not each.record.stopping
    ]
    for view in facts.views:
        yield from _of_queue(view, levels, facts, present)
    yield from _of_store(facts, levels)
    yield from _of_records(facts, levels)
    yield from _of_broker(facts, levels)


def _receiver_text(queue: str) -> str:
    worker = addressee(queue)
    return _queue_text(queue) if worker is None else f"worker {worker}"


def _queue_text(queue: str) -> str:
    if queue == OTHER:
        return f"queues beyond the {QUEUES_MAX} busiest, or of unknown queues,"
    return f"queue {queue}"


def _of_queue(
    view: QueueView, levels: Thresholds, facts: AlertFacts, present: Sequence[WorkerView]
) -> Iterator[Measurement]:
    name, age_ms = view.queue.name, view.oldest_age_ms or 0
    least = "at least " if "ready" in view.estimated else ""
    ready = f"{least}{counted(view.ready, 'job')} {'is' if view.ready == 1 else 'are'} ready"
    yield from _of_rule("depth", levels, name, view.ready, f"{ready} in queue {name}")
    least = "at least " if "dead" in view.estimated else ""
    dead = f"queue {name} has {least}{counted(view.dead, 'dead letter')}"
    yield from _of_rule("dead_depth", levels, name, view.dead, dead)
    is_known = not view.is_age_unknown
    since = f"the first for {span(age_ms)}" if is_known else "for how long is unknown"
    text = f"{ready} in queue {name}, {since}"
    yield from _of_rule("oldest_age", levels, name, age_ms, text, sure=is_known)
    yield from _of_bounds(view, levels)
    served = (
        any(serves(each.record, name) for each in present)
        # Programs that lease over HTTP or through the engine have no worker record.
        or view.leased > view.overdue
        or facts.grown.get(name, Growth()).leased > 0
    )
    if view.ready and not served and not view.queue.paused:
        worker = addressee(name)
        missing = "no worker serves it" if worker is None else f"worker {worker} is not running"
        text = f"{ready} in queue {name}, {since}, and {missing}"
        yield from _of_rule("no_worker", levels, name, age_ms, text, sure=is_known)


def _of_bounds(view: QueueView, levels: Thresholds) -> Iterator[Measurement]:
    """The bounds of a store on the age and on the leases of jobs, of which the settings are a
    percentage."""
    name, age_ms = view.queue.name, view.oldest_age_ms or 0
    after_ms, most = view.deleted_after_ms, view.leased_max
    if after_ms is not None:
        text = (
            f"a job of queue {name} has waited for {span(age_ms)}: after {span(after_ms)} the store"
            " deletes it without a dead letter"
        )
        yield from _of_share("retention", levels, view, age_ms, after_ms, text)
    if most is not None:
        text = (
            f"{counted(view.leased, 'job')} of queue {name} are in flight: at {most:,} the store"
            " delivers no more"
        )
        yield from _of_share("in_flight", levels, view, view.leased, most, text)


def _of_share(
    rule_name: str, levels: Thresholds, view: QueueView, value: int, bound: int, text: str
) -> Iterator[Measurement]:
    rule = RULES[rule_name]
    percent = levels.of(rule, view.queue.name)
    if percent is not None:
        yield Measurement(
            rule=rule,
            about=view.queue.name,
            queue=view.queue.name,
            value=value,
            threshold=bound * percent // 100,
            text=text,
            sure=rule.unit != "ms" or not view.is_age_unknown,
        )


def _of_store(facts: AlertFacts, levels: Thresholds) -> Iterator[Measurement]:
    rule = RULES["partition_out"]
    level = levels.of(rule)
    for each in facts.out:
        if level is not None:
            text = f"partition {each.name} is shut out, with the jobs in it: {each.text}"
            # At least 1, so that a partition that was shut out just now counts.
            out_ms = max(1, each.out_ms)
            yield Measurement(rule=rule, about=each.name, value=out_ms, threshold=level, text=text)
    rule = RULES["disk_floor"]
    level, free = levels.of(rule), facts.free_bytes
    if level is not None and free is not None:
        text = f"{free / 1024**2:,.0f} MiB are free on the disk: a full disk accepts no jobs"
        yield Measurement(rule=rule, about="disk", value=free, threshold=level, text=text)


def _of_records(facts: AlertFacts, levels: Thresholds) -> Iterator[Measurement]:
    rule = RULES["unreadable_records"]
    level = levels.of(rule)
    if level is None or not (facts.unreadable or facts.partial):
        return
    text = "a part of the store is unreachable"
    if facts.unreadable:
        kind, key, why = facts.unreadable[0]
        count = counted(len(facts.unreadable), "stored record")
        text = f'{count} cannot be read, first {kind} {key!r} ({why}): run "holdfast doctor"'
    yield Measurement(
        rule=rule,
        about="records",
        value=len(facts.unreadable),
        threshold=level,
        text=text,
        sure=not facts.partial,
    )


def _of_broker(facts: AlertFacts, levels: Thresholds) -> Iterator[Measurement]:
    rule = RULES["dead_message_depth"]
    level, broker = levels.of(rule), facts.broker
    if level is None or broker is None:
        return
    waiting = broker.dead_messages
    text = f"the broker is down: {broker.error}"
    if waiting is not None:
        late = [
            name
            for queue, each in facts.grown.items()
            if each.dead_messages
            for name in (addressee(queue),)
            if name
        ]
        late += [view.name for view in facts.workers if view.unattended_ms]
        names = sorted(set(late))
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        whose = f", most recently for worker {', '.join(names[:NAMES_MAX])}{more}" if names else ""
        text = f"{counted(waiting, 'dead message')} wait at the broker{whose}: run upkeep"
    yield Measurement(
        rule=rule,
        about="broker",
        value=waiting or 0,
        threshold=level,
        text=text,
        sure=waiting is not None,
    )


def _of_rule(
    name: str, levels: Thresholds, queue: str, value: int, text: str, *, sure: bool = True
) -> Iterator[Measurement]:
    rule = RULES[name]
    level = levels.of(rule, queue)
    if level is not None:
        yield Measurement(
            rule=rule,
            about=queue,
            queue=queue,
            value=value,
            threshold=level,
            text=text,
            sure=sure,
        )


def span(ms: int) -> str:
    """A rough duration: whole seconds, and from a minute on whole minutes."""
    unit = bounds.MINUTE_MS if ms >= bounds.MINUTE_MS else bounds.SECOND_MS
    return show_ms(ms // unit * unit) if ms >= unit else "a moment"


def next_alert(
    known: Alert | None, measured: Measurement | None, *, now: int, cool_down_ms: int, by: str
) -> Alert | None:
    """The alert to store: the same object if nothing changes, None if there is none to keep."""
    raised = known is not None and known.is_raised
    if measured is not None and exceeds(measured, raised=raised):
        return _raised_alert(known, measured, now=now, cool_down_ms=cool_down_ms, by=by)
    if known is None:
        return None
    if raised:
        if measured is None or measured.sure:
            return _ended_alert(known, now=now, by=by)
        fresh = _since(known.seen_at, now) < SEEN_MS
        return known if fresh else replace(known, seen_at=now, by=by)
    gone = known.ended_at is not None and _since(known.ended_at, now) >= RETENTION_MS
    return None if gone and known.pending is None else known


def _raised_alert(
    known: Alert | None, measured: Measurement, *, now: int, cool_down_ms: int, by: str
) -> Alert:
    rule = measured.rule
    alert = Alert(
        rule=rule.name,
        about=measured.about,
        queue=measured.queue,
        severity=rule.severity,
        unit=rule.unit,
        value=measured.value,
        threshold=measured.threshold,
        text=measured.text,
        raised_at=now,
        seen_at=now,
        by=by,
    )
    if known is not None:
        was_raised = known.is_raised
        alert = replace(
            alert,
            raised_at=known.raised_at if was_raised else now,
            notified=known.notified and was_raised,
            notified_at=known.notified_at,
            pending=known.pending,
        )
    if not alert.notified and (
        alert.notified_at is None or _since(alert.notified_at, now) >= cool_down_ms
    ):
        notice = PendingNotice(what="raised", at=now, tried_at=now)
        return replace(alert, notified=True, notified_at=now, pending=notice)
    if known is not None and known.is_raised and _since(known.seen_at, now) < SEEN_MS:
        return known
    return alert


def _ended_alert(known: Alert, *, now: int, by: str) -> Alert:
    """The alert after its end. An alert that each server measures separately ends when the server
    that saw it last reports so, or when none refreshed it for long. A notice of the end is sent
    only if one was sent when it was raised.
    """
    rule = RULES.get(known.rule)
    if rule is not None and rule.own and known.by != by and _since(known.seen_at, now) < STALE_MS:
        return known
    notice = known.pending
    if known.notified:
        is_pending = notice is not None and notice.what == "raised"
        first = notice.at if notice is not None and is_pending else None
        notice = PendingNotice(what="ended", at=now, tried_at=now, first=first)
    return replace(known, ended_at=now, seen_at=now, pending=notice)


def with_retry(alert: Alert, now: int) -> Alert:
    """The alert with one more attempt to deliver its pending notice, if that is due, otherwise the
    same object. After too many attempts the notice is dropped.
    """
    notice = alert.pending
    if notice is None:
        return alert
    wait_ms = min(_RETRY_MS_MAX, _RETRY_MS_FIRST << (notice.tries - 1))
    if _since(notice.tried_at, now) < wait_ms:
        return alert
    if notice.tries >= TRIES_MAX:
        return replace(alert, pending=None)
    return replace(alert, pending=replace(notice, tries=notice.tries + 1, tried_at=now))


def _since(then: int, now: int) -> float:
    """The time since an instant; infinite if the instant is in the future."""
    return now - then if now >= then else float("inf")

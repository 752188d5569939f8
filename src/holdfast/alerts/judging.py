"""Facts and levels → what each rule measures, and whether that is too much. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.alerts.rules import RULES, Rule, Thresholds
from holdfast.core import limits
from holdfast.core.explain import ABSENT_MS, serves
from holdfast.core.model import QueueView
from holdfast.core.text import counted
from holdfast.core.workers import addressee
from holdfast.durations import show_ms
from holdfast.worker.registry import WorkerView


class Growth(msgspec.Struct, frozen=True):
    """What was counted of a queue within the last minute."""

    dead: int = 0
    leased: int = 0


class Out(msgspec.Struct, frozen=True):
    """A partition that is shut out."""

    name: str
    out_ms: int
    text: str = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """How the store stands. `grown` is by the names that the counters have: of queues beyond their
    bound, together; it may be more while it was not looked at for a whole `minute`. `partial` says
    that a part of the store is away."""

    now: int
    views: Sequence[QueueView] = ()
    workers: Sequence[WorkerView] = ()
    grown: Mapping[str, Growth] = {}
    minute: bool = True
    out: Sequence[Out] = ()
    free_bytes: int | None = None
    partial: bool = False


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule measures: of a queue, or of what `about` names. While it is not `sure` it may be
    worse than that."""

    rule: Rule
    about: str
    value: int
    threshold: int
    text: str
    queue: str = ""
    sure: bool = True


def exceeds(reading: Reading, *, raised: bool) -> bool:
    """Is it too much, or, once it was, still not well?"""
    level = reading.threshold * (reading.rule.clear if raised else 1)
    return reading.value < level if reading.rule.floor else reading.value > level


def readings(facts: Facts, levels: Thresholds) -> Iterator[Reading]:
    """Of every rule that is on, in no order."""
    for queue, growth in facts.grown.items():
        yield from _read(
            "dead_letters",
            levels,
            queue,
            growth.dead,
            f"{counted(growth.dead, 'job')} of queue {queue} died within a minute",
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


def _of_queue(
    view: QueueView, levels: Thresholds, facts: Facts, present: Sequence[WorkerView]
) -> Iterator[Reading]:
    name, age_ms = view.queue.name, view.oldest_age_ms or 0
    least = "at least " if "ready" in view.estimated else ""
    ready = f"{least}{counted(view.ready, 'job')} {'is' if view.ready == 1 else 'are'} ready"
    yield from _read("depth", levels, name, view.ready, f"{ready} in queue {name}")
    since = f"the first for {span(age_ms)}"
    yield from _read("oldest_age", levels, name, age_ms, f"{ready} in queue {name}, {since}")
    served = (
        any(serves(each.record, name) for each in present)
        # Programs that lease over HTTP, or by themselves, keep no worker's record.
        or view.leased > view.overdue
        or facts.grown.get(name, Growth()).leased > 0
    )
    if view.ready and not served and not view.queue.paused:
        worker = addressee(name)
        whom = "no worker serves it" if worker is None else f"worker {worker} is not there"
        text = f"{ready} in queue {name}, {since}, and {whom}"
        yield from _read("no_worker", levels, name, age_ms, text)


def _of_store(facts: Facts, levels: Thresholds) -> Iterator[Reading]:
    rule = RULES["partition_out"]
    level = levels.of(rule)
    for each in facts.out:
        if level is not None:
            text = f"partition {each.name} is shut out, with what is in it: {each.text}"
            # One that was just shut out is out, too.
            out_ms = max(1, each.out_ms)
            yield Reading(rule=rule, about=each.name, value=out_ms, threshold=level, text=text)
    rule = RULES["disk_floor"]
    level, free = levels.of(rule), facts.free_bytes
    if level is not None and free is not None:
        text = f"{free / 1024**2:,.0f} MiB are free on the disk: on a full one no job comes in"
        yield Reading(rule=rule, about="disk", value=free, threshold=level, text=text)


def _read(
    name: str, levels: Thresholds, queue: str, value: int, text: str, *, sure: bool = True
) -> Iterator[Reading]:
    rule = RULES[name]
    level = levels.of(rule, queue)
    if level is not None:
        yield Reading(
            rule=rule,
            about=queue,
            queue=queue,
            value=value,
            threshold=level,
            text=text,
            sure=sure,
        )


def span(ms: int) -> str:
    """Whole seconds, and from a minute on whole minutes: it is no measurement."""
    unit = limits.MINUTE_MS if ms >= limits.MINUTE_MS else limits.SECOND_MS
    return show_ms(ms // unit * unit) if ms >= unit else "a moment"

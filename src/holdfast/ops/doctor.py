"""Check a store: its file or database, clock, broker, upkeep, workers, queues and tasks.

Nothing is changed. Every finding that is not ok has a remedy.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from holdfast.core import bounds
from holdfast.core.explain import ABSENT_MS, serves, startable
from holdfast.core.model import JobFilter, QueueView, State
from holdfast.core.text import counted, show_ms
from holdfast.core.workers import Health, addressee
from holdfast.engines.base import NO_RECORDS, Engine, Expired, Overdue
from holdfast.engines.broker import BrokerStatus
from holdfast.engines.extras import Examinable, Examination, extra
from holdfast.errors import Forbidden
from holdfast.notation.durations import show_at
from holdfast.ops.broker_status import read_broker_status
from holdfast.ops.gates import Gates, GateState, GateView
from holdfast.ops.jobs.acts import ACTS, ActRecord
from holdfast.ops.jobs.acts import is_late as is_act_late
from holdfast.ops.records import Stored
from holdfast.ops.redrives import REDRIVES, RedriveRecord, RedriveState, is_late
from holdfast.ops.schedules import Schedules
from holdfast.ops.ticks import Schedule, next_tick
from holdfast.ops.unreadable import UnreadableRecord, find_unreadable
from holdfast.ops.workers import Workers, WorkerView
from holdfast.process import wall_ms

FREE_BYTES_MIN = 1024**3
SKEW_MS_MAX = 5_000
LATE_MS_MAX = 30_000
"""Upkeep wakes every few seconds: work that is later than this shows that none is running."""
_TICK_LATE_MS_MAX = 120_000
_TASKS_MAX = 100
_UNREADABLE_MAX = 20
DEAD_MESSAGES_MAX = 100

Level = Literal["ok", "warn", "fail"]
StoredRedrive = tuple[Stored[RedriveRecord], RedriveRecord]
"""A redrive as it is stored, and its value."""
StoredAct = tuple[Stored[ActRecord], ActRecord]
"""An act as it is stored, and its value."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One result. `command` is a CLI command that helps, without the program's name; "" if there is
    none.
    """

    level: Level
    name: str
    text: str
    remedy: str = ""
    command: str = ""


async def examine(store: Engine, *, deep: bool = False) -> Examination:
    """The store's report on itself; only a clock for an engine that cannot report."""
    examinable = extra(store, Examinable)
    if examinable is None:
        return Examination(now=wall_ms())
    return await examinable.examine(deep=deep)


async def check_store(
    store: Engine, *, deep: bool = False, broker_of: object = None
) -> list[Finding]:
    """Run all checks, from the store to its tasks. The engine is open, so its schema matches.
    `broker_of` is the engine whose broker is checked, if `store` does not show it."""
    before = wall_ms()
    examination = await examine(store, deep=deep)
    skew_ms = examination.now - before
    took_ms = 0 if deep else wall_ms() - before
    views = await store.queues()
    about = [
        *_about_store(store.traits.name, examination, deep=deep),
        _clock(skew_ms, took_ms),
    ]
    if not store.traits.records:
        text = f"the {store.traits.name} engine stores no workers, schedules and settings"
        return [*about, Finding(level="warn", name="record", text=text, remedy=NO_RECORDS)]
    workers = await Workers(store).all()
    schedules = await Schedules(store, wall_ms).all()
    redrives = [
        (stored, stored.value)
        async for stored in REDRIVES.read_all(store)
        if stored.value is not None
    ]
    acts = [
        (stored, stored.value) async for stored in ACTS.read_all(store) if stored.value is not None
    ]
    unreadable = await find_unreadable(store, deep=deep, most=_UNREADABLE_MAX + 1)
    first = await _first_due(store)
    broker = await read_broker_status(store if broker_of is None else broker_of)
    return [
        *about,
        *(() if broker is None else _broker(broker)),
        *_upkeep(first, examination.now, schedules, redrives, acts),
        *_stopped_redrives(redrives, examination.now),
        *_gates(await Gates(store).views()),
        *_records(unreadable),
        *_workers(workers),
        *_queues(views, workers, sees_all=first is not None),
        *await _tasks(store, views, workers),
    ]


def _about_store(name: str, found: Examination, *, deep: bool) -> Iterator[Finding]:
    yield Finding(level="ok", name="python", text=f"Python {platform.python_version()}")
    versions = ", ".join(f"{part} {version}" for part, version in found.versions.items())
    text = "; ".join(filter(None, (f"{name} opens, and its schema matches", versions)))
    yield Finding(level="ok", name="store", text=text)
    for trouble in found.trouble:
        text, _, remedy = trouble.partition(": ")
        yield Finding(level="warn", name="store", text=text, remedy=remedy)
    if found.free_bytes is not None:
        short = found.free_bytes < FREE_BYTES_MIN
        yield Finding(
            level="warn" if short else "ok",
            name="disk",
            text=f"{found.free_bytes / 1024**3:.1f} GiB free",
            remedy="free some space: a full disk accepts no jobs" if short else "",
        )
    if found.damage:
        for text in found.damage:
            yield Finding(
                level="fail",
                name="integrity",
                text=text,
                remedy="stop all workers, keep a copy of the file, and restore a backup",
            )
    elif deep:
        checked = "no damage found" if found.damage is not None else "left to the database server"
        text = f"{checked}; payloads have no checksums, so their bytes are not verified"
        yield Finding(level="ok", name="integrity", text=text)


def _clock(skew_ms: int, took_ms: int) -> Finding:
    apart_ms = max(abs(skew_ms) - took_ms, 0)
    if apart_ms <= SKEW_MS_MAX:
        return Finding(
            level="ok", name="clock", text="this machine's clock agrees with the store's"
        )
    return Finding(
        level="warn",
        name="clock",
        text=f"this machine's clock and the store's are {apart_ms / 1000:.1f} s apart",
        remedy="synchronise both with NTP: due times and schedules depend on them",
    )


def _broker(found: BrokerStatus) -> Iterator[Finding]:
    """A broker that is down stops nothing, so it is a warning."""
    if found.error:
        yield Finding(
            level="warn",
            name="broker",
            text=f"the broker is down: {found.error}; until it is back, jobs are found by polling",
            remedy="start the broker, or correct its URL",
        )
        return
    waiting = found.dead_messages or 0
    version = f", version {found.version}," if found.version else ""
    text = f"the broker{version} answers and has {counted(waiting, 'dead message')}"
    many = waiting > DEAD_MESSAGES_MAX
    yield Finding(
        level="warn" if many else "ok",
        name="broker",
        text=text,
        remedy="run upkeep, with the setting dead-letter-handler on" if many else "",
        command="config get dead-letter-handler" if many else "",
    )
    for warning in found.warnings:
        # The remedy is the last part: an error of the broker may contain colons, too.
        text, _, remedy = warning.rpartition(": ")
        yield Finding(level="warn", name="broker", text=text or warning, remedy=remedy)


async def _first_due(store: Engine) -> tuple[Overdue, Expired] | None:
    """The first overdue lease and expired job; None for a caller who sees only some queues."""
    try:
        return await store.overdue(1), await store.expired(1)
    except Forbidden:
        return None


def _upkeep(
    first: tuple[Overdue, Expired] | None,
    now: int,
    schedules: Sequence[Schedule],
    redrives: Sequence[StoredRedrive],
    acts: Sequence[StoredAct],
) -> list[Finding]:
    """Upkeep writes nothing while it has nothing to do, so look for late work."""
    overdue, expired = (first[0].leases, first[1].jobs) if first else ((), ())
    late = []
    if overdue and now - (overdue[0].job.deadline_at or now) > LATE_MS_MAX:
        at = show_at(overdue[0].job.deadline_at or now)
        late.append(f"the lease of job {overdue[0].id} has been overdue since {at}")
    if expired and now - (expired[0].expires_at or now) > LATE_MS_MAX:
        at = show_at(expired[0].expires_at or now)
        late.append(f"job {expired[0].id} expired at {at} and was not buried")
    for schedule in schedules:
        tick = None if schedule.paused else next_tick(schedule, schedule.passed_at)
        if tick is not None and wall_ms() - tick > _TICK_LATE_MS_MAX:
            late.append(f"schedule {schedule.name} did not tick at {show_at(tick)}")
    for stored, redrive in redrives:
        if is_late(redrive, stored.age_ms, LATE_MS_MAX):
            ago = show_ms(round(stored.age_ms, -3))
            late.append(f"redrive {stored.key} made its last step {ago} ago and has not ended")
    for kept, act in acts:
        if is_act_late(act, kept.age_ms, LATE_MS_MAX):
            ago = show_ms(round(kept.age_ms, -3))
            late.append(f"act {kept.key} made its last step {ago} ago and has not ended")
    if not late:
        text = "nothing is late" if first else "no schedule, redrive or act is late"
        return [Finding(level="ok", name="upkeep", text=text)]
    remedy = "run upkeep: workers do, unless started with --no-upkeep"
    return [
        Finding(level="fail", name="upkeep", text=text, remedy=remedy, command="up")
        for text in late
    ]


def _stopped_redrives(redrives: Sequence[StoredRedrive], now: int) -> Iterator[Finding]:
    """Redrives that stopped within a day: an operator has to decide about the remaining jobs."""
    for _, redrive in redrives:
        lately = redrive.ended_at is not None and now - redrive.ended_at < bounds.DAY_MS
        if redrive.state is RedriveState.STOPPED and lately:
            left = counted(redrive.left, "dead letter")
            yield Finding(
                level="warn",
                name="redrive",
                text=f"redrive {redrive.id} was stopped, with {left} left: {redrive.text}",
                remedy="fix the cause of death, then retry the rest",
                command=f"redrive show {redrive.id}",
            )


def _gates(views: Sequence[GateView]) -> Iterator[Finding]:
    for view in views:
        if view.state in (GateState.RUNNING, GateState.PAUSED) and not view.text:
            continue
        yield Finding(
            level="warn",
            name="gate",
            text=f"gate {view.name} is {view.state}: {view.text}",
            remedy="fix the cause; the gate continues by itself",
            command=f"gate show {view.name}",
        )
    working = sum(view.state is GateState.RUNNING for view in views)
    if working:
        yield Finding(level="ok", name="gate", text=f"{counted(working, 'gate')} running")


def _records(unreadable: Sequence[UnreadableRecord]) -> Iterator[Finding]:
    for kind, key, why in unreadable[:_UNREADABLE_MAX]:
        yield Finding(
            level="warn",
            name="record",
            text=f"the stored {kind} {key!r} cannot be read and has no effect: {why}",
            remedy="remove it, or use the version of Holdfast that wrote it",
            command=f"record remove {kind} {shlex.quote(key)}",
        )
    if len(unreadable) > _UNREADABLE_MAX:
        text = f"more than {_UNREADABLE_MAX} stored records cannot be read"
        yield Finding(
            level="warn", name="record", text=text, remedy="remove these, then look again"
        )
    if not unreadable:
        yield Finding(level="ok", name="record", text="every stored record can be read")


def _workers(workers: Sequence[WorkerView]) -> Iterator[Finding]:
    for view in workers:
        if view.health is Health.HEALTHY:
            continue
        yield Finding(
            level="warn",
            name="worker",
            text=f"worker {view.name} is {view.health}: {view.why}",
            remedy="restart it" if view.age_ms > ABSENT_MS else "look at its jobs and its log",
            command=f"job list --worker {view.name}",
        )
    healthy = sum(view.health is Health.HEALTHY for view in workers)
    if healthy:
        yield Finding(level="ok", name="worker", text=f"{healthy} healthy")
    elif not workers:
        yield Finding(
            level="warn",
            name="worker",
            text="there are no workers",
            remedy="start one",
            command="worker start",
        )


def _queues(
    views: Sequence[QueueView], workers: Sequence[WorkerView], *, sees_all: bool
) -> Iterator[Finding]:
    present = [view.record for view in workers if view.age_ms <= ABSENT_MS]
    # A caller who sees only some queues cannot tell whether another one exists.
    names = {view.queue.name for view in views} if sees_all else None
    well = True
    for view in views:
        for finding in _queue(
            view, names, [each for each in present if serves(each, view.queue.name)]
        ):
            well = False
            yield finding
    if well:
        yield Finding(level="ok", name="queue", text="no queue has a problem")


async def _tasks(
    store: Engine, views: Sequence[QueueView], workers: Sequence[WorkerView]
) -> list[Finding]:
    """Tasks with waiting jobs that no current worker knows, if the store can be searched."""
    if not store.traits.inspect:
        return []
    seen = [view.seen for view in workers]
    found = []
    for name in (view.queue.name for view in views if view.ready):
        wanted = JobFilter(queue=name, states=(State.WAITING,))
        for tally in await store.tally(wanted, "task", limit=_TASKS_MAX):
            if tally.value is not None and not startable(tally.value, name, seen):
                waiting = counted(tally.count, "job")
                wait = "waits" if tally.count == 1 else "wait"
                text = f"{waiting} of task {tally.value} {wait} in queue {name}"
                finding = Finding(
                    level="warn",
                    name="task",
                    text=f"{text}, and none of its workers knows the task",
                    remedy="start a worker with the application that has the task",
                    command=f"worker run MODULE:APP --queues {name}",
                )
                found.append(finding)
    return found


def _queue(view: QueueView, names: set[str] | None, serving: Sequence[object]) -> Iterator[Finding]:
    queue = view.queue
    waiting = view.ready + view.delayed
    least = "at least " if "ready" in view.estimated else ""
    ready = f"{least}{counted(view.ready, 'job')} {'is' if view.ready == 1 else 'are'} ready"

    def warn(text: str, remedy: str, command: str) -> Finding:
        return Finding(level="warn", name="queue", text=text, remedy=remedy, command=command)

    if view.ready and not serving:
        name = addressee(queue.name)
        start = f"--queues {queue.name}" if name is None else f"--name {name}"
        text = f"{ready} in queue {queue.name}, and no worker serves it"
        yield warn(text, "start a worker for it", f"worker start {start}")
    if view.ready and queue.paused:
        text = f"{ready} in queue {queue.name}, which is paused"
        yield warn(text, "resume it", f"queue resume {queue.name}")
    if not queue.accepting:
        text = f"queue {queue.name} accepts no new jobs"
        yield warn(text, "open it", f"queue update {queue.name} --accepting")
    if queue.max_depth is not None and waiting >= queue.max_depth:
        text = f"queue {queue.name} is full: it holds {counted(waiting, 'waiting job')}"
        yield warn(text, "start more workers", f"worker start --queues {queue.name}")
    if names is not None and queue.dead_queue is not None and queue.dead_queue not in names:
        text = f"the dead queue {queue.dead_queue} of queue {queue.name} does not exist"
        yield warn(text, "create it", f"queue create {queue.dead_queue}")


class CheckupView(msgspec.Struct, frozen=True, kw_only=True):
    """Not `ok` if a check failed; warnings alone are no failure."""

    ok: bool
    findings: tuple[Finding, ...]


def checkup_view(findings: Sequence[Finding]) -> CheckupView:
    """All findings, and whether none of them is a failure."""
    failed = any(finding.level == "fail" for finding in findings)
    return CheckupView(ok=not failed, findings=tuple(findings))

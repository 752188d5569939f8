"""Queues: settings, limits, pause, resume, drain, drop; distributions; and their views.

Settings are changed by compare-and-set on the queue that was read. A pause leaves a record of who
paused the queue and why; only the queue's own setting counts. The distributor of upkeep moves the
jobs of a distribution.
"""

from __future__ import annotations

import asyncio
import fnmatch
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds, checks
from holdfast.core.bounds import Instant
from holdfast.core.fairness import TenantView
from holdfast.core.limits import Limit, Slot
from holdfast.core.model import JobFilter, NewJob, Queue, QueueView, Receipt, State, Status
from holdfast.core.workers import QUEUE_PREFIX, addressee
from holdfast.engines.base import Engine, unknown_if_partial
from holdfast.errors import (
    ConfigError,
    EngineUnavailable,
    OutcomeUnknown,
    UnknownParent,
    UnknownQueue,
    UsageError,
)
from holdfast.notation.filters import chosen_states
from holdfast.notation.options import QueueOptions, changed_queue
from holdfast.ops.records import TRIES_MAX, RecordKind, check_same
from holdfast.ops.settings import read_settings

COUNTS = ("ready", "delayed", "blocked", "leased", "overdue", "done", "dead")
_ALL_COUNTS = (*COUNTS, "cancelled")


class Pause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The person who paused a queue, the time and the reason. A pause that is `over` is kept, so
    that an observer who polls does not miss it."""

    by: str = ""
    text: str = ""
    at: Instant | None = None
    over: bool = False


PAUSE_KIND = "pause"
PAUSES = RecordKind(PAUSE_KIND, Pause, label="the pause of queue", fallback=Pause)
"""The pause of each queue by name, for information: the queue's own `paused` setting decides."""

LIMIT_KIND = "task-limit"


def _check_task_limit(key: str, limit: Limit) -> None:
    checks.check_limit(limit)
    check_same("name", limit.name, key.partition("/")[2])


TASK_LIMITS = RecordKind(LIMIT_KIND, Limit, label="task limit", check=_check_task_limit)
"""The limits that the code declared last, by queue and name."""

DISTRIBUTION_KIND = "distribution"
DEPTH_MAX = 100_000

_SOURCE_PATTERN = re.compile(r"[A-Za-z0-9_.*?-]{1,80}\Z")
_POLL_S = 0.5


async def queue_settings(engine: Engine, names: Collection[str] | None = None) -> dict[str, Queue]:
    """The settings of the existing queues of `names`, or of all, by name."""
    views = await engine.queues(names=names, counts=False)
    return {view.queue.name: view.queue for view in views}


async def find_queue(engine: Engine, name: str, *, counts: bool = False) -> QueueView | None:
    """One queue, with counts on request; None if it does not exist."""
    views = await engine.queues(names=[name], counts=counts)
    return views[0] if views else None


async def update_queue(engine: Engine, name: str, options: QueueOptions) -> Queue:
    """Change the given settings of an existing queue."""

    def change(known: Queue | None) -> Queue:
        if known is None:
            raise checks.unknown_queue(name)
        return changed_queue(known, options)

    return await change_queue(engine, name, change)


async def change_queue(engine: Engine, name: str, change: Callable[[Queue | None], Queue]) -> Queue:
    """Declare the result of `change` on the current settings, again after each concurrent
    change.
    """
    for _ in range(TRIES_MAX):
        known = (await queue_settings(engine, [name])).get(name)
        queue = change(known)
        if queue == known:
            return queue
        kept = queue.dead_queue if known and queue.dead_queue == known.dead_queue else None
        if kept is not None and not await queue_settings(engine, [kept]):
            # The dead queue was dropped; that must not keep the queue from being changed.
            queue = replace(queue, dead_queue=None)
        if await engine.declare(queue, instead_of=known):
            return queue
    raise EngineUnavailable(f"queue {name} is being changed by others: try again")


async def enqueue_in_new_queues(
    engine: Engine, jobs: Sequence[NewJob], receipts: list[Receipt]
) -> list[Receipt]:
    """If the setting `create-queues` is on, create the queues for lack of which jobs were refused,
    and enqueue those jobs again. A worker's own queue is created by that worker only."""
    missing = {
        job.queue
        for job, receipt in zip(jobs, receipts, strict=True)
        if receipt.code == UnknownQueue.code and addressee(job.queue) is None
    }
    if not missing:
        return receipts
    # A job may also have been refused because its parent was.
    codes = (UnknownQueue.code, UnknownParent.code)
    again = [at for at, receipt in enumerate(receipts) if receipt.code in codes]
    try:
        with unknown_if_partial(
            lambda: any(each.status is not Status.REFUSED for each in receipts)
        ):
            if not (await read_settings(engine)).value("create-queues"):
                return receipts
            for name in sorted(missing):
                # False if another process created it in the meantime.
                await engine.declare(Queue(name=name), instead_of=None)
            answers = await engine.enqueue([jobs[at] for at in again])
    except OutcomeUnknown as error:
        # The first call has answered the others, which may be of other callers.
        known = {at: each for at, each in enumerate(receipts) if at not in again}
        known |= {again[at]: each for at, each in error.known.items()}
        raise OutcomeUnknown(str(error), known=known) from error
    found = dict(zip(again, answers, strict=True))
    return [found.get(at, receipt) for at, receipt in enumerate(receipts)]


async def pause_queue(engine: Engine, name: str, pause: Pause) -> Queue:
    """Stop leasing from the queue until it is resumed; running jobs continue."""
    queue = await update_queue(engine, name, {"paused": True})
    await save_pause(engine, name, pause)
    return queue


async def resume_queue(engine: Engine, name: str) -> Queue:
    """Lease from the queue again."""
    queue = await update_queue(engine, name, {"paused": False})
    await end_pause(engine, name)
    return queue


async def drop_queue(engine: Engine, name: str) -> None:
    """Drop the queue with every job in it, running ones too."""
    await engine.drop(name)
    await save_pause(engine, name, None)


async def read_pause(engine: Engine, queue: str) -> Pause:
    """The operator and reason of a pause; empty if there is no record."""
    found = await PAUSES.read(engine, queue)
    pause = Pause() if found is None or found.value is None else found.value
    return Pause() if pause.over else pause


async def save_pause(engine: Engine, queue: str, pause: Pause | None) -> None:
    """Record who paused the queue, or remove the record; nothing without records. Of two concurrent
    writes, either may win.
    """
    if not engine.traits.records:
        return
    await PAUSES.update(engine, queue, lambda _: pause)


async def end_pause(engine: Engine, queue: str) -> None:
    """Mark the record of a pause as over, if there is one."""
    if not engine.traits.records:
        return
    await PAUSES.update(
        engine, queue, lambda pause: None if pause is None else replace(pause, over=True)
    )


async def wait_until_empty(engine: Engine, name: str, wait_ms_max: int | None) -> int:
    """Wait until no job waits or runs, or the timeout passes; return how many are left."""
    until = None if wait_ms_max is None else time.monotonic() + wait_ms_max / 1000
    while left := await count_unfinished(engine, name):
        rest_s = _POLL_S if until is None else min(_POLL_S, until - time.monotonic())
        if rest_s <= 0:
            break
        await asyncio.sleep(rest_s)
    return left


async def count_unfinished(engine: Engine, name: str) -> int:
    """The number of jobs that wait or run."""
    view = await find_queue(engine, name, counts=True)
    if view is None:
        raise checks.unknown_queue(name)
    # Overdue jobs are among the leased ones.
    return view.ready + view.delayed + view.blocked + view.leased


def jobs_to_clear(queue: str, state: Iterable[str] | None, *, force: bool) -> JobFilter:
    """The waiting jobs of a queue, or those in these states. `force` adds running ones."""
    states, waiting = chosen_states(state or ["waiting"])
    assert states is not None
    if force:
        states = tuple(dict.fromkeys((*states, State.LEASED)))
    elif State.LEASED in states:
        raise UsageError("leased jobs are deleted only with force: their workers lose them")
    return JobFilter(queue=queue, states=states, waiting=waiting)


def count_all(view: QueueView) -> int:
    """The number of jobs in a queue, finished ones included."""
    # Overdue jobs are among the leased ones.
    return sum(int(getattr(view, name)) for name in _ALL_COUNTS if name != "overdue")


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a queue; those named in `estimated` are lower bounds."""

    name: str
    ready: int
    delayed: int
    blocked: int
    leased: int
    overdue: int
    done: int
    dead: int
    cancelled: int
    oldest_age_ms: int | None
    paused: bool
    accepting: bool
    estimated: tuple[str, ...]


class QueueDetails(Queue, frozen=True, kw_only=True):
    """The settings and counts of a queue."""

    ready: int
    delayed: int
    blocked: int
    leased: int
    overdue: int
    done: int
    dead: int
    cancelled: int
    oldest_age_ms: int | None
    estimated: tuple[str, ...]


class TenantsView(msgspec.Struct, frozen=True, kw_only=True):
    """The tenants with jobs in a queue."""

    tenants: tuple[TenantView, ...]


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """A queue after a drain: `left` jobs still wait or run."""

    queue: str
    accepting: bool
    left: int


class Cleared(msgspec.Struct, frozen=True, kw_only=True):
    """`found` jobs matched, a lower bound with `more`; `deleted` of them were deleted."""

    queue: str
    found: int
    more: bool
    deleted: int


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that was dropped with its `jobs`, or would be if not `deleted`."""

    queue: str
    jobs: int
    deleted: bool


def queue_counts(view: QueueView) -> QueueCounts:
    """The counts of a queue, with the switches that stop it."""
    return QueueCounts(
        **_counts(view),
        name=view.queue.name,
        paused=view.queue.paused,
        accepting=view.queue.accepting,
    )


def queue_details(view: QueueView) -> QueueDetails:
    """Every setting and count of a queue."""
    queue = view.queue
    settings = {name: getattr(queue, name) for name in queue.__struct_fields__}
    return QueueDetails(**settings, **_counts(view))


def worth_showing(counts: QueueCounts) -> bool:
    """False for a worker's own queue that is open and empty."""
    own = counts.name.startswith(QUEUE_PREFIX)
    stopped = counts.paused or not counts.accepting
    return not own or stopped or any(getattr(counts, name) for name in _ALL_COUNTS)


def _counts(view: QueueView) -> dict[str, Any]:
    return {
        **{name: getattr(view, name) for name in _ALL_COUNTS},
        "oldest_age_ms": view.oldest_age_ms,
        "estimated": tuple(sorted(view.estimated)),
    }


class LimitsView(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a queue, and the jobs that hold their slots."""

    limits: tuple[Limit, ...]
    slots: tuple[Slot, ...]


async def set_limit(engine: Engine, queue: str, limit: Limit) -> Queue:
    """Add a limit to a queue, or replace the one with the same name."""
    return await _change_limits(engine, queue, limit.name, limit)


async def remove_limit(engine: Engine, queue: str, name: str) -> Queue:
    """Remove a limit; a missing one is not an error."""
    return await _change_limits(engine, queue, name, None)


async def set_task_limits(engine: Engine, queue: str, wanted: Iterable[Limit]) -> None:
    """Apply the limits that tasks of this queue declare.

    A limit that was applied before is left alone, even if an operator changed it since, until the
    code declares another value.
    """
    known = {stored.key: stored async for stored in TASK_LIMITS.read_all(engine)}
    fresh = [
        limit
        for limit in wanted
        if (key := _limit_key(queue, limit)) not in known or known[key].value != limit
    ]
    if not fresh:
        return
    names = {limit.name for limit in fresh}

    def change(present: Queue | None) -> Queue:
        base = present or Queue(name=queue)
        others = [each for each in base.limits if each.name not in names]
        return replace(base, limits=(*others, *fresh))

    await change_queue(engine, queue, change)
    # A process that is killed before this applies the same limits once more. A stale record means
    # that another process declared the same code at the same moment.
    records = []
    for limit in fresh:
        stored = known.get(_limit_key(queue, limit))
        version = 0 if stored is None else stored.version
        records.append(TASK_LIMITS.record(_limit_key(queue, limit), limit, version))
    await engine.save(records)


async def _change_limits(engine: Engine, queue: str, name: str, wanted: Limit | None) -> Queue:
    def change(known: Queue | None) -> Queue:
        if known is None:
            raise checks.unknown_queue(queue)
        others = [each for each in known.limits if each.name != name]
        return changed_queue(known, {"limits": others if wanted is None else [*others, wanted]})

    return await change_queue(engine, queue, change)


def _limit_key(queue: str, limit: Limit) -> str:
    return f"{queue}/{limit.name}"


class Distribution(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Forward jobs of the queues that match `source` (`mail.*`) to the queue `target`, taking turns
    fairly, while fewer than `depth` jobs wait there. `weights` are by queue name; the default is 1.
    """

    source: str
    target: str
    depth: int = 1_000
    weights: dict[str, int] = {}

    def feeds_from(self, queue: str) -> bool:
        """True if jobs of this queue are forwarded."""
        return queue != self.target and fnmatch.fnmatchcase(queue, self.source)


def _check_stored_distribution(key: str, distribution: Distribution) -> None:
    check_same("target", distribution.target, key)
    check_distribution(distribution)


DISTRIBUTIONS = RecordKind(
    DISTRIBUTION_KIND,
    Distribution,
    label="the distribution to",
    check=_check_stored_distribution,
)


class Distributions:
    """The stored distributions of one store, at most one for each target."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def all(self) -> list[Distribution]:
        """Every readable distribution, by target."""
        return list((await DISTRIBUTIONS.values(self._engine)).values())

    async def put(self, distribution: Distribution) -> None:
        """Add a distribution, or replace the one with the same target."""
        check_distribution(distribution)
        await DISTRIBUTIONS.update(self._engine, distribution.target, lambda _: distribution)

    async def remove(self, target: str) -> bool:
        """False if there is none with this target."""
        return await DISTRIBUTIONS.remove(self._engine, target)


def check_distribution(distribution: Distribution) -> None:
    """Raise ConfigError unless names, depth and weights are within bounds."""
    if not _SOURCE_PATTERN.match(distribution.source):
        raise ConfigError(
            f"source {distribution.source[:80]!r} is not a pattern of queue names such as mail.*"
        )
    if not bounds.QUEUE_NAME.match(distribution.target):
        raise ConfigError(f"target {distribution.target[:80]!r} is not a queue name")
    if not 1 <= distribution.depth <= DEPTH_MAX:
        raise ConfigError(f"depth {distribution.depth} is out of range: expected 1 to {DEPTH_MAX}")
    if len(distribution.weights) > bounds.WEIGHTS_MAX:
        raise ConfigError(
            f"{len(distribution.weights)} weights; the maximum is {bounds.WEIGHTS_MAX}"
        )
    for name, weight in distribution.weights.items():
        if not 1 <= weight <= bounds.WEIGHT_MAX:
            raise ConfigError(
                f"weight {weight} of {name[:80]!r} is out of range: expected 1 to"
                f" {bounds.WEIGHT_MAX}"
            )

"""The topics of the live stream: one function each that reads its subject as plain data.

All topics of a namespace read through one `SharedReads`, so that a tick reads nothing twice, and
through the `AuthorizedEngine` of their viewers' rights, which hides what these may not see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Mapping
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds, checks
from holdfast.core.model import Flow, Job, QueueView, Record, State, Waits
from holdfast.engines.base import Engine
from holdfast.engines.wrapper import Wrapper
from holdfast.errors import NotFound, Unsupported
from holdfast.ops.jobs.act_views import read_acts
from holdfast.ops.jobs.views import job_view, output_view, timeline_view
from holdfast.ops.queues import LimitsView, TenantsView, find_queue, queue_details, queue_settings
from holdfast.ops.redrives import Redrives, redrive_details
from holdfast.ops.workers import Workers, worker_details
from holdfast.process import wall_ms
from holdfast.server.access.caller import Caller
from holdfast.server.live.metrics import Freshness
from holdfast.server.live.overview import (
    OverviewFacts,
    OverviewReader,
    overview,
    queue_overview,
    shown_age,
)

REDRIVES_MAX: Final = 100
_ENDED_MS = bounds.HOUR_MS
_HEARTBEAT_STEP_MS = 15 * bounds.SECOND_MS
"""Ages of heartbeats are rounded down to this, so that a healthy worker's does not change."""
_HELD_APART = ("payload", "payload_base64", "result", "output", "failures")
"""Fields of a job that are left out: they are large, or part of its timeline and output."""

Result = TypeVar("Result")
Data = dict[str, Any]


class Rights(NamedTuple):
    """The rights that decide what viewers see. Those with the same rights share everything."""

    prefix: str
    scopes: frozenset[str]

    @classmethod
    def of(cls, caller: Caller) -> Rights:
        """The rights of a caller."""
        return cls(caller.prefix, caller.scopes)

    def caller(self) -> Caller:
        """A caller with these rights and no token."""
        return Caller(name="live", prefix=self.prefix, scopes=self.scopes)


class SharedReads(Wrapper):
    """An engine that answers each read once until `forget`. Concurrent callers share one read, and
    cancelling one of them does not cancel it."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._answers: dict[Hashable, asyncio.Task[Any]] = {}

    def forget(self) -> None:
        """Read everything anew."""
        self._answers = {}

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        key = ("queues", None if names is None else tuple(names), counts)
        return await self._once(key, lambda: self._engine.queues(names=names, counts=counts))

    async def flow(self, queue: str, *, limit: int) -> Flow:
        return await self._once(
            ("flow", queue, limit), lambda: self._engine.flow(queue, limit=limit)
        )

    async def waits(self, id: str) -> Waits | None:
        return await self._once(("waits", id), lambda: self._engine.waits(id))

    async def get(self, id: str) -> Job | None:
        return await self._once(("get", id), lambda: self._engine.get(id))

    async def load(self, kind: str, *, after: str | None = None, limit: int) -> list[Record]:
        key = ("load", kind, after, limit)
        return await self._once(key, lambda: self._engine.load(kind, after=after, limit=limit))

    async def _once(self, key: Hashable, read: Callable[[], Awaitable[Result]]) -> Result:
        found = self._answers.get(key)
        if found is None:
            found = asyncio.create_task(cast("Coroutine[Any, Any, Result]", read()))
            # If its callers were cancelled, nothing else takes its error.
            found.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._answers[key] = found
        return cast("Result", await asyncio.shield(found))


class TopicReads:
    """Reads for the topics of all viewers with the same rights, to which `engine` is restricted."""

    def __init__(self, engine: Engine, caller: Caller, reader: OverviewReader) -> None:
        self.engine = engine
        self._caller = caller
        self._reader = reader
        self._facts: OverviewFacts | None = None
        self.wanted: Freshness = Freshness(age_s_max=0.0)
        """The freshness that the overview needs."""

    def forget(self) -> None:
        """Read everything anew."""
        self._facts = None

    async def facts(self) -> OverviewFacts:
        """The facts of the overview, read once for all topics."""
        if self._facts is None:
            self._facts = await self._reader.read(self.engine, self._caller, wanted=self.wanted)
        return self._facts

    def facts_of_topic(self, topic: str) -> OverviewFacts | None:
        """The facts that the data of a topic was made from; None if it is not the overview."""
        return self._facts if topic == OVERVIEW else None

    async def view(self, name: str) -> QueueView | None:
        """The queue with its counts; None if there is none. The overview may have just counted it,
        if somebody watches that."""
        known = self._facts
        is_counted = known is not None and not known.behind and not known.reused
        for view in known.views if known is not None and is_counted else ():
            if view.queue.name == name:
                return view
        return await find_queue(self.engine, name, counts=True)

    async def facts_of(self, view: QueueView) -> OverviewFacts:
        """The facts about one queue."""
        known = self._facts
        return known or await self._reader.read(self.engine, self._caller, views=[view])


async def _overview(reads: TopicReads, _: str) -> Data:
    return _plain(overview(await reads.facts()))


async def _queue(reads: TopicReads, name: str) -> Data:
    view = await reads.view(name)
    if view is None:
        raise checks.unknown_queue(name)
    details = _plain(queue_details(view))
    details["oldest_age_ms"] = _shown_age_ms(view.oldest_age_ms)
    limits = tenants = None
    try:
        flow = await reads.engine.flow(name, limit=bounds.PAGE_MAX)
        limits = _plain(LimitsView(limits=view.queue.limits, slots=flow.slots))
        shown = [
            replace(each, oldest_age_ms=_shown_age_ms(each.oldest_age_ms)) for each in flow.tenants
        ]
        tenants = _plain(TenantsView(tenants=tuple(shown)))
    except Unsupported:
        # The store has neither.
        pass
    stats = queue_overview(view, await reads.facts_of(view))
    return {"queue": details, "stats": _plain(stats), "limits": limits, "tenants": tenants}


async def _job(reads: TopicReads, id: str) -> Data:
    job = await reads.engine.get(id)
    if job is None:
        raise NotFound(f"unknown job {id[:128]!r}: it was deleted or never existed")
    waits = await reads.engine.waits(id) if job.state is State.WAITING else None
    queue = (await queue_settings(reads.engine, [job.queue])).get(job.queue)
    view = job_view(replace(job, payload=b""), queue, waits, value=_nothing)
    shown = {name: each for name, each in _plain(view).items() if name not in _HELD_APART}
    return {
        "job": {**shown, "payload_bytes": len(job.payload)},
        "timeline": msgspec.to_builtins(timeline_view(job)),
        "output": None if job.output is None else output_view(job).output,
    }


async def _redrives(reads: TopicReads, _: str) -> Data:
    found = await Redrives(reads.engine, wall_ms).going_on(ended_since=wall_ms() - _ENDED_MS)
    newest = sorted(found, key=lambda view: view.redrive.started_at)[-REDRIVES_MAX:]
    return {view.redrive.id: _plain(redrive_details(view)) for view in newest}


async def _workers(reads: TopicReads, _: str) -> Data:
    found = {view.name: _plain(worker_details(view)) for view in await Workers(reads.engine).all()}
    for worker in found.values():
        worker["heartbeat_age_ms"] -= worker["heartbeat_age_ms"] % _HEARTBEAT_STEP_MS
    return found


async def _acts(reads: TopicReads, _: str) -> Data:
    return {id_: _plain(view) for id_, view in (await read_acts(reads.engine)).items()}


ReadTopic = Callable[[TopicReads, str], Awaitable[Data]]

OVERVIEW: Final = "overview"

TOPICS: Final[Mapping[str, ReadTopic]] = {
    OVERVIEW: _overview,
    "queue": _queue,
    "job": _job,
    "redrives": _redrives,
    "workers": _workers,
    "acts": _acts,
}
"""By the part of a topic before the colon. To add one: a function that reads it through
`reads.engine`, its line here, and its form in `TOPIC`."""

TOPIC: Final = (
    r"^(overview|redrives|workers|acts|queue:[A-Za-z0-9_.-]{1,80}|job:[A-Za-z0-9_.:@-]{1,128})$"
)
"""The form of every topic."""


async def read_topic(reads: TopicReads, topic: str) -> Data:
    """The data of a topic. HoldfastError if there is none."""
    kind, _, name = topic.partition(":")
    return await TOPICS[kind](reads, name)


def _plain(view: msgspec.Struct) -> Data:
    return cast("Data", msgspec.to_builtins(view))


def _nothing(_data: bytes, _content_type: str) -> None:
    return None


def _shown_age_ms(age_ms: int | None) -> int | None:
    return None if age_ms is None else round(shown_age(age_ms) * 1000)

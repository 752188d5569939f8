"""Which records a caller may read and write, by kind. A kind that is not named here is closed.

Tokens, quotas and the audit are never among them: they are reached by operations of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast import alerts, config, explaining, limiting
from holdfast.core import breaker, checks, workers
from holdfast.core.breaker import BreakerRecord, BreakerState
from holdfast.core.flow import Limit
from holdfast.core.model import JobFilter, Record
from holdfast.core.workers import WorkerRecord
from holdfast.engines.base import Engine
from holdfast.errors import Forbidden
from holdfast.server.callers import Caller, Scope
from holdfast.server.commands import refuse_commands, runs_commands
from holdfast.telemetry import accounts, notable, snapshots, watching
from holdfast.telemetry.accounts import Account
from holdfast.upkeep import distributions, redrives, schedules
from holdfast.upkeep.distributions import Distribution
from holdfast.upkeep.paging import records
from holdfast.upkeep.redrive import RedriveRecord, RedriveState
from holdfast.upkeep.schedule import Schedule

Kind = TypeVar("Kind", bound=msgspec.Struct)

_P, _C, _O = Scope.PRODUCE, Scope.CONSUME, Scope.OPERATE

SCOPES: dict[str, tuple[tuple[Scope, ...], tuple[Scope, ...]]] = {
    workers.KIND: ((_C, _O), (_C, _O)),
    workers.ORDER_KIND: ((_C, _O), (_C, _O)),
    breaker.KIND: ((_C, _O), (_C, _O)),
    limiting.LIMIT_KIND: ((_C, _O), (_C, _O)),
    config.KIND: ((_P, _C, _O), (_O,)),
    explaining.PAUSE_KIND: ((_P, _C, _O), (_O,)),
    schedules.RECORD_KIND: ((_O,), (_O,)),
    redrives.RECORD_KIND: ((_O,), (_O,)),
    redrives.BATCH_KIND: ((_O,), (_O,)),
    distributions.RECORD_KIND: ((_O,), (_O,)),
    accounts.KIND: ((_O,), ()),
    notable.KIND: ((_O,), ()),
    watching.STATE_KIND: ((_O,), ()),
    alerts.KIND: ((_O,), ()),
    **dict.fromkeys(snapshots.KINDS.values(), ((_O,), ())),
}
"""Who may load, and who may save: any one of these scopes will do."""

_FORMS: dict[str, type[msgspec.Struct]] = {
    workers.KIND: WorkerRecord,
    workers.ORDER_KIND: workers.Order,
    breaker.KIND: BreakerRecord,
    limiting.LIMIT_KIND: Limit,
    schedules.RECORD_KIND: Schedule,
    redrives.RECORD_KIND: RedriveRecord,
    distributions.RECORD_KIND: Distribution,
}
"""As what they must be readable: one that is not would stop everybody who reads all of a kind."""

_SHELL = "worker-shell"
_MINUTE_MS = 60_000


class Shelf:
    """The records of one namespace as one caller sees them."""

    def __init__(self, engine: Engine, caller: Caller, wall_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._caller = caller
        self._wall_ms = wall_ms

    async def load(self, kind: str, *, after: str | None, limit: int) -> list[Record]:
        if kind not in SCOPES:
            # As if there were none, whether there are or not.
            checks.check_load(kind, after, limit)
            return []
        self._check(kind, 0)
        if not self._caller.prefix:
            return await self._engine.load(kind, after=after, limit=limit)
        redrives_seen = await self._redrives() if kind == redrives.BATCH_KIND else frozenset()
        found: list[Record] = []
        while len(found) < limit:
            page = await self._engine.load(kind, after=after, limit=limit)
            found += (
                seen for record in page if (seen := self._seen(record, redrives_seen)) is not None
            )
            if len(page) < limit:
                break
            after = page[-1].key
        return found[:limit]

    async def check_save(self, given: Sequence[Record]) -> None:
        """Raise unless all of them may be written."""
        for record in given:
            self._check(record.kind, 1)
        for record in given:
            await self._check_one(record)

    async def acts(self, given: Sequence[Record]) -> list[Record]:
        """Those that a person writes, and not somebody who notes how far the work is."""
        return [record for record in given if await self._is_act(record)]

    async def _is_act(self, record: Record) -> bool:
        match record.kind:
            case config.KIND | distributions.RECORD_KIND:
                return True
            case workers.ORDER_KIND:
                return record.value is not None
            case schedules.RECORD_KIND:
                old, new = await self._both(record, Schedule)
                if old is None or new is None:
                    return True
                return new != replace(old, passed_at=new.passed_at, last_tick=new.last_tick)
            case breaker.KIND:
                was, shall = await self._both(record, BreakerRecord)
                return _is_by_hand(was or BreakerRecord(), shall or BreakerRecord())
            case redrives.RECORD_KIND:
                before, after = await self._both(record, RedriveRecord)
                if before is None or after is None:
                    return after is not None
                return before.plan != after.plan or (
                    after.state is RedriveState.CANCELLED and before.state != after.state
                )
            case _:
                return False

    async def _both(self, record: Record, kind: type[Kind]) -> tuple[Kind | None, Kind | None]:
        """As it is stored, and as it shall be."""
        stored = await self._stored(record)
        return _decoded(stored.value, kind) if stored else None, _decoded(record.value, kind)

    def _check(self, kind: str, at: int) -> None:
        scopes = SCOPES.get(kind)
        if scopes is None:
            raise Forbidden(f"records of the kind {kind[:40]!r} are not for callers")
        if not any(self._caller.may(scope) for scope in scopes[at]):
            needed = scopes[at][0].value if scopes[at] else "of the server itself"
            raise Forbidden(f"records of the kind {kind} need the scope {needed}")

    async def _check_one(self, record: Record) -> None:
        caller = self._caller
        form = _FORMS.get(record.kind)
        if record.value is not None and form and _decoded(record.value, form) is None:
            raise Forbidden(f"the record {record.key[:80]!r} is no {record.kind}")
        if caller.prefix:
            await self._check_place(record)
        match record.kind:
            case workers.ORDER_KIND if not caller.may(_O):
                await self._check_old_order(record)
            case config.KIND if record.key == _SHELL:
                refuse_commands(caller, "the setting worker-shell")
            case schedules.RECORD_KIND if record.value is not None:
                await self._check_schedule(record)
            case redrives.RECORD_KIND if record.value is not None:
                await self._check_redrive(record)

    async def _check_old_order(self, record: Record) -> None:
        """A worker may clear away orders to workers that are gone, but no cordon."""
        stored = await self._stored(record)
        order = _decoded(stored.value, workers.Order) if stored else workers.Order()
        if record.value is not None or order is None or order.cordoned:
            raise Forbidden("an order to a worker needs the scope operate")

    async def _check_schedule(self, record: Record) -> None:
        """Whose job runs a command: to be paused, resumed or removed by any operator, and noted
        by whoever ticks; anything else needs the right."""
        if self._caller.may(Scope.RUN_COMMANDS):
            return
        new = _decoded(record.value, Schedule)
        assert new is not None
        stored = await self._stored(record)
        old = _decoded(stored.value, Schedule) if stored else None
        if not runs_commands(new.job) and not (old and runs_commands(old.job)):
            return
        if old is not None and stored is not None and stored.version == record.version:
            noted = replace(
                old, paused=new.paused, passed_at=new.passed_at, last_tick=new.last_tick
            )
            earliest = min(old.passed_at, self._wall_ms() - _MINUTE_MS)
            if noted == new and new.passed_at >= earliest:
                return
        refuse_commands(self._caller, f"schedule {new.name}")

    async def _check_redrive(self, record: Record) -> None:
        """A patch edits what it is for: of command jobs that needs the right. What it is about to
        put back is believed only where it can be seen."""
        if self._caller.may(Scope.RUN_COMMANDS):
            return
        new = _decoded(record.value, RedriveRecord)
        assert new is not None
        if new.plan.patch is None:
            return
        stored = await self._stored(record)
        old = _decoded(stored.value, RedriveRecord) if stored else None
        if old is None:
            task = new.plan.wanted.task
            if task is not None and not runs_commands(task) and not new.pending:
                return
        elif stored is not None and stored.version == record.version and new.plan == old.plan:
            more = [each.id for each in new.pending if each not in old.pending]
            if not await self._any_commands(more):
                return
        refuse_commands(self._caller, "a patch for dead letters of any task: name another task")

    async def _any_commands(self, ids: Sequence[str]) -> bool:
        if not ids:
            return False
        found = await self._engine.tally(JobFilter(ids=tuple(ids)), "task", limit=len(ids))
        return any(runs_commands(tally.value or "") for tally in found)

    async def _check_place(self, record: Record) -> None:
        """Of a caller with a prefix: what is there and what shall be are both within it."""
        seen = await self._redrives() if record.kind == redrives.BATCH_KIND else frozenset()
        stored = await self._stored(record)
        for each in (record, stored):
            is_there = each is not None and each.value is not None
            if is_there and each is not None and not self._is_own(each, seen):
                raise Forbidden(
                    f"the {record.kind} {record.key[:80]} is not within {self._caller.prefix}…"
                )

    def _seen(self, record: Record, redrives_seen: frozenset[str]) -> Record | None:
        if record.kind == workers.KIND:
            return self._seen_worker(record)
        if record.kind == breaker.KIND:
            return _without_words(record)
        if record.kind == config.KIND or self._is_own(record, redrives_seen):
            return record
        return None

    def _seen_worker(self, record: Record) -> Record | None:
        """With those of its queues that the caller knows of."""
        known = _decoded(record.value, WorkerRecord)
        if known is None:
            return None
        queues = {name: weight for name, weight in known.queues.items() if self._caller.owns(name)}
        if not queues and not record.key.startswith(self._caller.prefix):
            return None
        return replace(record, value=msgspec.json.encode(replace(known, queues=queues)))

    def _is_own(self, record: Record, redrives_seen: frozenset[str]) -> bool:
        match record.kind:
            case breaker.KIND:
                return True
            case workers.ORDER_KIND:
                return record.key.startswith(self._caller.prefix)
            case redrives.BATCH_KIND:
                return record.key.partition("/")[0] in redrives_seen
            case _:
                queues = _queues_of(record)
                return queues is not None and all(map(self._caller.owns, queues))

    async def _redrives(self) -> frozenset[str]:
        found = records(self._engine, redrives.RECORD_KIND)
        none: frozenset[str] = frozenset()
        return frozenset([each.key async for each in found if self._is_own(each, none)])

    async def _stored(self, wanted: Record) -> Record | None:
        # Everything but its last character sorts before a key, and little lies between.
        async for record in records(self._engine, wanted.kind, after=wanted.key[:-1] or None):
            if record.key == wanted.key:
                return record
            if record.key.encode() > wanted.key.encode():
                return None
        return None


def _without_words(record: Record) -> Record | None:
    """All tasks of a namespace share its breakers, but what went wrong is told in the words of
    somebody's job."""
    known = _decoded(record.value, BreakerRecord)
    if known is None:
        return None
    return replace(record, value=msgspec.json.encode(replace(known, last="")))


def _is_by_hand(was: BreakerRecord, shall: BreakerRecord) -> bool:
    """Workers open it without a word, and close it by a probe, never at once."""
    is_open, is_closed = was.state is BreakerState.OPEN, shall.state is BreakerState.CLOSED
    return was.by != shall.by or (is_open and is_closed)


def _queues_of(record: Record) -> Iterable[str] | None:
    """The queues that a record is about; None when that is the whole namespace or unknown."""
    match record.kind:
        case workers.KIND:
            worker = _decoded(record.value, WorkerRecord)
            own = workers.worker_queue(record.key)
            return None if worker is None else [own, *worker.queues]
        case limiting.LIMIT_KIND:
            return [record.key.partition("/")[0]]
        case explaining.PAUSE_KIND:
            return [record.key]
        case schedules.RECORD_KIND:
            schedule = _decoded(record.value, Schedule)
            return None if schedule is None else [schedule.job.queue]
        case redrives.RECORD_KIND:
            redrive = _decoded(record.value, RedriveRecord)
            queue = None if redrive is None else redrive.plan.wanted.queue
            return None if queue is None else [queue]
        case distributions.RECORD_KIND:
            feeding = _decoded(record.value, Distribution)
            if feeding is None:
                return None
            return [record.key, feeding.target, feeding.source.partition("*")[0].partition("?")[0]]
        case accounts.KIND:
            account = _decoded(record.value, Account)
            return None if account is None else account.totals.queues
        case alerts.KIND:
            alert = _decoded(record.value, alerts.Alert)
            return None if alert is None or not alert.queue else [alert.queue]
        case notable.KIND:
            return [event.queue for event in notable.events_of(record) if event.queue]
        case _:
            return None


def _decoded(value: bytes | None, kind: type[Kind]) -> Kind | None:
    try:
        return None if value is None else msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError:
        return None

"""Which queues, jobs, tasks and records one caller can see and change.

Permissions depend on the stored job, never on what the request claims. Where a job may change in
the meantime, the filter makes the engine compare again in its own write. Records are judged by
kind: one that `SCOPES` does not list is closed. Tokens, quotas and the audit log are not listed,
since they have their own operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds, breaker, checks, workers
from holdfast.core.amend import amendable
from holdfast.core.breaker import BreakerRecord, BreakerState
from holdfast.core.model import JobFilter, NewJob, Queue, Receipt, Record, TallyBy
from holdfast.core.verdict import (
    Amendment,
    Cancel,
    Complete,
    Edit,
    Forward,
    Outcome,
    Settlement,
)
from holdfast.core.workers import WorkerRecord
from holdfast.engines.base import Engine, Known
from holdfast.errors import Forbidden
from holdfast.ops import alerts, gates, queues, redrives, schedules, settings, sqs
from holdfast.ops.gates import Gate, may_run_commands
from holdfast.ops.jobs import acts
from holdfast.ops.jobs.acts import ActRecord
from holdfast.ops.queues import Distribution
from holdfast.ops.records import kind_of, pages, scan
from holdfast.ops.redrives import RedriveRecord, RedriveState
from holdfast.ops.schedules.declared import PROGRAM_KIND
from holdfast.ops.sqs import MoveTasks, SqsQueue
from holdfast.ops.ticks import Schedule
from holdfast.server.access.caller import Caller, Scope, any_scope
from holdfast.telemetry import accounts, event_log, snapshots, watch
from holdfast.telemetry.accounts import Account
from holdfast.worker.wire import BUILT_IN_TASKS

COMMAND_TASKS = BUILT_IN_TASKS
"""Tasks that run a program, or send a request, from the worker's machine."""

_PRODUCE, _CONSUME, _OPERATE = Scope.PRODUCE, Scope.CONSUME, Scope.OPERATE
_OBSERVE = Scope.OBSERVE

SCOPES: dict[str, tuple[tuple[Scope, ...], tuple[Scope, ...]]] = {
    workers.KIND: ((_CONSUME, _OBSERVE), (_CONSUME, _OPERATE)),
    workers.ORDER_KIND: ((_CONSUME, _OBSERVE), (_CONSUME, _OPERATE)),
    workers.DECLARED_KIND: ((_PRODUCE, _CONSUME, _OBSERVE), (_CONSUME, _OPERATE)),
    workers.UNATTENDED_KIND: ((_CONSUME, _OBSERVE), ()),
    breaker.KIND: ((_CONSUME, _OBSERVE), (_CONSUME, _OPERATE)),
    queues.LIMIT_KIND: ((_CONSUME, _OBSERVE), (_CONSUME, _OPERATE)),
    settings.SETTING_KIND: ((_PRODUCE, _CONSUME, _OBSERVE), (_OPERATE,)),
    queues.PAUSE_KIND: ((_PRODUCE, _CONSUME, _OBSERVE), (_OPERATE,)),
    schedules.SCHEDULE_KIND: ((_OBSERVE,), (_OPERATE,)),
    PROGRAM_KIND: ((_OBSERVE,), (_OPERATE,)),
    redrives.REDRIVE_KIND: ((_OBSERVE,), (_OPERATE,)),
    redrives.BATCH_KIND: ((_OBSERVE,), (_OPERATE,)),
    acts.ACT_KIND: ((_OBSERVE,), ()),
    queues.DISTRIBUTION_KIND: ((_OBSERVE,), (_OPERATE,)),
    sqs.SQS_QUEUE_KIND: ((_PRODUCE, _CONSUME, _OBSERVE), (_OPERATE,)),
    sqs.MOVE_TASKS_KIND: ((_OBSERVE,), (_OPERATE,)),
    gates.GATE_KIND: ((_CONSUME, _OBSERVE), (_OPERATE,)),
    gates.GATE_RUN_KIND: ((_CONSUME, _OBSERVE), (_CONSUME, _OPERATE)),
    accounts.ACCOUNT_KIND: ((_OBSERVE,), ()),
    event_log.EVENTS_KIND: ((_OBSERVE,), ()),
    watch.WATCH_KIND: ((_OBSERVE,), ()),
    alerts.ALERT_KIND: ((_OBSERVE,), ()),
    **dict.fromkeys(snapshots.KINDS.values(), ((_OBSERVE,), ())),
}
"""The scopes to load and to save each kind: any one of them is enough."""

_SIGNED: dict[str, type[msgspec.Struct]] = {
    workers.ORDER_KIND: workers.WorkerOrder,
    breaker.KIND: BreakerRecord,
    queues.PAUSE_KIND: queues.Pause,
    redrives.REDRIVE_KIND: RedriveRecord,
}
"""The records that name the operator who made them; a redrive passes it on to its jobs."""

_SHELL_SETTING = "worker-shell"
_MINUTE_MS = 60_000

Kind = TypeVar("Kind", bound=msgspec.Struct)


class VisibleQueues:
    """The part of one namespace that one caller can see."""

    def __init__(self, engine: Engine, caller: Caller) -> None:
        self._engine = engine
        self._caller = caller
        self._prefix = caller.prefix
        self._may_run_commands = caller.may(Scope.RUN_COMMANDS)
        self.unrestricted: bool = self._may_run_commands and not caller.prefix
        """True if no job and no verdict needs a check."""

    def check_queue(self, queue: str) -> None:
        """Raise Forbidden if the queue is outside the caller's prefix."""
        if self._prefix and not self._caller.owns(queue):
            raise Forbidden(self._outside(queue))

    def check_filter(self, wanted: JobFilter) -> None:
        """Raise Forbidden unless the filter is narrow enough: producers must name the jobs, and
        consumers or callers with a prefix the queue."""
        if wanted.queue is not None:
            self.check_queue(wanted.queue)
        if wanted.ids is not None:
            return
        if not self._caller.may_any((_CONSUME, _OBSERVE)):
            raise Forbidden('this needs the scope "observe", or the ids of the jobs')
        if wanted.queue is None and not self._caller.may(_OBSERVE):
            raise Forbidden('this needs the scope "observe", or the name of a queue')
        if wanted.queue is None and self._prefix:
            raise Forbidden(self._name_a_queue())

    async def hidden_jobs(self, ids: Sequence[str]) -> frozenset[str]:
        """The ids of jobs in queues outside the prefix."""
        hidden: set[str] = set()
        for at in range(0, len(ids) if self._prefix else 0, bounds.BATCH_MAX):
            wanted = JobFilter(ids=tuple(dict.fromkeys(ids[at : at + bounds.BATCH_MAX])))
            for tally in await self._engine.tally(wanted, "queue", limit=bounds.PAGE_MAX):
                if tally.value is not None and not self._caller.owns(tally.value):
                    # Rare, since callers never learn such an id here: the extra read is acceptable.
                    page = await self._engine.find(
                        replace(wanted, queue=tally.value), limit=bounds.PAGE_MAX
                    )
                    hidden.update(job.id for job in page.jobs)
        return frozenset(hidden)

    async def refused_jobs(self, jobs: Sequence[NewJob]) -> dict[int, Receipt]:
        """Receipts of the new jobs that the caller may not enqueue, by their positions."""
        refused: dict[int, Receipt] = {}
        if not self._may_run_commands:
            for at, job in enumerate(jobs):
                if job.task in COMMAND_TASKS:
                    error = Forbidden(command_refusal(f"job {job.id[:128]}"))
                    refused[at] = checks.refusal(job.id, error)
        if not self._prefix:
            return refused
        batch = {job.id for job in jobs}
        hidden = await self.hidden_jobs(
            [id_ for job in jobs for id_ in job.after if id_ not in batch]
        )
        for at, job in enumerate(jobs):
            parent = next((id_ for id_ in job.after if id_ in hidden), None)
            if not self._caller.owns(job.queue):
                refused[at] = checks.refusal(job.id, Forbidden(self._outside(job.queue)))
            elif parent is not None:
                refused[at] = checks.refusal(job.id, checks.unknown_parent(job.id, parent))
        return refused

    async def known_outcomes(self, settlements: Sequence[Settlement]) -> dict[int, Outcome]:
        """Outcomes that are known without the engine, by the positions of the settlements."""
        known: dict[int, Outcome] = {}
        for at, each in enumerate(settlements):
            verdict = each.verdict
            if isinstance(verdict, Complete):
                if verdict.then and await self.refused_jobs(verdict.then):
                    known[at] = Outcome.REFUSED
            elif isinstance(verdict, Forward) and not self._caller.owns(verdict.queue):
                known[at] = Outcome.REFUSED
        if self._prefix:
            hidden = await self.hidden_jobs([each.lease.id for each in settlements])
            for at, each in enumerate(settlements):
                if each.lease.id in hidden:
                    known[at] = Outcome.LOST
        return known

    async def allowed_filters(self, wanted: JobFilter, amendment: Amendment) -> Sequence[JobFilter]:
        """Filters for the jobs that the caller may amend. They name a queue if there is a prefix,
        and a task if command jobs must not be edited, so that the engine checks both in its
        write.
        """
        parts: Sequence[JobFilter] = [wanted]
        if self._prefix and wanted.queue is None:
            if wanted.ids is None:
                raise Forbidden(self._name_a_queue())
            names = await self._values(wanted, amendment, "queue")
            parts = [replace(wanted, queue=each) for each in names if self._caller.owns(each)]
        if self._may_run_commands or not isinstance(amendment, Edit):
            return parts
        if wanted.task is not None:
            if runs_commands(wanted.task):
                require_run_commands(self._caller, f"editing jobs of the task {wanted.task}")
            return parts
        found = []
        for part in parts:
            tasks = await self._values(part, amendment, "task")
            if any(map(runs_commands, tasks)):
                require_run_commands(
                    self._caller,
                    "some of these jobs run commands, so restrict the filter to another task",
                )
            found += [replace(part, task=each) for each in tasks]
        return found

    async def _values(self, wanted: JobFilter, amendment: Amendment, by: TallyBy) -> list[str]:
        states = amendable(amendment, wanted)
        if not states:
            return []
        found = await self._engine.tally(replace(wanted, states=states), by, limit=bounds.PAGE_MAX)
        return [tally.value for tally in found if tally.value is not None]

    def _outside(self, queue: str) -> str:
        return f"queue {queue[:80]!r} is outside the prefix {self._prefix!r} of this token"

    def _name_a_queue(self) -> str:
        return f"name a queue: this token may use only queues with the prefix {self._prefix!r}"


class RecordPermissions:
    """The records of one namespace as one caller may see and change them."""

    def __init__(self, engine: Engine, caller: Caller, wall_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._caller = caller
        self._wall_ms = wall_ms

    async def load(self, kind: str, *, after: str | None, limit: int) -> list[Record]:
        """The records of a kind that the caller can see, as `Engine.load`."""
        if kind not in SCOPES:
            # Do not reveal whether such records exist.
            checks.check_load(kind, after, limit)
            return []
        self._check_scope(kind, "read")
        if not self._caller.prefix:
            return await self._engine.load(kind, after=after, limit=limit)
        own_redrives = await self._redrives() if kind == redrives.BATCH_KIND else frozenset()
        found: list[Record] = []
        async for page in pages(self._engine, kind, after, size=limit):
            visible = (self._visible_part(record, own_redrives) for record in page)
            found += [record for record in visible if record is not None]
            if len(found) >= limit:
                break
        return found[:limit]

    async def check_save(self, changes: Sequence[Record]) -> None:
        """Raise Forbidden unless the caller may save all of these records, and ConfigError unless
        their values are within bounds.
        """
        for record in changes:
            self._check_scope(record.kind, "change")
        for record in changes:
            await self._check_one(record)

    async def signed(self, changes: Sequence[Record]) -> list[Record]:
        """The records with the caller as the one who made them, unless they were made before."""
        return [await self._signed(record) for record in changes]

    async def _signed(self, record: Record) -> Record:
        kind = _SIGNED.get(record.kind)
        new = None if kind is None else _decoded(record.value, kind)
        if kind is None or new is None or _signature(new) in ("", self._caller.name):
            return record
        stored = await self._stored(record)
        old = _decoded(stored.value, kind) if stored else None
        if old is not None and _signature(old) == _signature(new):
            return record
        return replace(record, value=msgspec.json.encode(_sign(new, self._caller.name)))

    async def operator_acts(self, changes: Sequence[Record]) -> list[Record]:
        """The changes that an operator makes, without progress noted by workers and upkeep."""
        return [record for record in changes if await self._is_operator_act(record)]

    async def _is_operator_act(self, record: Record) -> bool:
        match record.kind:
            case settings.SETTING_KIND | queues.DISTRIBUTION_KIND | gates.GATE_KIND:
                return True
            case sqs.SQS_QUEUE_KIND:
                before_sqs, now_sqs = await self._both(record, SqsQueue)
                if before_sqs is None or now_sqs is None:
                    return True
                return replace(before_sqs, pending=now_sqs.pending) != now_sqs
            case sqs.MOVE_TASKS_KIND:
                return True
            case workers.ORDER_KIND:
                return record.value is not None
            case schedules.SCHEDULE_KIND:
                old, new = await self._both(record, Schedule)
                if old is None or new is None:
                    return True
                return new != replace(
                    old, passed_at=new.passed_at, last_tick=new.last_tick, enqueueing=new.enqueueing
                )
            case breaker.KIND:
                was, now = await self._both(record, BreakerRecord)
                return _is_manual(was or BreakerRecord(), now or BreakerRecord())
            case redrives.REDRIVE_KIND:
                before, after = await self._both(record, RedriveRecord)
                if before is None or after is None:
                    return after is not None
                return before.plan != after.plan or (
                    after.state is RedriveState.CANCELLED and before.state != after.state
                )
            case _:
                return False

    async def _both(self, record: Record, kind: type[Kind]) -> tuple[Kind | None, Kind | None]:
        """The record as stored and as it is to be saved."""
        stored = await self._stored(record)
        return _decoded(stored.value, kind) if stored else None, _decoded(record.value, kind)

    def _check_scope(self, kind: str, act: Literal["read", "change"]) -> None:
        if kind not in SCOPES:
            raise Forbidden(f"records of the kind {kind[:40]!r} are private to the server")
        scopes = SCOPES[kind][0 if act == "read" else 1]
        if not scopes:
            raise Forbidden(f"only the server itself may {act} {kind} records")
        if not self._caller.may_any(scopes):
            needed = any_scope(scopes)
            raise Forbidden(f"this token may not {act} {kind} records: it needs the scope {needed}")

    async def _check_one(self, record: Record) -> None:
        caller = self._caller
        kind = kind_of(record)
        if record.value is not None and kind is not None:
            kind.check(record)
        if caller.prefix:
            await self._check_prefix(record)
        match record.kind:
            case workers.ORDER_KIND if not caller.may(_OPERATE):
                await self._check_order_removal(record)
            case settings.SETTING_KIND if record.key == _SHELL_SETTING:
                require_run_commands(caller, "the setting worker-shell")
            case schedules.SCHEDULE_KIND if record.value is not None:
                await self._check_schedule(record)
            case redrives.REDRIVE_KIND if record.value is not None:
                await self._check_redrive(record)
            case gates.GATE_KIND if record.value is not None:
                await self._check_gate(record)

    async def _check_order_removal(self, record: Record) -> None:
        """A worker may remove orders to workers that have ended, but not a cordon."""
        stored = await self._stored(record)
        order = _decoded(stored.value, workers.WorkerOrder) if stored else workers.WorkerOrder()
        if record.value is not None or order is None or order.cordoned:
            raise Forbidden('an order to a worker needs the scope "operate"')

    async def _check_schedule(self, record: Record) -> None:
        """A schedule whose job runs a command: any operator may pause, resume or remove it, and the
        scheduler may note its ticks. Any other change needs `run-commands`."""
        if self._caller.may(Scope.RUN_COMMANDS):
            return
        new = _decoded(record.value, Schedule)
        assert new is not None
        stored = await self._stored(record)
        old = _decoded(stored.value, Schedule) if stored else None
        if not runs_commands(new.job) and not (old and runs_commands(old.job)):
            return
        if old is not None and stored is not None and stored.version == record.version:
            unchanged = replace(
                old,
                paused=new.paused,
                passed_at=new.passed_at,
                last_tick=new.last_tick,
                enqueueing=new.enqueueing,
            )
            earliest = min(old.passed_at, self._wall_ms() - _MINUTE_MS)
            if unchanged == new and new.passed_at >= earliest:
                return
        require_run_commands(self._caller, f"schedule {new.name}")

    async def _check_gate(self, record: Record) -> None:
        """Any operator may pause and resume a gate. Other changes need a token without a prefix,
        because a gate reaches everything at its broker, and `run-commands` if its jobs run
        commands."""
        was, now = await self._both(record, Gate)
        if now is None or (was is not None and replace(was, paused=now.paused) == now):
            return
        if self._caller.prefix:
            raise Forbidden(
                f"gate {now.name} reaches all of its broker: use a token without a prefix"
            )
        if may_run_commands(now):
            require_run_commands(self._caller, f"gate {now.name}")

    async def _check_redrive(self, record: Record) -> None:
        """A patch edits payloads, which for command jobs needs `run-commands`. The tasks of pending
        jobs are read from the store, not taken from the record."""
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
            added = [each.id for each in new.pending if each not in old.pending]
            if not await self._any_commands(added):
                return
        require_run_commands(
            self._caller,
            "a patch for dead letters of any task, so restrict the filter to another task",
        )

    async def _any_commands(self, ids: Sequence[str]) -> bool:
        if not ids:
            return False
        found = await self._engine.tally(JobFilter(ids=tuple(ids)), "task", limit=len(ids))
        return any(runs_commands(tally.value or "") for tally in found)

    async def _check_prefix(self, record: Record) -> None:
        """The stored record and the new one must both be within the caller's prefix."""
        own_redrives = await self._redrives() if record.kind == redrives.BATCH_KIND else frozenset()
        stored = await self._stored(record)
        for each in (record, stored):
            if each is None or each.value is None or self._is_own(each, own_redrives):
                continue
            raise Forbidden(
                f"the {record.kind} {record.key[:80]!r} is outside the prefix "
                f"{self._caller.prefix!r} of this token"
            )

    def _visible_part(self, record: Record, own_redrives: frozenset[str]) -> Record | None:
        """The part of a record that a caller with a prefix may see; None if there is none."""
        if record.kind == workers.KIND:
            return self._visible_worker(record)
        if record.kind == breaker.KIND:
            return _without_error_text(record)
        if record.kind == settings.SETTING_KIND or self._is_own(record, own_redrives):
            return record
        return None

    def _visible_worker(self, record: Record) -> Record | None:
        """A worker with those of its queues that the caller can see."""
        known = _decoded(record.value, WorkerRecord)
        if known is None:
            return None
        queues = {name: weight for name, weight in known.queues.items() if self._caller.owns(name)}
        if not queues and not record.key.startswith(self._caller.prefix):
            return None
        return replace(record, value=msgspec.json.encode(replace(known, queues=queues)))

    def _is_own(self, record: Record, own_redrives: frozenset[str]) -> bool:
        match record.kind:
            case breaker.KIND:
                return True
            case workers.ORDER_KIND:
                return record.key.startswith(self._caller.prefix)
            case redrives.BATCH_KIND:
                return record.key.partition("/")[0] in own_redrives
            case _:
                queues = _queues_of(record)
                return queues is not None and all(map(self._caller.owns, queues))

    async def _redrives(self) -> frozenset[str]:
        found = scan(self._engine, redrives.REDRIVE_KIND)
        none: frozenset[str] = frozenset()
        return frozenset([each.key async for each in found if self._is_own(each, none)])

    async def _stored(self, wanted: Record) -> Record | None:
        # The key without its last character sorts before it, and few records lie between.
        async for record in scan(self._engine, wanted.kind, after=wanted.key[:-1] or None):
            if record.key == wanted.key:
                return record
            if record.key.encode() > wanted.key.encode():
                return None
        return None


def runs_commands(job: NewJob | str) -> bool:
    """True for a new job, or a task name, that runs a command or sends a request."""
    return (job if isinstance(job, str) else job.task) in COMMAND_TASKS


def require_run_commands(caller: Caller, act: str) -> None:
    """Raise Forbidden unless the caller has the scope `run-commands`."""
    if not caller.may(Scope.RUN_COMMANDS):
        raise Forbidden(command_refusal(act))


def command_refusal(act: str) -> str:
    """The text of the error for a caller without the scope `run-commands`."""
    tasks = " and ".join(sorted(COMMAND_TASKS))
    return (
        f"{act}: over HTTP, {tasks} jobs and schedules can be created or changed only with a "
        f'token that has the scope "{Scope.RUN_COMMANDS.value}"'
    )


def changes_only_task_limits(queue: Queue, instead_of: Known) -> bool:
    """True if this declares a queue with default settings, or changes nothing but limits of tasks
    from the settings that were read. Callers without `operate` may do only this."""
    base = Queue(name=queue.name) if instead_of is None else instead_of
    return isinstance(base, Queue) and _without_task_limits(queue) == _without_task_limits(base)


def _without_task_limits(queue: Queue) -> Queue:
    """The queue with only the limits of the whole queue, which belong to operators."""
    return replace(queue, limits=tuple(each for each in queue.limits if each.task is None))


def is_worker_cancel(wanted: JobFilter, amendment: Amendment) -> bool:
    """True if a worker cancels a job that it runs, guarded by the version that it leased."""
    return isinstance(amendment, Cancel) and bool(wanted.ids) and wanted.version is not None


def _without_error_text(record: Record) -> Record | None:
    """Breakers are shared by a namespace, but the last error text comes from a job that the caller
    may not see.
    """
    known = _decoded(record.value, BreakerRecord)
    if known is None:
        return None
    return replace(record, value=msgspec.json.encode(replace(known, last="")))


def _is_manual(was: BreakerRecord, now: BreakerRecord) -> bool:
    """True if an operator changed the breaker: workers set no name and close it by a probe."""
    closed_at_once = was.state is BreakerState.OPEN and now.state is BreakerState.CLOSED
    return was.by != now.by or closed_at_once


def _signature(record: Any) -> str:
    """The operator who made a record."""
    by: str = record.plan.by if isinstance(record, RedriveRecord) else record.by
    return by


def _sign(record: Any, by: str) -> Any:
    if isinstance(record, RedriveRecord):
        return replace(record, plan=replace(record.plan, by=by))
    return replace(record, by=by)


def _queues_of(record: Record) -> Iterable[str] | None:
    """The queues that a record is about; None for the whole namespace, or if unknown."""
    match record.kind:
        case workers.KIND:
            worker = _decoded(record.value, WorkerRecord)
            own = workers.worker_queue(record.key)
            return None if worker is None else [own, *worker.queues]
        case queues.LIMIT_KIND | queues.PAUSE_KIND:
            # No name of a queue contains a slash.
            return [record.key.partition("/")[0]]
        case schedules.SCHEDULE_KIND:
            schedule = _decoded(record.value, Schedule)
            return None if schedule is None else [schedule.job.queue]
        case redrives.REDRIVE_KIND | acts.ACT_KIND:
            return _queues_of_plan(record)
        case gates.GATE_KIND | gates.GATE_RUN_KIND:
            gate = _decoded(record.value, _GatePart)
            return None if gate is None else [gate.queue]
        case sqs.SQS_QUEUE_KIND | sqs.MOVE_TASKS_KIND:
            return _queues_of_sqs(record)
        case queues.DISTRIBUTION_KIND:
            distribution = _decoded(record.value, Distribution)
            if distribution is None:
                return None
            literal = distribution.source.partition("*")[0].partition("?")[0]
            return [record.key, distribution.target, literal]
        case accounts.ACCOUNT_KIND:
            account = _decoded(record.value, Account)
            return None if account is None else account.totals.queues
        case alerts.ALERT_KIND:
            alert = _decoded(record.value, alerts.Alert)
            return None if alert is None or not alert.queue else [alert.queue]
        case event_log.EVENTS_KIND:
            return [event.queue for event in event_log.decode_events(record) if event.queue]
        case _:
            return None


def _queues_of_plan(record: Record) -> Iterable[str] | None:
    if record.kind == acts.ACT_KIND:
        act = _decoded(record.value, ActRecord)
        return None if act is None or not act.queues else act.queues
    redrive = _decoded(record.value, RedriveRecord)
    queue = None if redrive is None else redrive.plan.wanted.queue
    return None if queue is None else [queue]


def _queues_of_sqs(record: Record) -> Iterable[str] | None:
    if record.kind == sqs.SQS_QUEUE_KIND:
        found = _decoded(record.value, SqsQueue)
        # Clients send to the name: a record must not lead those of others to another queue.
        return None if found is None else [found.queue, found.name]
    moves = _decoded(record.value, MoveTasks)
    if moves is None:
        return None
    return [record.key, *(each.destination for each in moves.tasks if each.destination)]


class _GatePart(msgspec.Struct, frozen=True):
    """The field that a gate and the record of its process share."""

    queue: str


def _decoded(value: bytes | None, kind: type[Kind]) -> Kind | None:
    try:
        return None if value is None else msgspec.json.decode(value, type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None

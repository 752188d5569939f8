"""Move tasks: start, cancel and list them, and the service that carries them out.

The tasks of a dead-letter queue are one record, so that only one can run. The service claims the
record, leases some messages, and completes each with a new message as its follow-up, which is one
transaction: none is lost or doubled, and another process continues after a crash. As on AWS, a
moved message is a new one: its id, its time and its count of receives start again.
"""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core import bounds, limits
from holdfast.core.limits import Rate
from holdfast.core.model import Lease, LeaseRequest, NewJob, Record
from holdfast.core.verdict import Complete, Outcome, Release, Settlement
from holdfast.engines.base import Engine
from holdfast.errors import EngineError
from holdfast.notation.options import new_id
from holdfast.ops.queues import find_queue, queue_settings
from holdfast.ops.records import SkippedRecords, remove_records, scan
from holdfast.ops.sqs import (
    MOVE_TASKS,
    MOVE_TASKS_KIND,
    TASKS_MAX,
    MoveState,
    MoveTask,
    MoveTasks,
)
from holdfast.server.sqs import errors
from holdfast.server.sqs.call import SqsCall
from holdfast.server.sqs.catalog import KnownQueue
from holdfast.server.sqs.queue_attributes import QueueArn, parse_arn
from holdfast.server.sqs.queues import visible_count
from holdfast.server.sqs.shapes import (
    CancelMessageMoveTaskRequest,
    CancelMessageMoveTaskResult,
    ListMessageMoveTasksRequest,
    ListMessageMoveTasksResult,
    ListMessageMoveTasksResultEntry,
    StartMessageMoveTaskRequest,
    StartMessageMoveTaskResult,
)

RATE_MAX: Final = 500
BATCH: Final = 100
"""Messages of one step. They are leased with their bodies, which may have 1 MiB each."""
TAKEOVER_MS: Final = 10 * bounds.SECOND_MS
"""How long a step is left to the process that began it, and the lease of its messages."""

_WORKER: Final = "sqs mover"
_RETENTION_MS: Final = 14 * bounds.DAY_MS
_ARN_FORMAT: Final = "arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
_NO_QUEUE: Final = "AWS.SimpleQueueService.NonExistentQueue"
_NO_SOURCE: Final = "CouldNotDetermineMessageSource"

_log = logging.getLogger("holdfast.upkeep")


async def start_message_move_task(
    call: SqsCall, request: StartMessageMoveTaskRequest
) -> StartMessageMoveTaskResult:
    """Start moving the messages of a dead-letter queue."""
    source = await _queue_of(call, request.source_arn, "SourceArn")
    target = None
    if request.destination_arn is not None:
        target = await _queue_of(call, request.destination_arn, "DestinationArn")
        if target.queue == source.queue:
            raise errors.invalid_parameter(
                "Source queue arn and destination queue arn must not be the same."
            )
        if target.is_fifo is not source.is_fifo:
            raise errors.invalid_parameter(
                "Source queue and destination queue must be of the same type."
            )
    rate = request.max_number_of_messages_per_second
    if rate is not None and not 1 <= rate <= RATE_MAX:
        reason = f"Must be between 1 and {RATE_MAX}."
        raise errors.invalid_value("MaxNumberOfMessagesPerSecond", rate, reason)
    settings = await queue_settings(call.store)
    if not any(each.dead_queue == source.queue for each in settings.values()):
        raise errors.not_a_dead_letter_queue()
    view = await call.catalog.count(source.queue)
    task = MoveTask(
        id=secrets.token_hex(16),
        source_arn=request.source_arn,
        started_at=call.now_ms(),
        destination=None if target is None else target.queue,
        destination_arn=request.destination_arn,
        rate=rate,
        to_move=0 if view is None else visible_count(view, holds_dead_letters=True),
    )

    def add(known: MoveTasks | None) -> MoveTasks:
        before = () if known is None else known.tasks
        if before and not before[0].state.ended:
            raise errors.move_task_running()
        return MoveTasks(tasks=(task, *before)[:TASKS_MAX])

    await MOVE_TASKS.update(call.engine, source.queue, add)
    # The first step is taken at once: a small queue is empty before the client looks.
    await MessageMover(lambda: call.store).step(source.queue)
    return StartMessageMoveTaskResult(task_handle=handle_of(task))


async def cancel_message_move_task(
    call: SqsCall, request: CancelMessageMoveTaskRequest
) -> CancelMessageMoveTaskResult:
    """Stop a move task. Messages that were moved stay where they are."""
    id_, arn = read_handle(request.task_handle)
    source = await _queue_of(call, str(arn), "SourceArn")

    def cancel(known: MoveTasks | None) -> MoveTasks:
        task = None if known is None else known.tasks[0]
        if known is None or task is None or task.id != id_ or task.state.ended:
            raise errors.no_such_task()
        return with_task(known, replace(task, state=MoveState.CANCELLING))

    saved = await MOVE_TASKS.update(call.engine, source.queue, cancel)
    assert saved is not None
    return CancelMessageMoveTaskResult(approximate_number_of_messages_moved=saved.tasks[0].moved)


async def list_message_move_tasks(
    call: SqsCall, request: ListMessageMoveTasksRequest
) -> ListMessageMoveTasksResult:
    """The latest move tasks of a queue, newest first."""
    results_max = 1 if request.max_results is None else request.max_results
    if not 1 <= results_max <= TASKS_MAX:
        reason = f"Must be between 1 and {TASKS_MAX}."
        raise errors.invalid_value("MaxResults", results_max, reason)
    source = await _queue_of(call, request.source_arn, "SourceArn")
    stored = await MOVE_TASKS.read(call.engine, source.queue)
    tasks = () if stored is None or stored.value is None else stored.value.tasks
    return ListMessageMoveTasksResult(results=tuple(map(_shown, tasks[:results_max])))


def handle_of(task: MoveTask) -> str:
    """The handle of a task."""
    data = {"taskId": task.id, "sourceArn": task.source_arn}
    return base64.b64encode(msgspec.json.encode(data)).decode()


def read_handle(handle: str) -> tuple[str, QueueArn]:
    """The id of a task and its source. Raises InvalidParameterValue."""
    try:
        parts = msgspec.json.decode(base64.b64decode(handle, validate=True), type=_Handle)
    except (binascii.Error, ValueError, RecursionError):
        raise errors.invalid_task_handle() from None
    arn = parse_arn(parts.source_arn)
    if arn is None:
        raise errors.invalid_task_handle()
    return parts.task_id, arn


def with_task(known: MoveTasks, task: MoveTask) -> MoveTasks:
    """The tasks with the newest one replaced."""
    return replace(known, tasks=(task, *known.tasks[1:]))


class _Handle(msgspec.Struct, rename="camel"):
    task_id: str
    source_arn: str


async def _queue_of(call: SqsCall, arn_text: str, parameter: str) -> KnownQueue:
    """The queue that an ARN names. Raises ResourceNotFoundException."""
    arn = parse_arn(arn_text)
    if arn is None:
        raise errors.invalid_parameter(
            f"You must use this format to specify the {parameter}: {_ARN_FORMAT}"
        )
    known = None
    if (arn.region, arn.account) == (call.region, call.account):
        known = await call.catalog.find(arn.region, arn.name)
    if known is None or not call.may_see(known.queue):
        raise errors.no_such_resource(parameter)
    return known


def _shown(task: MoveTask) -> ListMessageMoveTasksResultEntry:
    return ListMessageMoveTasksResultEntry(
        task_handle=handle_of(task) if task.state is MoveState.RUNNING else None,
        status=task.state.value,
        source_arn=task.source_arn,
        destination_arn=task.destination_arn,
        max_number_of_messages_per_second=task.rate,
        approximate_number_of_messages_moved=task.moved,
        approximate_number_of_messages_to_move=task.to_move,
        failure_reason=task.failure or None,
        started_timestamp=task.started_at,
    )


class MessageMover:
    """Carries out the move tasks of one namespace, a batch in each step."""

    name = "sqs mover"

    def __init__(
        self, engine: Callable[[], Engine], *, sleep_ms_max: int = bounds.SECOND_MS
    ) -> None:
        self.sleep_ms_max = sleep_ms_max
        self._engine = engine
        self._skipped = SkippedRecords(_log)

    async def once(self) -> int | None:
        """Run one step of every task. Returns the time to the next."""
        waits_ms: list[int] = []
        async for record in scan(self._engine(), MOVE_TASKS_KIND):
            try:
                next_ms = await self._step(record)
            except EngineError:
                raise
            except Exception as error:  # noqa: BLE001 (it must not hold up the other tasks)
                self._skipped.skip(record, error)
                continue
            if next_ms is not None:
                waits_ms.append(next_ms)
        self._skipped.end_round()
        return min(waits_ms, default=None)

    async def step(self, queue: str) -> None:
        """Run one step of the task of a queue."""
        stored = await MOVE_TASKS.read(self._engine(), queue)
        if stored is not None:
            await self._step(stored.record)

    async def _step(self, record: Record) -> int | None:
        known = MOVE_TASKS.require(record)
        task = known.tasks[0]
        if task.state.ended:
            if record.age_ms > _RETENTION_MS:
                await remove_records(self._engine(), [record])
            return None
        if task.moving and record.age_ms < TAKEOVER_MS:
            return TAKEOVER_MS - record.age_ms
        if task.state is MoveState.CANCELLING:
            await self._save(record, known, replace(task, state=MoveState.CANCELLED))
            return 0
        most = moves_allowed(task, record.age_ms)
        if most == 0:
            return max(1, next_move_ms(task) - record.age_ms)
        claimed = replace(charge_rate(task, record.age_ms, most), moving=True)
        if not await self._save(record, known, claimed):
            return 0
        step = await self._move(record.key, claimed, most)
        after = replace(
            claimed,
            moving=False,
            moved=claimed.moved + step.moved,
            # A rate is charged for the messages that there were, not for those asked for.
            ahead_us=max(0, claimed.ahead_us - (most - step.moved) * _apart_us(task)),
        )
        if step.failure:
            after = replace(after, state=MoveState.FAILED, failure=step.failure)
        elif step.is_last:
            after = replace(after, state=MoveState.COMPLETED)
        await self._finish(record.key, claimed, after)
        if after.state.ended:
            return None
        # Visible messages that cannot be leased: the queue is paused, or the first of a group is
        # in flight.
        return max(next_move_ms(after), 0 if step.moved else bounds.SECOND_MS)

    async def _save(self, record: Record, known: MoveTasks, task: MoveTask) -> bool:
        """Save on the version that was read; False if another process was first."""
        tasks = with_task(known, task)
        return await MOVE_TASKS.save(self._engine(), record.key, tasks, record.version)

    async def _finish(self, key: str, claimed: MoveTask, after: MoveTask) -> None:
        """Save the end of a step. A task that was cancelled in the meantime keeps its counts."""

        def change(known: MoveTasks | None) -> MoveTasks | None:
            if known is None or known.tasks[0].id != claimed.id or not known.tasks[0].moving:
                return known
            is_cancelled = known.tasks[0].state is MoveState.CANCELLING
            state = MoveState.CANCELLED if is_cancelled else after.state
            return with_task(known, replace(after, state=state))

        await MOVE_TASKS.update(self._engine(), key, change)

    async def _move(self, source: str, task: MoveTask, most: int) -> _MoveStep:
        """Move at most `most` messages."""
        engine = self._engine()
        leases = await self._lease(source, most)
        settings = await queue_settings(engine)
        failure = "" if source in settings else _NO_QUEUE
        settlements: list[Settlement] = []
        for lease in leases:
            target = task.destination or lease.job.origin
            if target is None or target not in settings:
                failure = _NO_SOURCE if target is None else _NO_QUEUE
                verdict: Complete | Release = Release("no queue to move it to", unstarted=True)
            else:
                verdict = Complete(then=(moved_message(lease, target),))
            settlements.append(Settlement(lease=lease, verdict=verdict))
        outcomes = await engine.settle(settlements) if settlements else []
        moved = sum(
            outcome is Outcome.SETTLED and isinstance(each.verdict, Complete)
            for each, outcome in zip(settlements, outcomes, strict=True)
        )
        if Outcome.REFUSED in outcomes:
            failure = failure or _NO_QUEUE
        view = await find_queue(engine, source, counts=True)
        is_empty = view is None or visible_count(view, holds_dead_letters=True) == 0
        return _MoveStep(moved, failure=failure, is_last=is_empty)

    async def _lease(self, source: str, most: int) -> Sequence[Lease]:
        """Dead letters first, then messages that were sent to the dead-letter queue."""
        engine = self._engine()
        request = LeaseRequest(
            queues=(source,), limit=most, worker=_WORKER, lease_ms=TAKEOVER_MS, dead=True
        )
        leases = await engine.lease(request)
        if len(leases) < most:
            waiting = replace(request, limit=most - len(leases), dead=False)
            leases = [*leases, *await engine.lease(waiting)]
        return leases


class _MoveStep(NamedTuple):
    """The number of messages that one step moved, why the task cannot go on, and whether no message
    is left."""

    moved: int = 0
    failure: str = ""
    is_last: bool = False


def moved_message(lease: Lease, queue: str) -> NewJob:
    """The new message that takes the place of a moved one."""
    job = lease.job
    return NewJob(
        id=new_id(),
        task=job.task,
        queue=queue,
        payload=job.payload,
        content_type=job.content_type,
        priority=job.priority,
        tenant=job.tenant,
        group=job.group,
        labels=job.labels,
        headers=job.headers,
        overrides=job.overrides,
    )


def moves_allowed(task: MoveTask, age_ms: int) -> int:
    """The number of messages that may be moved now. A rate allows one second's worth at once."""
    rate = _rate_of(task)
    if rate is None:
        return BATCH
    return min(BATCH, limits.starts_now(rate, _free_us(rate, task, age_ms), 0))


def charge_rate(task: MoveTask, age_ms: int, count: int) -> MoveTask:
    """The task with its rate advanced to now, and `count` more messages charged to it."""
    rate = _rate_of(task)
    if rate is None:
        return task
    free_us = _free_us(rate, task, age_ms)
    return replace(task, ahead_us=limits.after_starts(rate, free_us, 0, count))


def next_move_ms(task: MoveTask) -> int:
    """The time from the last save until one more message may be moved."""
    rate = _rate_of(task)
    return 0 if rate is None else limits.free_ms(rate, _free_us(rate, task, 0), 0)


def _free_us(rate: Rate, task: MoveTask, age_ms: int) -> int:
    """The time to the next evenly spaced move, `age_ms` after the last save."""
    return limits.clamp_free_us(rate, task.ahead_us, 0) - age_ms * 1_000


def _rate_of(task: MoveTask) -> Rate | None:
    if task.rate is None:
        return None
    return Rate(count=task.rate, per_ms=bounds.SECOND_MS, burst=max(1, min(BATCH, task.rate)))


def _apart_us(task: MoveTask) -> int:
    rate = _rate_of(task)
    return 0 if rate is None else rate.apart_us

"""An inlet: messages of a broker become jobs, and are acknowledged once the jobs are durable.

The id and the key of a job come from the gate and the id of the message, so that a message which is
delivered again adds nothing. The inlet keeps messages that its queue has no room for, because a
broker may drop a message that was returned too often.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Final, NamedTuple

from holdfast.core import bounds, checks
from holdfast.core.model import Failure, NewJob, Queue, QueueView, Reason, Receipt, Status
from holdfast.core.verdict import BuryWaiting
from holdfast.engines.base import Engine, Traits
from holdfast.engines.broker import BrokerLink, Message
from holdfast.engines.extras import IdMinting, extra
from holdfast.errors import (
    EngineError,
    HoldfastError,
    InvalidJob,
    PayloadTooLarge,
    Unsupported,
    UsageError,
)
from holdfast.gates.link import HELD_MS, linked, missing_queue, repeated
from holdfast.notation.options import new_id
from holdfast.notation.templates import expand
from holdfast.ops.gates import Gate, check_chosen_task, message_job_id
from holdfast.ops.jobs.bulk import enqueue_batches
from holdfast.ops.queues import find_queue
from holdfast.ops.rejected import Rejection, bury_parked, keep_rejected, parked

KEY_WINDOW_MS: Final = 7 * bounds.DAY_MS
"""How long a message that is delivered again is a duplicate, even if its job is gone."""
WAIT_MS: Final = bounds.SECOND_MS
_HOLD_S = 60.0
"""How long messages are kept while the queue takes none, before they return to their source."""
_POSTPONE_MS = bounds.SECOND_MS
_POSTPONE_MS_MAX = 30 * bounds.SECOND_MS
_PARKED_MS = 15 * bounds.MINUTE_MS
"""Longer than a message takes to return to its source, so that the next gate buries the job."""
_SETTINGS_S = 2.0
_GROWTH = 4
_UNTYPED = "application/octet-stream"
_REASONS = frozenset(Reason)
_PERMANENT = frozenset({InvalidJob.code, PayloadTooLarge.code, Unsupported.code})
"""The refusals that are about the job. Any other is about its queue or the store, and ends."""


class _Delivery(NamedTuple):
    """A message, the id of its job or dead letter, and the job; without one, `why` says why the
    message cannot become a job."""

    message: Message
    id: str
    job: NewJob | None
    why: str = ""


class Inlet:
    """Receives from the source of a gate. `held` is why it receives nothing; "" while it does."""

    def __init__(self, engine: Engine, gate: Gate, link: BrokerLink) -> None:
        self.held: str = ""
        self.counts: Counter[str] = Counter()
        self._engine = engine
        self._gate = gate
        self._link = link
        minting = extra(engine, IdMinting)
        self._mint: Callable[[], str] = new_id if minting is None else minting.mint
        self._pending: list[_Delivery] = []
        self._limit = 0
        """Messages that may be here; 0 while nothing is received. If each change makes the broker
        count those that are here as returned, it grows rarely and does not shrink."""
        self._failures = 0
        self._held_since: float | None = None
        self._queue: Queue | None = None
        self._read_at = float("-inf")

    async def once(self) -> int:
        """Move one batch; the time to wait before the next. If the store fails, the messages return
        to their source for a while, if the broker can do that."""
        try:
            return await self._step()
        except EngineError:
            await self._postpone()
            raise

    async def _step(self) -> int:
        room = await self._room()
        if room <= 0 or self._queue is None:
            return await self._hold()
        self._held_since = None
        if not self._pending:
            if not self._link.limit_is_costly or (
                self._limit < self._gate.prefetch and room >= _GROWTH * self._limit
            ):
                self._limit = min(room, self._gate.prefetch)
            messages = await linked(self._link.receive(self._gate.source, self._limit, WAIT_MS))
            self.counts["received"] += len(messages)
            self._pending = [self._delivery(message, self._queue) for message in messages]
        if self._pending:
            await self._take(room)
        return HELD_MS if self._pending else 0

    async def _room(self) -> int:
        """The number of jobs that the queue has room for. Without a `max_depth` the settings of the
        queue are read every two seconds."""
        is_deep = self._queue is not None and self._queue.max_depth is not None
        if not is_deep and monotonic() - self._read_at < _SETTINGS_S:
            return 0 if self.held else bounds.BATCH_MAX
        view = await find_queue(self._engine, self._gate.queue, counts=is_deep)
        if view is not None and view.queue.max_depth is not None and not is_deep:
            view = await find_queue(self._engine, self._gate.queue, counts=True)
        self._read_at = monotonic()
        self._queue = None if view is None else view.queue
        room = 0 if view is None else _room_in(view)
        self.held = "" if room > 0 else _why_held(self._gate.queue, self._queue)
        return room

    async def _hold(self) -> int:
        """Wait until the queue has room. After a while the messages return to their source."""
        if self._held_since is None:
            self._held_since = monotonic()
        if self._limit and monotonic() - self._held_since >= _HOLD_S:
            await linked(self._link.pause(self._gate.source))
            self._pending = []
            self._limit = 0
        return HELD_MS

    async def _postpone(self) -> None:
        """Each failure of the store in a row doubles the delay. If this fails, the messages return
        by themselves: the link is opened again, or their time at the broker ends."""
        delay_ms = min(_POSTPONE_MS << min(self._failures, 20), _POSTPONE_MS_MAX)
        self._failures += 1
        # Receive no more before the store answers.
        self._read_at = float("-inf")
        with suppress(HoldfastError):
            if await self._link.postpone(self._gate.source, delay_ms):
                self._pending = []

    def _delivery(self, message: Message, queue: Queue) -> _Delivery:
        name = message.message_id
        id_ = message_job_id(self._gate.name, name) if name else self._mint()
        try:
            job = message_job(self._gate, message, id_, self._engine.traits)
            checks.check_job(job, queue.payload_max)
        except UsageError as error:
            return _Delivery(message, id_, None, str(error))
        if self._gate.dead:
            job = parked(job, self._engine.traits, _PARKED_MS)
        return _Delivery(message, id_, job)

    async def _take(self, room: int) -> None:
        """Enqueue what there is room for, keep what cannot become a job, and acknowledge both. If
        this is interrupted, the next call repeats it with the same ids."""
        wanted = [each for each in self._pending if each.job is not None][:room]
        receipts = await self._enqueue([each.job for each in wanted if each.job is not None])
        stored: list[_Delivery] = []
        refused: dict[int, str] = {}
        for each, receipt in zip(wanted, receipts, strict=True):
            if receipt.status is not Status.REFUSED:
                stored.append(each)
                new = "adopted" if self._gate.dead else "enqueued"
                self.counts[new if receipt.status is Status.NEW else "duplicates"] += 1
            elif receipt.code in _PERMANENT:
                refused[each.message.tag] = receipt.text
            else:
                # The queue was filled or closed in the meantime.
                self._read_at = float("-inf")
                self.held = receipt.text
        self._pending = [
            each._replace(job=None, why=refused[each.message.tag])
            if each.message.tag in refused
            else each
            for each in self._pending
        ]
        if self._gate.dead:
            await self._bury(stored)
        await self._acknowledge(stored)
        rejected = [each for each in self._pending if each.job is None]
        if rejected:
            await keep_rejected(self._engine, [self._rejection(each) for each in rejected])
            self.counts["rejected"] += len(rejected)
            await self._acknowledge(rejected)
        self._failures = 0

    async def _enqueue(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        """One call, unless the payloads are large. The ids make it safe to repeat."""
        receipts: list[Receipt] = []
        for batch in enqueue_batches(jobs):
            receipts += await repeated(partial(self._engine.enqueue, batch))
        return receipts

    async def _bury(self, deliveries: Sequence[_Delivery]) -> None:
        """Make dead letters of parked jobs, in one call for those that died alike."""
        ids: defaultdict[BuryWaiting, list[str]] = defaultdict(list)
        for each in deliveries:
            ids[burial(self._gate, each.message)].append(each.id)
        for amendment, own in ids.items():
            await bury_parked(self._engine, self._gate.queue, own, amendment)

    async def _acknowledge(self, deliveries: Sequence[_Delivery]) -> None:
        if deliveries:
            messages = [each.message for each in deliveries]
            await linked(self._link.acknowledge(self._gate.source, messages))
            tags = {message.tag for message in messages}
            self._pending = [each for each in self._pending if each.message.tag not in tags]

    def _rejection(self, delivery: _Delivery) -> Rejection:
        message = delivery.message
        return Rejection(
            id=delivery.id,
            why=delivery.why,
            by=f"gate {self._gate.name}",
            body=message.body,
            content_type=message.content_type,
            headers=message.headers,
        )


def message_job(gate: Gate, message: Message, id: str, traits: Traits) -> NewJob:
    """The job for a message, under this id. Raises UsageError if the message lacks what a template
    needs."""

    def find(name: str) -> str | None:
        return message_field(message, name)

    def named(template: str | None) -> str | None:
        return None if template is None else expand(template, find) or None

    task = expand(gate.task, find)
    check_chosen_task(gate, task)
    group, key = named(gate.group), named(gate.key)
    may_have_key = traits.keys and (traits.combinations or group is None)
    if key is None and message.message_id and may_have_key:
        key = f"gate/{gate.name}/{id.removeprefix(f'gate:{gate.name}:')}"
    return NewJob(
        id=id,
        task=task,
        queue=gate.queue,
        payload=message.body,
        content_type=message.content_type or gate.content_type or _UNTYPED,
        priority=min(message.priority or 0, bounds.PRIORITY_MAX),
        expires_ms=None
        if message.expires_ms is None
        else max(0, min(message.expires_ms, bounds.DELAY_MS_MAX)),
        key=key,
        key_window_ms=KEY_WINDOW_MS,
        tenant=named(gate.tenant),
        group=group,
        headers=_with_origin(gate, message),
    )


def burial(gate: Gate, message: Message) -> BuryWaiting:
    """How the message of a dead-letter queue died. Its receive count and the time when it was first
    sent are headers of the job, so that messages that died alike have the same failure."""
    given = message.properties
    reason = given.get("reason", "")
    came_from = given.get("source_queue") or given.get("source_arn")
    where = f"{gate.source} of broker {gate.broker}"
    failure = Failure(
        type="DeadLetterQueue",
        message=given.get("failure")
        or f"it was in the dead-letter queue {where}"
        + (f", and came from {came_from}" if came_from else ""),
    )
    return BuryWaiting(
        by=f"gate {gate.name}",
        reason=Reason(reason) if reason in _REASONS else Reason.ATTEMPTS,
        failure=checks.clean_failure(failure),
    )


def message_field(message: Message, name: str) -> str | None:
    """The value of a template's placeholder."""
    first, dot, header = name.partition(".")
    if dot:
        return message.headers.get(header) if first == "header" else None
    value: str | None = getattr(message, name, message.properties.get(name))
    return value


def _with_origin(gate: Gate, message: Message) -> dict[str, str]:
    """The headers of the message, and where it came from, if a job can have as many. A header of
    the message is never replaced, and a fact that is too long for a header is left out."""
    origin = {
        "gate.name": gate.name,
        "gate.message_id": message.message_id,
        "gate.correlation_id": message.correlation_id,
        "gate.content_encoding": message.content_encoding,
        "gate.type": message.type,
        "gate.reply_to": message.reply_to,
        "gate.exchange": message.exchange,
        "gate.routing_key": message.routing_key,
        "gate.group": message.group,
        "gate.tenant": message.tenant,
    } | {f"gate.{name}": value for name, value in message.properties.items()}
    headers = {
        name: value
        for name, value in origin.items()
        if value and len(value.encode(errors="replace")) <= bounds.PAIR_VALUE_BYTES_MAX
    } | message.headers
    try:
        checks.check_pairs("headers", headers)
    except UsageError:
        return message.headers
    return headers


def _room_in(view: QueueView) -> int:
    queue = view.queue
    if queue.paused or not queue.accepting:
        return 0
    if queue.max_depth is None:
        return bounds.BATCH_MAX
    return max(0, queue.max_depth - view.ready - view.delayed - view.blocked)


def _why_held(name: str, queue: Queue | None) -> str:
    if queue is None:
        return missing_queue(name)
    if not queue.accepting:
        return f"queue {name} does not accept new jobs"
    return f"queue {name} is paused" if queue.paused else f"queue {name} is full"

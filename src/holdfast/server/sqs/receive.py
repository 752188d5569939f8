"""ReceiveMessage: short and long polls, repeated requests, and the messages as clients see them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from holdfast.app.application import Holdfast
from holdfast.core import bounds
from holdfast.core.model import Job, Lease, Renewal
from holdfast.core.verdict import Retry, Settlement
from holdfast.engines.base import Engine
from holdfast.errors import Forbidden, Unauthenticated
from holdfast.server.access.caller import Scope, missing_scope
from holdfast.server.sqs import errors, message_attributes
from holdfast.server.sqs.call import SqsCall
from holdfast.server.sqs.catalog import KnownQueue
from holdfast.server.sqs.leases import MessageCounts, MessageLeaser, receive_count, sent_at
from holdfast.server.sqs.message_jobs import Delivery, received_message, system_names
from holdfast.server.sqs.polls import Polls
from holdfast.server.sqs.queue_attributes import VISIBILITY_S_MAX
from holdfast.server.sqs.receipts import MessageReceipt, ReceiptSeal, read_seal
from holdfast.server.sqs.receive_attempts import AttemptKey, ReceiveAttempts
from holdfast.server.sqs.shapes import (
    ReceivedMessage,
    ReceiveMessageRequest,
    ReceiveMessageResult,
)

RECEIVED_MAX: Final = 10
WAIT_S_MAX: Final = 20
NAMES_MAX: Final = 1_000
"""Names of attributes in one request: each message is compared with all of them."""

_FIRST_RECEIVES_MAX: Final = 20_000
_FULL_POLL_S: Final = 1.0


class MessageState:
    """State that all requests of one namespace share. It is lost when the server stops."""

    def __init__(self, app: Holdfast) -> None:
        self.polls: Polls = Polls()
        self.counts: MessageCounts = MessageCounts(lambda: app.engine)
        self.attempts: ReceiveAttempts = ReceiveAttempts()
        self._first_receives: OrderedDict[str, int] = OrderedDict()
        self._seal: ReceiptSeal | None = None

    async def seal(self, engine: Engine) -> ReceiptSeal:
        """The seal of receipt handles."""
        if self._seal is None:
            self._seal = await read_seal(engine)
        return self._seal

    def first_received_at(self, job: Job) -> int:
        """The time of the first receive of a message, if this server has seen it and remembers."""
        at = job.leased_at or 0
        if receive_count(job) > 1:
            return self._first_receives.get(job.id, at)
        self._first_receives[job.id] = at
        if len(self._first_receives) > _FIRST_RECEIVES_MAX:
            self._first_receives.popitem(last=False)
        return at


def message_state(call: SqsCall) -> MessageState:
    """The state of the call's namespace."""
    return message_state_of(call.api.app)


def message_state_of(app: Holdfast) -> MessageState:
    """The state of a namespace, found by its application."""
    state = _states.get(app)
    if state is None:
        state = _states[app] = MessageState(app)
    return state


_states: WeakKeyDictionary[Holdfast, MessageState] = WeakKeyDictionary()


async def receive_message(call: SqsCall, request: ReceiveMessageRequest) -> ReceiveMessageResult:
    """Receive up to ten messages, and wait for the first if the request or the queue says so. If
    the client disconnects, `call.undo` gives them back, and the receive does not count."""
    if not call.caller.may(Scope.CONSUME):
        raise Forbidden(missing_scope(Scope.CONSUME))
    known = await call.queue(request.queue_url)
    most, visibility_s, wait_s = _checked(request, known)
    state = message_state(call)
    attempt = _attempt_key(request, known)
    if attempt is not None:
        repeated = await _repeated(call, known, request, attempt, visibility_s)
        if repeated:
            call.count(known.queue, sqs_received=len(repeated))
            return ReceiveMessageResult(messages=repeated)
    leaser = MessageLeaser(
        call.api.app,
        known,
        partial(call.catalog.find, call.region, known.name),
        state.counts,
        visibility_s=visibility_s,
    )
    leases = await _lease(state, known, leaser, (known.queue, visibility_s), most, wait_s)
    if not leases:
        call.count(known.queue, sqs_empty_receives=1)
        return ReceiveMessageResult()
    try:
        if wait_s:
            await _require_token(call)
        messages = await _delivered(call, known, request, leases)
        if visibility_s == 0:
            await call.store.settle([Settlement(lease=each, verdict=Retry(0)) for each in leases])
    except BaseException:
        await asyncio.shield(leaser.give_back(leases))
        raise
    if visibility_s:
        state.counts.add(known.queue, len(leases))
        call.undo = partial(_give_back, state, leaser, leases, attempt)
        if attempt is not None:
            state.attempts.add(attempt, [MessageReceipt.of(each) for each in leases])
    call.count(known.queue, sqs_received=len(messages))
    return ReceiveMessageResult(messages=messages)


def _checked(request: ReceiveMessageRequest, known: KnownQueue) -> tuple[int, int, int]:
    """The number of messages, the visibility timeout and the wait of a request."""
    attributes = known.attributes
    most, visibility_s = request.max_number_of_messages, request.visibility_timeout
    wait_s = request.wait_time_seconds
    most = 1 if most is None else most
    wait_s = attributes.receive_message_wait_time_seconds if wait_s is None else wait_s
    visibility_s = attributes.visibility_timeout if visibility_s is None else visibility_s
    if not 1 <= most <= RECEIVED_MAX:
        raise errors.count_out_of_range(most)
    if not 0 <= wait_s <= WAIT_S_MAX:
        raise errors.wait_out_of_range(wait_s)
    if not 0 <= visibility_s <= VISIBILITY_S_MAX:
        raise errors.visibility_out_of_range(visibility_s)
    if len(request.message_attribute_names) + len(system_names(request)) > NAMES_MAX:
        raise errors.invalid_parameter(f"A request can name at most {NAMES_MAX} attributes.")
    return most, visibility_s, wait_s


def _attempt_key(request: ReceiveMessageRequest, known: KnownQueue) -> AttemptKey | None:
    attempt_id = request.receive_request_attempt_id
    if attempt_id is None:
        return None
    message_attributes.check_fifo_id("ReceiveRequestAttemptId", attempt_id)
    if not known.is_fifo:
        raise errors.wrong_queue_type("ReceiveRequestAttemptId", attempt_id)
    return known.queue, attempt_id


async def _repeated(
    call: SqsCall,
    known: KnownQueue,
    request: ReceiveMessageRequest,
    attempt: AttemptKey,
    visibility_s: int,
) -> tuple[ReceivedMessage, ...]:
    """The messages of an earlier request with the same attempt id, hidden for another timeout; none
    if there was no such request, or if its messages are visible again."""
    state = message_state(call)
    earlier = state.attempts.get(attempt)
    if earlier is None:
        return ()
    if earlier.is_changed:
        raise errors.attempt_not_retryable(attempt[1])
    lease_ms = max(visibility_s * bounds.SECOND_MS, bounds.LEASE_MS_MIN)
    renewals = [Renewal(lease=each.lease(), lease_ms=lease_ms) for each in earlier.receipts]
    renewed = [each for each in await call.engine.renew(renewals) if each is not None]
    if not renewed:
        state.attempts.remove(attempt)
        return ()
    if len(renewed) < len(renewals):
        # Another server or program has deleted some of them.
        raise errors.attempt_not_retryable(attempt[1])
    return await _delivered(call, known, request, renewed)


async def _lease(
    state: MessageState,
    known: KnownQueue,
    leaser: MessageLeaser,
    poll_key: tuple[str, int],
    most: int,
    wait_s: float,
) -> list[Lease]:
    """Lease messages. While too many are in flight, only a short poll of a standard queue is an
    error; the others find nothing."""
    while state.counts.is_full(known.queue):
        if not wait_s and not known.is_fifo:
            raise errors.too_many_in_flight()
        if wait_s <= 0:
            return []
        await asyncio.sleep(min(wait_s, _FULL_POLL_S))
        wait_s -= _FULL_POLL_S
        if wait_s <= 0:
            return []
    if not wait_s:
        return await leaser.lease(most, 0)
    wait_ms = round(wait_s * bounds.SECOND_MS)
    return await state.polls.receive(poll_key, leaser, most=most, wait_ms=wait_ms)


async def _require_token(call: SqsCall) -> None:
    """Raise if the caller's token was revoked while the request waited."""
    if not await call.api.is_good():
        raise Unauthenticated("the token is no longer valid")


async def _delivered(
    call: SqsCall, known: KnownQueue, request: ReceiveMessageRequest, leases: Sequence[Lease]
) -> tuple[ReceivedMessage, ...]:
    """The messages of new leases, with their receipt handles."""
    state = message_state(call)
    seal = await state.seal(call.store)
    names_system = bool(system_names(request))
    arns = await _source_arns(call, leases) if names_system else {}
    messages: list[ReceivedMessage] = []
    for each in leases:
        job, delivery = each.job, None
        first_received_at = state.first_received_at(job)
        if names_system:
            delivery = Delivery(
                account=call.account,
                receive_count=receive_count(job),
                sent_at=sent_at(job, known),
                first_received_at=first_received_at,
                source_arn=arns.get(job.origin or ""),
            )
        handle = seal.seal(MessageReceipt.of(each))
        messages.append(received_message(job, request, handle, delivery))
    return tuple(messages)


async def _source_arns(call: SqsCall, leases: Sequence[Lease]) -> dict[str, str]:
    """The ARNs of the queues in which dead letters died."""
    origins = {each.job.origin for each in leases if each.job.is_dead_letter}
    return {origin: await _arn_of(call, origin) for origin in origins if origin is not None}


async def _arn_of(call: SqsCall, queue: str) -> str:
    """The ARN of a Holdfast queue. Those of other regions have generated names."""
    if call.region != call.default_region:
        for listed in await call.catalog.list(call.region):
            if listed.record.queue == queue:
                return str(call.arn_of(listed.record.name))
    return str(call.arn_of(queue))


async def _give_back(
    state: MessageState, leaser: MessageLeaser, leases: Sequence[Lease], attempt: AttemptKey | None
) -> None:
    """Undo a receive whose client disconnected. If it tries again, it receives anew."""
    state.counts.add(leases[0].job.queue, -len(leases))
    if attempt is not None:
        state.attempts.remove(attempt)
    await leaser.give_back(leases)

"""Leases: messages are received, each becomes a job, and one that must not run is buried at once.

SQS has no reaper: it makes a message visible again when its timeout ends. Hence the policy for
overdue and expired jobs is applied here, when such a message is delivered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from holdfast.core import lifecycle, retry_policy
from holdfast.core.model import (
    Failure,
    FailureKind,
    Job,
    Lease,
    LeaseRequest,
    Reason,
    State,
)
from holdfast.core.verdict import Bury
from holdfast.engines.lease import Bell, LeaseReturns
from holdfast.engines.sqs import delivery, messages
from holdfast.engines.sqs.client import (
    RECEIVE_THREADS,
    WAIT_S_MAX,
    SqsClient,
    SqsMessage,
    name_of,
)
from holdfast.engines.sqs.messages import Burial, DeadAttribute, UnreadableMessage
from holdfast.engines.sqs.mover import SqsMessageMover
from holdfast.engines.sqs.polls import Poll, PollKey, PollSet, PollSource
from holdfast.engines.sqs.queues import SqsQueues
from holdfast.engines.sqs.settings import StoredQueue, seconds
from holdfast.errors import HoldfastError, NotFound
from holdfast.process import LogOnce

_log = logging.getLogger("holdfast.sqs")

_PAUSE_S: Final = 1.0
"""Pause between two checks of queues that are missing or paused."""
_RETURNS_MS: Final = 4_000
"""A call that waits as long is one of many."""
_UNWANTED_S_MIN: Final = 2
_UNWANTED_S_MAX: Final = 60
"""The pause of a message whose task the caller does not know."""
_TOKEN_EPOCH_MS: Final = 1_700_000_000_000
_TOKEN_RANDOM_BITS: Final = 12
"""A token fits into 53 bits until 2093."""


class _Delivered(NamedTuple):
    """Messages of a poll, which may have begun for a call that wanted another lease."""

    source: PollSource
    poll: Poll
    messages: list[SqsMessage]


class _Repeat(NamedTuple):
    """A message to send again, and how long the new one is hidden."""

    message: SqsMessage
    job: Job
    delay_s: int


class _Tokens:
    """Makes lease tokens that grow: with the clock of the service, and within this process even if
    that clock is set back."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, now: int) -> int:
        by_clock = (now - _TOKEN_EPOCH_MS) << _TOKEN_RANDOM_BITS
        token = max(by_clock | secrets.randbits(_TOKEN_RANDOM_BITS), self._last + 1)
        self._last = token
        return token


class _Reception:
    """The messages of one call so far, how many more it may take, until when it waits for the
    first, and how long its polls last; 0 if it does not wait. `failed` is the error of a queue that
    gave none: the others are served."""

    def __init__(self, room: int, end: float) -> None:
        self.room = room
        self.end = end
        self.poll_s = 0
        self.delivered: list[_Delivered] = []
        self.failed: HoldfastError | None = None


class Receiver:
    """Leases jobs of one engine. `bell` rings when settings changed and when the engine closes."""

    def __init__(
        self,
        client: SqsClient,
        catalog: SqsQueues,
        mover: SqsMessageMover,
        bell: Bell,
        returns: LeaseReturns,
    ) -> None:
        self._client = client
        self._catalog = catalog
        self._mover = mover
        self._bell = bell
        self._returns = returns
        self._polls = PollSet(client, self._return_messages)
        self._once = LogOnce(_log)
        self._tokens = _Tokens()
        self.is_open: bool = True

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        """See `Engine`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + request.wait_ms / 1000
        while True:
            ticket = self._bell.ticket
            reception = _Reception(request.limit, end)
            sources = await self._sources(request, reception)
            reception.poll_s = _poll_s(request, max(end - loop.time(), 0.0))
            delivered = await self._receive(sources, reception)
            if delivered:
                leases = await self._shielded(self._admit(delivered, request))
                if leases:
                    return leases
            left = end - loop.time()
            if left <= 0 or not self.is_open:
                return []
            if not sources or left < 1:
                await self._bell.wait(ticket, min(left, _PAUSE_S))

    async def close(self) -> None:
        """End the waiting calls; their polls give back what they receive."""
        self.is_open = False
        await self._polls.stop()

    async def _sources(self, request: LeaseRequest, reception: _Reception) -> list[PollSource]:
        found: list[PollSource] = []
        for name in dict.fromkeys(request.queues):
            try:
                source = await self._source(name, request)
            except HoldfastError as error:
                reception.failed = error
            else:
                found += [] if source is None else [source]
        return found

    async def _source(self, name: str, request: LeaseRequest) -> PollSource | None:
        """None if there is nothing to receive: the queue is missing or paused."""
        stored = await self._catalog.use(name)
        if stored is None or (stored.queue.paused and not request.dead):
            return None
        url = stored.url
        if request.dead:
            if stored.queue.dead_queue is not None:
                # Its dead letters are in the other queue.
                return None
            try:
                url = await self._catalog.dead_url(stored)
            except NotFound:
                return None
        lease_ms = stored.queue.lease_ms if request.lease_ms is None else request.lease_ms
        return PollSource(stored, PollKey(name, request.dead), url, lease_ms)

    async def _receive(
        self, sources: Sequence[PollSource], reception: _Reception
    ) -> list[_Delivered]:
        """Messages of the queues in their order; the wait is for the first that has any. An error
        of one queue is raised only if no other has messages, and none is dropped if the caller is
        cancelled."""
        try:
            await self._fill_reception(reception, sources)
        except asyncio.CancelledError:
            for source, _, found in reception.delivered:
                self._polls.give_back(source, found)
            raise
        if reception.failed is not None:
            if not reception.delivered:
                raise reception.failed
            self._once.warning(f"cannot receive from some queues: {reception.failed}")
        return reception.delivered

    async def _fill_reception(self, reception: _Reception, sources: Sequence[PollSource]) -> None:
        may_wait = reception.poll_s > 0
        if len(sources) > 1 or not may_wait:
            for source in sources:
                if reception.room:
                    await self._at_once(reception, source, may_wait=may_wait)
        if sources and may_wait and not reception.delivered:
            await self._first(reception, sources)

    async def _at_once(self, reception: _Reception, source: PollSource, *, may_wait: bool) -> None:
        """Messages that are there now. If the call may wait, a poll that is still under way stands
        for an empty queue."""
        poll = self._polls.take_ended(source.key)
        if poll is None and may_wait and self._polls.has_free(source.key):
            return
        if poll is None:
            poll = self._polls.begin(source, reception.room, 0)
        await self._ended([poll])
        await self._take(reception, source, poll)

    async def _first(self, reception: _Reception, sources: Sequence[PollSource]) -> None:
        """The first answers of long polls on all queues; the other polls are left for later."""
        loop = asyncio.get_running_loop()
        polls = [
            (
                source,
                self._polls.take(source.key)
                or self._polls.begin(source, reception.room, reception.poll_s),
            )
            for source in sources
        ]
        try:
            while polls and not reception.delivered:
                tasks = [poll.task for _, poll in polls]
                left_s = max(reception.end - loop.time(), 0.0)
                done, _ = await asyncio.wait(
                    tasks, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    return
                for each in tuple(polls):
                    if each[1].task in done and reception.room:
                        polls.remove(each)
                        await self._take(reception, *each)
        finally:
            for _, poll in polls:
                self._polls.leave(poll)

    async def _take(self, reception: _Reception, source: PollSource, poll: Poll) -> None:
        """The messages of an ended poll and, while all answers are full, of more receives: twice as
        many at the same time in each round."""
        asked, width = poll.limit, 1
        got = self._all_taken(reception, source, [poll])
        while got >= asked and reception.room:
            width = min(width * 2, RECEIVE_THREADS)
            limits = range(reception.room, 0, -source.most)
            polls = [self._polls.begin(source, limit, 0) for limit in limits[:width]]
            await self._ended(polls)
            asked = sum(each.limit for each in polls)
            got = self._all_taken(reception, source, polls)

    def _all_taken(self, reception: _Reception, source: PollSource, polls: Sequence[Poll]) -> int:
        """The messages of all polls; an error of one of them is noted."""
        got = 0
        for poll in polls:
            try:
                got += self._taken(reception, source, poll)
            except HoldfastError as error:
                reception.failed = error
        return got

    async def _ended(self, polls: Sequence[Poll]) -> None:
        """Wait for polls. If the caller is cancelled, the next one may take them."""
        try:
            await asyncio.wait([poll.task for poll in polls])
        except asyncio.CancelledError:
            for poll in polls:
                self._polls.leave(poll)
            raise

    def _taken(self, reception: _Reception, source: PollSource, poll: Poll) -> int:
        """Receive the messages of an ended poll, and return their number. Those without room are
        given back: the poll began for a call that wanted more."""
        self._polls.end(poll)
        if poll.task.cancelled():
            return 0
        try:
            found = poll.task.result()
        except NotFound:
            self._catalog.forget(source.stored.queue.name)
            return 0
        room = reception.room
        self._polls.give_back(poll.source, found[room:])
        if found[:room]:
            reception.delivered.append(_Delivered(source, poll, found[:room]))
            reception.room -= len(found[:room])
        return len(found)

    async def _shielded(self, admitting: Awaitable[list[Lease]]) -> list[Lease]:
        """The leases, which are given back if the caller is cancelled meanwhile."""
        task = asyncio.ensure_future(admitting)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._returns.begin(task)
            raise

    async def _admit(self, delivered: Sequence[_Delivered], request: LeaseRequest) -> list[Lease]:
        leases: list[Lease] = []
        for each in delivered:
            leases += await self._admit_from(each, request)
        return leases

    async def _admit_from(self, delivered: _Delivered, request: LeaseRequest) -> list[Lease]:
        source, poll, found = delivered
        now = self._client.now_ms()
        leases: list[Lease] = []
        longer: list[tuple[str, int]] = []
        burials: list[Burial] = []
        unwanted: list[tuple[SqsMessage, Job]] = []
        is_paused = await self._is_paused(source) and not request.dead
        for message in found:
            job = self._read(source, message, now, burials)
            if job is None:
                continue
            is_unknown = request.tasks is not None and job.task not in request.tasks
            verdict = None if request.dead else verdict_at_delivery(source.stored, job, now)
            if is_unknown:
                self._warn_of_unknown(job)
            if verdict is not None and not (is_unknown and verdict.reason is Reason.ATTEMPTS):
                burials.append(_burial(source, message, job, verdict, now))
                continue
            if is_paused or is_unknown:
                unwanted.append((message, job))
                continue
            token = self._tokens.next(now)
            lease = _lease_of(job, message, source, poll.began_at, now, request, token)
            if seconds(lease.lease_ms) > poll.source.visibility_s:
                longer.append((message.handle, seconds(lease.lease_ms)))
            leases.append(lease)
        await self._bury(source, burials)
        await self._return_unwanted(source, unwanted, now)
        return await self._extend(source, leases, longer)

    async def _is_paused(self, source: PollSource) -> bool:
        """Whether the queue is paused by now, if that can be read."""
        try:
            stored = await self._catalog.find(source.stored.queue.name)
        except HoldfastError:
            stored = None
        return (stored or source.stored).queue.paused

    async def _extend(
        self, source: PollSource, leases: list[Lease], longer: Sequence[tuple[str, int]]
    ) -> list[Lease]:
        """The leases without those that SQS does not hide for as long as they last."""
        if not longer:
            return leases
        answers = await self._client.change_visibility(source.url, longer)
        lost = {handle for (handle, _), answer in zip(longer, answers, strict=True) if answer}
        return [each for each in leases if each.job.headers[delivery.HANDLE_HEADER] not in lost]

    def _read(
        self, source: PollSource, message: SqsMessage, now: int, burials: list[Burial]
    ) -> Job | None:
        """The job of a message; None if it is none and is to be buried."""
        if source.key.is_dead:
            arn = message.system.get("DeadLetterQueueSourceArn", "")
            return messages.read_dead_letter(message, source.stored, self._catalog.source(arn))
        try:
            return messages.read_message(message, source.stored)
        except UnreadableMessage as error:
            failure = Failure(message=f"the message is not a job: {error}")
            burials.append(_burial(source, message, None, Bury(Reason.REJECTED, failure), now))
            return None

    async def _return_unwanted(
        self, source: PollSource, unwanted: Sequence[tuple[SqsMessage, Job]], now: int
    ) -> None:
        """Return messages whose task the caller does not know, or whose queue was paused. They are
        sent again, because these receives are no attempts."""
        repeats: list[_Repeat] = []
        for message, job in unwanted:
            pause_s = _pause_s(job, now)
            if _can_repeat(source):
                repeats.append(_Repeat(message, job, pause_s))
            else:
                self._polls.give_back(source, [message], pause_s)
        await self._send_again(source, repeats)

    async def _return_messages(
        self, source: PollSource, found: Sequence[SqsMessage], delay_s: int
    ) -> None:
        """Make messages visible that no call takes. The receive counts, unless the next delivery
        would then bury the job: several workers may return a job that none of them has run."""
        changes: list[tuple[str, int]] = []
        repeats: list[_Repeat] = []
        for message in found:
            job = _job_at_its_last_attempt(source, message) if _can_repeat(source) else None
            if job is None:
                changes.append((message.handle, delay_s))
            else:
                repeats.append(_Repeat(message, job, delay_s))
        await self._send_again(source, repeats)
        # Otherwise they become visible when their timeout ends.
        with contextlib.suppress(HoldfastError):
            await self._client.change_visibility(source.url, changes)

    async def _send_again(self, source: PollSource, repeats: Sequence[_Repeat]) -> None:
        """Send messages again and then delete them, because SQS counts receives for ever."""
        if not repeats:
            return
        outgoing = [
            messages.repeat_message(each.job, source.stored, delay_s=each.delay_s)
            for each in repeats
        ]
        handles = [each.message.handle for each in repeats]
        answers: Sequence[HoldfastError | None]
        try:
            answers = await self._mover.move(source.url, source.url, outgoing, handles)
        except HoldfastError as error:
            answers = [error] * len(repeats)
        for each, answer in zip(repeats, answers, strict=True):
            if answer is not None:
                _log.warning(
                    "message %s cannot be sent again, and waits for its timeout: %s",
                    each.message.id,
                    answer,
                )

    def _warn_of_unknown(self, job: Job) -> None:
        self._once.warning(
            f"queue {job.queue} has jobs of the task {job.task}, which this worker does not know:"
            " they wait for another worker"
        )

    async def _bury(self, source: PollSource, burials: Sequence[Burial]) -> None:
        """A letter that cannot be sent leaves its message in the queue: it is delivered again."""
        if not burials:
            return
        try:
            answers: Sequence[HoldfastError | None] = await self._mover.bury(source.stored, burials)
        except HoldfastError as error:
            answers = [error] * len(burials)
        for burial, answer in zip(burials, answers, strict=True):
            if answer is not None:
                _log.warning(
                    "message %s cannot be buried, and is delivered again: %s",
                    burial.dead.message_id,
                    answer,
                )


def _burial(
    source: PollSource, message: SqsMessage, job: Job | None, verdict: Bury, now: int
) -> Burial:
    attempt = messages.receive_count(message) if job is None else job.attempt
    dead = DeadAttribute(
        reason=verdict.reason,
        failure=verdict.failure,
        queue=source.stored.queue.name,
        attempt=attempt - 1,
        message_id=message.id,
        sent_at=messages.sent_at_of(message),
        died_at=now,
    )
    return messages.burial_of(message, source.stored, job, dead)


def _poll_s(request: LeaseRequest, left_s: float) -> int:
    """How long polls of a call last. A caller that waits for seconds is a worker and calls again:
    then the poll is as long as SQS allows, and the next calls take it over."""
    return WAIT_S_MAX if request.wait_ms >= _RETURNS_MS else int(left_s)


def _can_repeat(source: PollSource) -> bool:
    """Sending a message again would change the order of a FIFO queue, and a dead letter has no
    attempts."""
    return not source.stored.is_fifo and not source.key.is_dead


def _job_at_its_last_attempt(source: PollSource, message: SqsMessage) -> Job | None:
    """The job of a message, if one more receive uses up its attempts."""
    try:
        job = messages.read_message(message, source.stored)
    except UnreadableMessage:
        return None
    return job if retry_policy.exhausted(source.stored.queue, job) else None


def _pause_s(job: Job, now: int) -> int:
    """How long a job that nobody here may run stays hidden: longer the longer it has waited."""
    return min(max(seconds(now - job.created_at), _UNWANTED_S_MIN), _UNWANTED_S_MAX)


def verdict_at_delivery(stored: StoredQueue, job: Job, now: int) -> Bury | None:
    """The verdict on a job that must not run again: its attempts are used up, or it expired."""
    before = replace(job, attempt=job.attempt - 1)
    if before.attempt and retry_policy.exhausted(stored.queue, before):
        failure = Failure(
            kind=FailureKind.OVERDUE,
            message=f"received {before.attempt} times, and never deleted or buried",
        )
        return Bury(Reason.ATTEMPTS, failure)
    if lifecycle.is_expired(job, now):
        expiry = retry_policy.after_expiry(before, by="lease")
        return Bury(expiry.reason, expiry.failure)
    return None


def _lease_of(
    job: Job,
    message: SqsMessage,
    source: PollSource,
    received_at: int,
    now: int,
    request: LeaseRequest,
    token: int,
) -> Lease:
    own_ms = job.overrides.lease_ms if request.lease_ms is None else None
    lease_ms = own_ms or source.lease_ms
    headers = {
        **job.headers,
        delivery.ID_HEADER: message.id,
        delivery.URL_HEADER: source.url,
        delivery.HANDLE_HEADER: message.handle,
        delivery.ARN_HEADER: f"{source.stored.arn.rpartition(':')[0]}:{name_of(source.url)}",
        delivery.RECEIVED_HEADER: str(received_at),
    }
    if source.key.is_dead:
        headers[delivery.POISON_HEADER] = "true"
    leased = replace(
        job,
        state=State.LEASED,
        token=token,
        worker=request.worker or None,
        leased_at=now,
        deadline_at=now + lease_ms,
        headers=headers,
    )
    return Lease(job=leased, token=token, lease_ms=lease_ms)

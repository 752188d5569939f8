"""Leases: messages are received, each becomes a job, and one that must not run is buried at once.

SQS has no reaper: it makes a message visible again when its timeout ends. Hence the policy for
overdue and expired jobs is applied here, when such a message is delivered.
"""

from __future__ import annotations

import asyncio
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
from holdfast.engines.sqs.burial import Graveyard
from holdfast.engines.sqs.client import (
    BATCH_MAX,
    POLL_THREADS,
    VISIBILITY_S_MAX,
    WAIT_S_MAX,
    SqsClient,
    SqsMessage,
    name_of,
)
from holdfast.engines.sqs.messages import Burial, DeadAttribute, UnreadableMessage
from holdfast.engines.sqs.polls import HOLD_S, Poll, PollKey, PollSet
from holdfast.engines.sqs.queues import SqsQueues
from holdfast.engines.sqs.settings import StoredQueue, seconds
from holdfast.errors import HoldfastError, NotFound

_log = logging.getLogger("holdfast.sqs")

_PAUSE_S: Final = 1.0
"""Between two looks at queues that are missing or paused."""
_UNWANTED_S_MAX: Final = 60
"""The longest pause of a message whose task the caller does not know."""
_TOKEN_EPOCH_MS: Final = 1_700_000_000_000
_TOKEN_RANDOM_BITS: Final = 12
"""A token fits into 53 bits until 2093."""


class _Source(NamedTuple):
    """A queue to receive from: its messages, or its dead letters."""

    stored: StoredQueue
    key: PollKey
    url: str
    lease_ms: int

    @property
    def most(self) -> int:
        """Messages of one receive. Those of a FIFO queue may all be of one group."""
        return min(self.stored.queue.group_batch, BATCH_MAX) if self.stored.is_fifo else BATCH_MAX

    @property
    def visibility_s(self) -> int:
        """A poll may hold messages until the next call takes it over."""
        return min(max(seconds(self.lease_ms), 1) + HOLD_S, VISIBILITY_S_MAX)


class _Delivered(NamedTuple):
    source: _Source
    received_at: int
    messages: list[SqsMessage]


class _Reception:
    """The messages of one call so far, and how many more it may take."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.delivered: list[_Delivered] = []


class Receiver:
    """Leases jobs of one engine. `bell` rings when settings changed and when the engine closes."""

    def __init__(
        self,
        client: SqsClient,
        catalog: SqsQueues,
        graveyard: Graveyard,
        bell: Bell,
        returns: LeaseReturns,
    ) -> None:
        self._client = client
        self._catalog = catalog
        self._graveyard = graveyard
        self._bell = bell
        self._returns = returns
        self._polls = PollSet(client)
        self.is_open = True

    async def lease(self, request: LeaseRequest) -> list[Lease]:
        """See `Engine`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + request.wait_ms / 1000
        while True:
            ticket = self._bell.ticket
            sources = await self._sources(request)
            delivered = await self._receive(sources, request.limit, max(end - loop.time(), 0.0))
            if delivered:
                leases = await self._kept(self._admit(delivered, request))
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

    async def _sources(self, request: LeaseRequest) -> list[_Source]:
        found: list[_Source] = []
        for name in dict.fromkeys(request.queues):
            stored = await self._catalog.use(name)
            if stored is None or (stored.queue.paused and not request.dead):
                continue
            url = stored.url
            if request.dead:
                if stored.queue.dead_queue is not None:
                    # Its dead letters are in the other queue.
                    continue
                try:
                    url = await self._catalog.dead_url(stored)
                except NotFound:
                    continue
            lease_ms = stored.queue.lease_ms if request.lease_ms is None else request.lease_ms
            found.append(_Source(stored, PollKey(name, request.dead), url, lease_ms))
        return found

    async def _receive(
        self, sources: Sequence[_Source], limit: int, left_s: float
    ) -> list[_Delivered]:
        """Messages of the queues in their order; the wait is for the first that has any. Messages
        are never dropped because a later queue fails or the caller is cancelled."""
        reception = _Reception(limit)
        try:
            await self._fill_reception(reception, sources, min(int(left_s), WAIT_S_MAX))
        except asyncio.CancelledError:
            for source, _, found in reception.delivered:
                self._polls.give_back(source.url, found)
            raise
        except HoldfastError as error:
            if not reception.delivered:
                raise
            _log.warning("some queues could not be received from: %s", error)
        return reception.delivered

    async def _fill_reception(
        self, reception: _Reception, sources: Sequence[_Source], wait_s: int
    ) -> None:
        if len(sources) > 1 or not wait_s:
            for source in sources:
                if reception.room:
                    await self._at_once(reception, source, may_wait=wait_s > 0)
        if sources and wait_s and not reception.delivered:
            await self._first(reception, sources, wait_s)

    async def _at_once(self, reception: _Reception, source: _Source, *, may_wait: bool) -> None:
        """Messages that are there now. If the call may wait, a poll that is still under way stands
        for an empty queue."""
        poll = self._polls.take_ended(source.key)
        if poll is None and may_wait and self._polls.has_free(source.key):
            return
        if poll is None:
            poll = self._begin(source, reception.room, 0)
        await self._ended([poll])
        await self._take(reception, source, poll)

    async def _first(self, reception: _Reception, sources: Sequence[_Source], wait_s: int) -> None:
        """The first answers of long polls on all queues; the other polls are left for later."""
        polls = [
            (source, self._polls.take(source.key) or self._begin(source, reception.room, wait_s))
            for source in sources
        ]
        try:
            while polls and not reception.delivered:
                tasks = [poll.task for _, poll in polls]
                done, _ = await asyncio.wait(
                    tasks, timeout=wait_s + 1, return_when=asyncio.FIRST_COMPLETED
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

    async def _take(self, reception: _Reception, source: _Source, poll: Poll) -> None:
        """The messages of an ended poll and, while all answers are full, of more receives: twice as
        many at the same time in each round."""
        asked, width = poll.limit, 1
        got = self._taken(reception, source, poll)
        while got >= asked and reception.room:
            width = min(width * 2, POLL_THREADS)
            rooms = range(reception.room, 0, -source.most)
            polls = [self._begin(source, room, 0) for room in rooms[:width]]
            await self._ended(polls)
            asked = sum(each.limit for each in polls)
            got = self._all_taken(reception, source, polls)

    def _all_taken(self, reception: _Reception, source: _Source, polls: Sequence[Poll]) -> int:
        """The messages of all polls, before an error of one of them is raised."""
        got, failed = 0, None
        for poll in polls:
            try:
                got += self._taken(reception, source, poll)
            except HoldfastError as error:
                failed = error
        if failed is not None:
            raise failed
        return got

    async def _ended(self, polls: Sequence[Poll]) -> None:
        """Wait for polls. If the caller is cancelled, the next one may take them."""
        try:
            await asyncio.wait([poll.task for poll in polls])
        except asyncio.CancelledError:
            for poll in polls:
                self._polls.leave(poll)
            raise

    def _begin(self, source: _Source, limit: int, wait_s: int) -> Poll:
        return self._polls.begin(
            source.key,
            source.url,
            limit=min(source.most, limit),
            wait_s=wait_s,
            visibility_s=source.visibility_s,
        )

    def _taken(self, reception: _Reception, source: _Source, poll: Poll) -> int:
        """Receive the messages of an ended poll; how many. Those without room are given back: the
        poll began for a call that wanted more."""
        self._polls.end(poll)
        if poll.task.cancelled():
            return 0
        try:
            found = poll.task.result()
        except NotFound:
            self._catalog.forget(source.stored.queue.name)
            return 0
        room = reception.room
        self._polls.give_back(poll.url, found[room:])
        if found[:room]:
            reception.delivered.append(_Delivered(source, poll.began_at, found[:room]))
            reception.room -= len(found[:room])
        return len(found)

    async def _kept(self, admitting: Awaitable[list[Lease]]) -> list[Lease]:
        """The leases, which are given back if the caller is cancelled meanwhile."""
        task = asyncio.ensure_future(admitting)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._returns.begin(task)
            raise

    async def _admit(self, delivered: Sequence[_Delivered], request: LeaseRequest) -> list[Lease]:
        leases: list[Lease] = []
        for source, received_at, found in delivered:
            leases += await self._admit_from(source, received_at, found, request)
        return leases

    async def _admit_from(
        self,
        source: _Source,
        received_at: int,
        found: Sequence[SqsMessage],
        request: LeaseRequest,
    ) -> list[Lease]:
        now = self._client.now_ms()
        leases: list[Lease] = []
        longer: list[tuple[str, int]] = []
        burials: list[Burial] = []
        stored = await self._catalog.find(source.stored.queue.name) or source.stored
        for message in found:
            job = self._read(source, message, now, burials)
            if job is None:
                continue
            paused = stored.queue.paused and not request.dead
            unwanted = request.tasks is not None and job.task not in request.tasks
            if paused or unwanted:
                pause_s = min(2 ** min(messages.receive_count(message), 6), _UNWANTED_S_MAX)
                self._polls.give_back(source.url, [message], pause_s)
                continue
            lease = _lease_of(job, message, source, received_at, now, request)
            if seconds(lease.lease_ms) > source.visibility_s:
                longer.append((message.handle, seconds(lease.lease_ms)))
            leases.append(lease)
        await self._bury(source, burials)
        if longer:
            await self._client.change_visibility(source.url, longer)
        return leases

    def _read(
        self, source: _Source, message: SqsMessage, now: int, burials: list[Burial]
    ) -> Job | None:
        """The job of a message; None if it is to be buried."""
        if source.key.is_dead:
            arn = message.system.get("DeadLetterQueueSourceArn", "")
            return messages.read_dead_letter(message, source.stored, self._catalog.source(arn))
        job = None
        try:
            job = messages.read_message(message, source.stored)
        except UnreadableMessage as error:
            failure = Failure(message=f"the message is not a job: {error}")
            verdict = Bury(Reason.REJECTED, failure)
        else:
            decided = verdict_at_delivery(source.stored, job, now)
            if decided is None:
                return job
            verdict = decided
        count = messages.receive_count(message)
        dead = DeadAttribute(
            reason=verdict.reason,
            failure=verdict.failure,
            queue=source.stored.queue.name,
            attempt=count - 1,
            message_id=message.id,
            sent_at=messages.sent_at_of(message),
            died_at=now,
        )
        burials.append(messages.burial_of(message, source.stored, job, dead))
        return None

    async def _bury(self, source: _Source, burials: Sequence[Burial]) -> None:
        """A letter that cannot be sent leaves its message in the queue: it is delivered again."""
        if not burials:
            return
        try:
            answers: Sequence[HoldfastError | None] = await self._graveyard.bury(
                source.stored, burials
            )
        except HoldfastError as error:
            answers = [error] * len(burials)
        for burial, answer in zip(burials, answers, strict=True):
            if answer is not None:
                _log.warning("message %s cannot be buried: %s", burial.dead.message_id, answer)


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
    source: _Source,
    received_at: int,
    now: int,
    request: LeaseRequest,
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
    token = _token(now)
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


def _token(now: int) -> int:
    """Grows with every lease of a job, by the clock of the service."""
    return (now - _TOKEN_EPOCH_MS) << _TOKEN_RANDOM_BITS | secrets.randbits(_TOKEN_RANDOM_BITS)

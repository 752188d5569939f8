"""Ends and extends leases: the message of each is deleted, hidden for longer, or sent elsewhere.

Everything that an ended lease produces is sent before its message is deleted. Killed in between,
the message is delivered again: nothing is lost, and what was sent may be there twice.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, assert_never

from msgspec.structs import replace

from holdfast.core import bounds, checks, retry_policy
from holdfast.core.model import Job, Lease, NewJob, Receipt, Renewal, Status
from holdfast.core.verdict import (
    Bury,
    Complete,
    Forward,
    Outcome,
    Release,
    Retry,
    Settlement,
    Verdict,
)
from holdfast.engines.sqs import delivery, messages
from holdfast.engines.sqs.client import VISIBILITY_S_MAX, SqsClient
from holdfast.engines.sqs.messages import Burial, DeadAttribute
from holdfast.engines.sqs.mover import SqsMessageMover
from holdfast.engines.sqs.queues import SqsQueues
from holdfast.engines.sqs.settings import StoredQueue, seconds
from holdfast.errors import (
    EngineUnavailable,
    HoldfastError,
    InvalidJob,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    PayloadTooLarge,
    UsageError,
)

HELD_MS_MAX: Final = VISIBILITY_S_MAX * bounds.SECOND_MS
"""SQS hides a message for twelve hours from its receipt at most."""
_MARGIN_MS: Final = bounds.SECOND_MS

EnqueueFollowUps: TypeAlias = Callable[[Sequence[NewJob]], Awaitable[list[Receipt]]]
Answers: TypeAlias = dict[int, Any]
"""By their positions in the call: an outcome or a renewed lease, or the error instead."""


class _LeasedMessage(NamedTuple):
    """A lease with the facts of its message."""

    at: int
    lease: Lease
    stored: StoredQueue
    url: str
    handle: str
    left_ms: int
    """How much longer SQS may hide the message."""

    @property
    def job(self) -> Job:
        return self.lease.job

    @property
    def message_id(self) -> str:
        return self.job.headers.get(delivery.ID_HEADER, "")


class SqsSettler:
    """Settles and renews the leases of one engine."""

    def __init__(
        self,
        client: SqsClient,
        catalog: SqsQueues,
        mover: SqsMessageMover,
        enqueue: EnqueueFollowUps,
    ) -> None:
        self._client = client
        self._catalog = catalog
        self._mover = mover
        self._enqueue = enqueue

    async def renew(self, renewals: Sequence[Renewal]) -> list[Lease | None]:
        """See `Engine`. A lease that SQS cannot extend is lost, also twelve hours after the message
        was received."""
        answers: Answers = {}
        held = await self._held([each.lease for each in renewals], answers, lost=None)
        now = self._client.now_ms()
        changes: dict[str, list[tuple[_LeasedMessage, int]]] = defaultdict(list)
        for each in held:
            wanted_ms = renewals[each.at].lease_ms
            lease_ms = each.lease.lease_ms if wanted_ms is None else wanted_ms
            left_ms = each.left_ms - _MARGIN_MS
            if left_ms < bounds.SECOND_MS:
                answers[each.at] = None
                continue
            lease_ms = min(lease_ms, left_ms)
            job = replace(each.job, deadline_at=now + lease_ms)
            answers[each.at] = replace(each.lease, job=job, lease_ms=lease_ms)
            changes[each.url].append((each, seconds(lease_ms)))
        await _together(self._change(url, part, answers, None) for url, part in changes.items())
        return _answered(answers, len(renewals))

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        """See `Engine`."""
        answers: Answers = {}
        await self._refuse(settlements, answers)
        await self._send_follow_ups(settlements, answers)
        leases = [each.lease for each in settlements]
        held = await self._held(leases, answers, lost=Outcome.LOST)
        deletes: dict[str, list[_LeasedMessage]] = defaultdict(list)
        changes: dict[str, list[tuple[_LeasedMessage, int]]] = defaultdict(list)
        burials: dict[str, list[_LeasedMessage]] = defaultdict(list)
        forwards: dict[tuple[str, str], list[_LeasedMessage]] = defaultdict(list)
        repeats: dict[str, list[tuple[_LeasedMessage, int]]] = defaultdict(list)
        for each in held:
            verdict = settlements[each.at].verdict
            match verdict:
                case Complete():
                    deletes[each.url].append(each)
                case Forward(queue=queue):
                    forwards[each.url, queue].append(each)
                case Bury() if not each.job.is_dead_letter:
                    burials[each.stored.queue.name].append(each)
                case Release(unstarted=True) if _would_die(each):
                    repeats[each.url].append((each, _pause_s(verdict, each)))
                case Retry() | Release() | Bury():
                    changes[each.url].append((each, _pause_s(verdict, each)))
                case never:
                    assert_never(never)
        await _together(
            [
                *(self._delete(url, part, answers) for url, part in deletes.items()),
                *(
                    self._change(url, part, answers, Outcome.SETTLED)
                    for url, part in changes.items()
                ),
                *(self._repeat(url, part, answers) for url, part in repeats.items()),
                *(self._bury(part, settlements, answers) for part in burials.values()),
                *(self._forward(url, to, part, answers) for (url, to), part in forwards.items()),
            ]
        )
        return _answered(answers, len(settlements))

    async def _refuse(self, settlements: Sequence[Settlement], answers: Answers) -> None:
        """Verdicts out of bounds, and those that name queues that do not exist."""
        names = {name for each in settlements for name in _queues_of(each.verdict)}
        found = {name for name in names if await self._exists(name)}
        for at, settlement in enumerate(settlements):
            if not checks.is_acceptable(settlement, found):
                answers[at] = Outcome.REFUSED

    async def _exists(self, name: str) -> bool:
        return await self._catalog.use(name) is not None

    async def _send_follow_ups(self, settlements: Sequence[Settlement], answers: Answers) -> None:
        then: list[tuple[int, NewJob]] = [
            (at, job)
            for at, settlement in enumerate(settlements)
            if isinstance(settlement.verdict, Complete) and at not in answers
            for job in settlement.verdict.then
        ]
        for begin in range(0, len(then), bounds.BATCH_MAX):
            part = then[begin : begin + bounds.BATCH_MAX]
            try:
                receipts = dict(enumerate(await self._enqueue([job for _, job in part])))
                error: HoldfastError | None = None
            except OutcomeUnknown as unknown:
                receipts, error = unknown.known, unknown
            except EngineUnavailable as unavailable:
                receipts, error = {}, unavailable
            for number, (at, _) in enumerate(part):
                receipt = receipts.get(number)
                if receipt is None:
                    assert error is not None
                    answers[at] = error
                elif receipt.status is Status.REFUSED:
                    answers[at] = Outcome.REFUSED

    async def _held(
        self, leases: Sequence[Lease], answers: Answers, *, lost: Outcome | None
    ) -> list[_LeasedMessage]:
        """The leases that have no answer yet. One that is not of this engine, or whose queue is
        gone, is lost."""
        found: list[_LeasedMessage] = []
        now = self._client.now_ms()
        for at, lease in enumerate(leases):
            if at in answers:
                continue
            job = lease.job
            handle = job.headers.get(delivery.HANDLE_HEADER)
            stored = await self._catalog.find(job.queue) if handle else None
            if handle is None or stored is None:
                answers[at] = lost
                continue
            url = stored.url
            if job.is_dead_letter:
                try:
                    url = await self._catalog.dead_url(stored)
                except NotFound:
                    answers[at] = lost
                    continue
            left_ms = _received_at(job, now) + HELD_MS_MAX - now
            found.append(_LeasedMessage(at, lease, stored, url, handle, left_ms))
        return found

    async def _delete(self, url: str, part: Sequence[_LeasedMessage], answers: Answers) -> None:
        told = await self._client.delete(url, [each.handle for each in part])
        self._note(part, told, answers)

    async def _change(
        self,
        url: str,
        part: Sequence[tuple[_LeasedMessage, int]],
        answers: Answers,
        settled: Outcome | None,
    ) -> None:
        """Hide messages for so many seconds from now. `settled` is None for a renewal."""
        told = await self._client.change_visibility(
            url, [(each.handle, pause_s) for each, pause_s in part]
        )
        held = [each for each, _ in part]
        if settled is not None:
            return self._note(held, told, answers)
        for each, error in zip(held, told, strict=True):
            if error is not None:
                answers[each.at] = None if _is_lost(error) else _retriable(error)
        return None

    async def _repeat(
        self, url: str, part: Sequence[tuple[_LeasedMessage, int]], answers: Answers
    ) -> None:
        """Send messages again, hidden for so many seconds, and then delete them."""
        held = [each for each, _ in part]
        outgoing = [
            messages.repeat_message(
                each.job, each.stored, delay_s=min(pause_s, messages.DELAY_S_MAX)
            )
            for each, pause_s in part
        ]
        handles = [each.handle for each in held]
        self._note(held, await self._mover.move(url, url, outgoing, handles), answers)

    async def _bury(
        self, part: Sequence[_LeasedMessage], settlements: Sequence[Settlement], answers: Answers
    ) -> None:
        now = self._client.now_ms()
        burials: list[Burial] = []
        for each in part:
            verdict = settlements[each.at].verdict
            assert isinstance(verdict, Bury)
            letter = messages.rewrite_message(each.job, each.stored)
            dead = DeadAttribute(
                reason=verdict.reason,
                failure=verdict.failure,
                queue=each.job.queue,
                attempt=each.job.attempt,
                message_id=each.message_id,
                sent_at=each.job.due_at,
                died_at=now,
            )
            burials.append(Burial(each.handle, letter, dead))
        try:
            told = await self._mover.bury(part[0].stored, burials)
        except NotFound as error:
            told = [EngineUnavailable(str(error))] * len(part)
        self._note(part, told, answers)

    async def _forward(
        self, url: str, queue: str, part: Sequence[_LeasedMessage], answers: Answers
    ) -> None:
        target = await self._catalog.find(queue)
        if target is None:
            answers |= {each.at: Outcome.REFUSED for each in part}
            return
        outgoing = [
            messages.rewrite_message(
                _forwarded(each.job),
                target,
                deduplication_id=messages.delivery_id(each.message_id, each.job.attempt),
            )
            for each in part
        ]
        handles = [each.handle for each in part]
        told = await self._mover.move(target.url, url, outgoing, handles)
        self._note(part, told, answers)

    def _note(
        self, part: Sequence[_LeasedMessage], told: Sequence[HoldfastError | None], answers: Answers
    ) -> None:
        for each, error in zip(part, told, strict=True):
            if error is None:
                answers[each.at] = Outcome.SETTLED
            else:
                if isinstance(error, NotFound):
                    self._catalog.forget(each.stored.queue.name)
                answers[each.at] = Outcome.LOST if _is_lost(error) else _outcome(error)


async def _together(parts: Any) -> None:
    await asyncio.gather(*parts)


def _answered(answers: Answers, count: int) -> list[Any]:
    """The answers in order. Raises if one is an error: EngineUnavailable if every one says that
    nothing was changed, otherwise OutcomeUnknown with the answers that are known."""
    errors = [each for each in answers.values() if isinstance(each, HoldfastError)]
    if not errors:
        return [answers[at] for at in range(count)]
    for error in errors:
        if not isinstance(error, EngineUnavailable) or len(errors) < count:
            known = {
                at: each for at, each in answers.items() if not isinstance(each, HoldfastError)
            }
            raise OutcomeUnknown(str(error), known=known) from error
    raise errors[0]


def _is_lost(error: HoldfastError) -> bool:
    return isinstance(error, LeaseLost | NotFound)


def _outcome(error: HoldfastError) -> Outcome | HoldfastError:
    """SQS does not take the message that the verdict sends; or the error, to try again."""
    if isinstance(error, InvalidJob | PayloadTooLarge):
        return Outcome.REFUSED
    return _retriable(error)


def _retriable(error: HoldfastError) -> HoldfastError:
    """Credentials and policies can be corrected while a worker runs: it goes on trying."""
    return EngineUnavailable(str(error)) if isinstance(error, UsageError) else error


def _queues_of(verdict: Verdict) -> list[str]:
    match verdict:
        case Complete(then=then):
            return [job.queue for job in then]
        case Forward(queue=queue):
            return [queue]
        case _:
            return []


def _would_die(held: _LeasedMessage) -> bool:
    """Whether the next delivery of the message would bury its job. SQS counts each receive, and
    only a message that is sent again starts anew, which a FIFO queue's must not."""
    is_plain = not held.stored.is_fifo and not held.job.is_dead_letter
    return is_plain and retry_policy.exhausted(held.stored.queue, held.job)


def _pause_s(verdict: Retry | Release | Bury, held: _LeasedMessage) -> int:
    """How long a message is hidden before its next delivery; a dead letter that is buried again is
    visible at once."""
    delay_ms = 0 if isinstance(verdict, Bury) else verdict.delay_ms
    left_s = max(held.left_ms - _MARGIN_MS, 0) // bounds.SECOND_MS
    return min(seconds(delay_ms), left_s)


def _forwarded(job: Job) -> Job:
    """The job in its new queue. A dead letter that expired must not die again at once."""
    expires_at = None if job.is_dead_letter else job.expires_at
    return replace(job, origin=job.queue, expires_at=expires_at)


def _received_at(job: Job, now: int) -> int:
    text = job.headers.get(delivery.RECEIVED_HEADER, "")
    return min(int(text), now) if text.isdecimal() and len(text) < 20 else now

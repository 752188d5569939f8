"""An outlet: jobs become messages of a broker, and are completed once the broker has stored them.

A message that the broker refuses is a failure of the job's attempt, with the retries of its queue.
If it is not known whether the broker has stored a message, the job is released and published again.
Afterwards jobs are published one by one for a while: a message that breaks the connection must not
take others with it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from holdfast.core import bounds
from holdfast.core.model import Failure, Job, Lease, LeaseRequest, Queue, Renewal
from holdfast.core.retry_policy import after_failure
from holdfast.core.verdict import Complete, Release, Settlement, Verdict
from holdfast.engines.base import Engine
from holdfast.engines.broker import BrokerLink, Message, Published
from holdfast.errors import EngineError, EngineUnavailable, InvalidJob, UsageError
from holdfast.gates.link import HELD_MS, LinkFailed, linked, missing_queue, repeated
from holdfast.notation.templates import expand
from holdfast.ops.gates import Gate
from holdfast.ops.queues import find_queue

_log = logging.getLogger("holdfast.gates")

WAIT_MS: Final = bounds.SECOND_MS
_UNCONFIRMED_MS = bounds.SECOND_MS
_UNCONFIRMED_MAX = 3
"""Publishes of unknown outcome that do not count as attempts of the job."""
_CANCEL_S = 1.0
_PRIORITY_MAX = 255
_NAME_BYTES_MAX = 255
_ORIGIN = "gate."


class _Parcel(NamedTuple):
    """A leased job and its message; without one, `why` says why there is none."""

    lease: Lease
    message: Message | None
    why: str = ""


class Outlet:
    """Publishes the jobs of a gate's queue. `held` is why it publishes none; "" while it does."""

    def __init__(
        self,
        engine: Engine,
        gate: Gate,
        link: BrokerLink,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.held: str = ""
        self.counts: Counter[str] = Counter()
        self._engine = engine
        self._gate = gate
        self._link = link
        self._draw = draw
        self._limit = gate.prefetch
        self._unsettled: list[Settlement] = []

    async def once(self) -> int:
        """Move one batch; the time to wait before the next."""
        await self._settle([])
        view = await find_queue(self._engine, self._gate.queue)
        if view is None:
            self.held = missing_queue(self._gate.queue)
            return HELD_MS
        self.held = f"queue {self._gate.queue} is paused" if view.queue.paused else ""
        request = LeaseRequest(
            queues=(self._gate.queue,),
            limit=self._limit,
            worker=f"gate {self._gate.name}",
            wait_ms=WAIT_MS,
        )
        leases = await self._engine.lease(request)
        if leases:
            await self._move(leases, view.queue)
        return 0

    async def _move(self, leases: Sequence[Lease], queue: Queue) -> None:
        """Publish the jobs of these leases, and settle them by the answers of the broker. The next
        job of a group is released until the one before it is published; it is kept if a release
        would cost it an attempt."""
        firsts, others = _firsts_of_groups(leases)
        parcels = [self._parcel(lease) for lease in firsts]
        messages = [each.message for each in parcels if each.message is not None]
        waits = Release("the job before it in its group is published first", unstarted=True)
        released = [Settlement(lease=lease, verdict=waits) for lease in others]
        try:
            answers = await self._publish(messages, leases)
        except LinkFailed as error:
            unknown = Published(error=str(error), is_unknown=True)
            settlements = released + self._verdicts(parcels, [unknown] * len(messages), queue)
            with suppress(EngineError):
                await self._settle(settlements)
            raise
        except asyncio.CancelledError:
            stopped = Release("the gate is stopping", unstarted=True)
            released += [Settlement(lease=each.lease, verdict=stopped) for each in parcels]
            await asyncio.shield(self._settle(released))
            raise
        settlements = self._verdicts(parcels, answers, queue)
        unsent = next((answer.error for answer in answers if answer.is_unsent), None)
        kept: list[Lease] = []
        if unsent is None and not self._engine.traits.refunds:
            done = {
                each.lease.job.group for each in settlements if isinstance(each.verdict, Complete)
            }
            kept = [lease for lease in others if lease.job.group in done]
        settlements += [each for each in released if each.lease not in kept]
        await self._settle(settlements)
        if unsent is not None:
            raise LinkFailed(EngineUnavailable(unsent))
        if kept:
            await self._renew(kept)
            await self._move(kept, queue)

    def _parcel(self, lease: Lease) -> _Parcel:
        try:
            return _Parcel(lease, job_message(self._gate, lease.job))
        except UsageError as error:
            return _Parcel(lease, None, str(error))

    async def _publish(
        self, messages: Sequence[Message], leases: Sequence[Lease]
    ) -> list[Published]:
        """Publish, and renew the leases as long as it takes."""
        if not messages:
            return []
        publish = asyncio.ensure_future(self._link.publish(messages))
        every_s = min(lease.lease_ms for lease in leases) / 3000
        try:
            while not (await asyncio.wait({publish}, timeout=every_s))[0]:
                self.held = "the broker has not confirmed its messages yet"
                await self._renew(leases)
        except BaseException:
            publish.cancel()
            await asyncio.wait({publish}, timeout=_CANCEL_S)
            raise
        self.held = ""
        return await linked(publish)

    async def _renew(self, leases: Sequence[Lease]) -> None:
        """A lease that is lost, or that the store cannot renew, may be published again."""
        try:
            await self._engine.renew([Renewal(lease=lease) for lease in leases])
        except EngineError as error:
            _log.debug("gate %s cannot renew its leases: %s", self._gate.name, error)

    def _verdicts(
        self, parcels: Sequence[_Parcel], answers: Sequence[Published], queue: Queue
    ) -> list[Settlement]:
        """The verdict on each job. After an unknown outcome the next batch is a single job, and
        each success doubles it."""
        left = iter(answers)
        found = []
        for parcel in parcels:
            answer = Published(error=parcel.why) if parcel.message is None else next(left)
            verdict = self._verdict(parcel.lease.job, answer, queue)
            found.append(Settlement(lease=parcel.lease, verdict=verdict))
        if any(answer.is_unknown or answer.is_unsent for answer in answers):
            self._limit = 1
        elif answers:
            self._limit = min(self._limit * 2, self._gate.prefetch)
        return found

    def _verdict(self, job: Job, answer: Published, queue: Queue) -> Verdict:
        if not answer.error:
            self.counts["published"] += 1
            return Complete()
        if answer.is_unsent:
            return Release(f"not sent: {answer.error}", delay_ms=_UNCONFIRMED_MS, unstarted=True)
        if answer.is_unknown and job.releases < _UNCONFIRMED_MAX:
            return Release(f"not confirmed: {answer.error}", delay_ms=_UNCONFIRMED_MS)
        self.counts["failed"] += 1
        failure = Failure(type="NotPublished", message=f"gate {self._gate.name}: {answer.error}")
        return after_failure(queue, job, failure, self._draw())

    async def _settle(self, settlements: Sequence[Settlement]) -> None:
        """Settle these and those that an earlier call could not. Repeating it is harmless."""
        self._unsettled += settlements
        for start in range(0, len(self._unsettled), bounds.BATCH_MAX):
            batch = self._unsettled[start : start + bounds.BATCH_MAX]
            await repeated(partial(self._engine.settle, batch))
        self._unsettled = []


def job_message(gate: Gate, job: Job) -> Message:
    """The message for a job that was just leased. Raises UsageError if the job lacks what the
    template needs, or has what no message can have."""

    def find(name: str) -> str | None:
        return job_field(job, name)

    routing_key = expand(gate.routing_key, find)
    headers = {name: text for name, text in job.headers.items() if not name.startswith(_ORIGIN)}
    for name, text in [("routing key", routing_key), *(("header name", each) for each in headers)]:
        if len(text.encode()) > _NAME_BYTES_MAX:
            raise InvalidJob(f"{name} {text[:80]!r}… is over {_NAME_BYTES_MAX} bytes")
    left_ms = None
    if job.expires_at is not None and job.leased_at is not None:
        left_ms = max(1, job.expires_at - job.leased_at)
    return Message(
        body=job.payload,
        content_type=job.content_type,
        message_id=job.id,
        correlation_id=job.headers.get("gate.correlation_id"),
        content_encoding=job.headers.get("gate.content_encoding"),
        type=job.headers.get("gate.type"),
        reply_to=job.headers.get("gate.reply_to"),
        headers=headers,
        priority=min(job.priority, _PRIORITY_MAX) if job.priority > 0 else None,
        expires_ms=left_ms,
        exchange=gate.exchange,
        routing_key=routing_key,
        group=job.group,
        tenant=job.tenant,
    )


def job_field(job: Job, name: str) -> str | None:
    """The value of a template's placeholder."""
    first, dot, rest = name.partition(".")
    if dot:
        return {"header": job.headers, "label": job.labels}.get(first, {}).get(rest)
    value: str | None = getattr(job, name, None)
    return value


def _firsts_of_groups(leases: Sequence[Lease]) -> tuple[list[Lease], list[Lease]]:
    """The jobs without a group and the first of each group; and the others."""
    groups: set[str] = set()
    firsts: list[Lease] = []
    others: list[Lease] = []
    for lease in leases:
        group = lease.job.group
        (others if group in groups else firsts).append(lease)
        if group is not None:
            groups.add(group)
    return firsts, others

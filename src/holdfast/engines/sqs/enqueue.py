"""Sends jobs: each queue's in batches of ten, several at a time, and each answered by itself."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from holdfast.core import checks, lifecycle
from holdfast.core.model import NewJob, Queue, Receipt, Status
from holdfast.engines.sqs import messages
from holdfast.engines.sqs.client import OutgoingSqsMessage, SqsClient
from holdfast.engines.sqs.queues import SqsQueues
from holdfast.engines.sqs.settings import StoredQueue
from holdfast.errors import (
    ConfigError,
    EngineError,
    EngineUnavailable,
    HoldfastError,
    NotFound,
    OutcomeUnknown,
    Unsupported,
    UsageError,
)


class Sender:
    """Enqueues jobs of one engine."""

    def __init__(self, client: SqsClient, catalog: SqsQueues) -> None:
        self._client = client
        self._catalog = catalog

    async def enqueue(self, jobs: Sequence[NewJob], *, follow_ups: bool = False) -> list[Receipt]:
        """See `Engine`. Follow-ups enter a queue that does not accept jobs, too."""
        answers: dict[int, Receipt | HoldfastError] = {}
        found = await self._queues(jobs)
        outgoing: dict[str, list[tuple[int, OutgoingSqsMessage]]] = defaultdict(list)
        for at, job in enumerate(jobs):
            stored = found.get(job.queue)
            try:
                message = self._checked(job, stored, follow_ups=follow_ups)
            except UsageError as error:
                answers[at] = checks.refusal(job.id, error)
            else:
                outgoing[job.queue].append((at, message))
        sends = (self._send(found[name], part, jobs, answers) for name, part in outgoing.items())
        await asyncio.gather(*sends)
        return _receipts(answers, len(jobs))

    async def _queues(self, jobs: Sequence[NewJob]) -> dict[str, StoredQueue]:
        names = list(dict.fromkeys(job.queue for job in jobs))
        found = await asyncio.gather(*(self._queue(name) for name in names))
        return {name: each for name, each in zip(names, found, strict=True) if each is not None}

    async def _queue(self, name: str) -> StoredQueue | None:
        try:
            checks.check_queue_name(name)
            return await self._catalog.use(name)
        except ConfigError:
            raise
        except UsageError:
            # A name that no queue can have; the check of the job says so.
            return None

    def _checked(
        self, job: NewJob, stored: StoredQueue | None, *, follow_ups: bool
    ) -> OutgoingSqsMessage:
        queue = checks.check_new(job, Queue(name=job.queue) if stored is None else stored.queue)
        if stored is None:
            self._catalog.check_name(job.queue)
            raise checks.unknown_queue(job.queue)
        if not follow_ups:
            checks.check_room(queue, 0)
        if stored.is_fifo and job.delay_ms:
            remedy = "leave out the delay, or use a queue whose name does not end in .fifo"
            raise Unsupported("sqs", "a delay in a FIFO queue", remedy)
        admitted = lifecycle.admit(job, 0, self._client.now_ms())
        return messages.write_message(admitted, stored, delay_ms=job.delay_ms)

    async def _send(
        self,
        stored: StoredQueue,
        part: Sequence[tuple[int, OutgoingSqsMessage]],
        jobs: Sequence[NewJob],
        answers: dict[int, Receipt | HoldfastError],
    ) -> None:
        told = await self._client.send(stored.url, [message for _, message in part])
        for (at, _), one in zip(part, told, strict=True):
            id_ = jobs[at].id
            if isinstance(one, str):
                answers[at] = Receipt(id=id_, status=Status.NEW)
            elif isinstance(one, NotFound):
                self._catalog.forget(stored.queue.name)
                answers[at] = checks.refusal(id_, checks.unknown_queue(stored.queue.name))
            elif isinstance(one, UsageError) and not isinstance(one, ConfigError):
                answers[at] = checks.refusal(id_, one)
            else:
                answers[at] = one


def _receipts(answers: dict[int, Receipt | HoldfastError], count: int) -> list[Receipt]:
    """The receipts. If one is missing, the known ones are in the error: EngineUnavailable or
    ConfigError only if no job was sent."""
    known = {at: one for at, one in answers.items() if isinstance(one, Receipt)}
    if len(known) == count:
        return [known[at] for at in range(count)]
    errors = [one for one in answers.values() if isinstance(one, HoldfastError)]
    sent = any(one.status is not Status.REFUSED for one in known.values())
    for error in errors:
        if sent or (isinstance(error, EngineError) and not isinstance(error, EngineUnavailable)):
            raise OutcomeUnknown(str(error), known=known) from error
    raise errors[0]

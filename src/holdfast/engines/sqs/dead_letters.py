"""The dead-letter queues of one prefix: sampled, moved back by SQS itself, and purged.

A sample receives messages and makes them visible again. That costs each of them one more receive,
which `ApproximateReceiveCount` shows; a dead-letter queue has no redrive policy of its own, so
nothing follows from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Final

from holdfast.core import checks
from holdfast.core.model import Job
from holdfast.engines.extras import DeadLetterMove
from holdfast.engines.sqs import messages
from holdfast.engines.sqs.client import BATCH_MAX, SqsClient, SqsMessage, name_of
from holdfast.engines.sqs.queues import SqsQueues
from holdfast.engines.sqs.settings import StoredQueue
from holdfast.errors import NotFound, Unsupported, UsageError

_HIDDEN_S: Final = 30
"""Messages that a killed sampler received are visible again after so long."""
_EMPTY_MAX: Final = 2
"""A short poll asks only some of the servers of a queue: one empty answer proves nothing."""
_STATES: Final = {
    "RUNNING": "running",
    "CANCELLING": "running",
    "COMPLETED": "finished",
    "CANCELLED": "cancelled",
}


class DeadLetterStore:
    """The dead letters of one engine."""

    def __init__(self, client: SqsClient, catalog: SqsQueues) -> None:
        self._client = client
        self._catalog = catalog

    async def sample(self, queues: Collection[str] | None, limit: int) -> list[Job]:
        """See `DeadLetterQueues`."""
        found: list[Job] = []
        for stored in await self._holders(queues):
            if len(found) >= limit:
                break
            found += await self._sample(stored, limit - len(found))
        return found

    async def move(self, queue: str, rate: int | None) -> DeadLetterMove:
        """See `DeadLetterQueues`."""
        stored = await self._holder(queue)
        url = await self._catalog.dead_url(stored)
        sources = await self._client.dead_letter_sources(url)
        if len(sources) > 1:
            names = ", ".join(
                sorted(self._catalog.source(each) or name_of(each) for each in sources)
            )
            remedy = (
                f"they come from {names}: put them back with @app.on_dead_letter({queue!r}), or"
                " give each queue a dead-letter queue of its own"
            )
            raise Unsupported("sqs", f"moving the dead letters of queue {queue} back", remedy)
        if not sources:
            raise UsageError(
                f"no queue on SQS sends its dead letters to {name_of(url)}, so SQS does not move"
                " them back: set a redrive policy, or change a setting of the queue, e.g. holdfast"
                f" queue update {queue} --max-attempts 10, which sets it"
            )
        # Letters that Holdfast sent have no source that SQS knows: the destination is always named.
        told = await self._client.attributes(sources[0], ("QueueArn",))
        await self._client.start_move(await self._arn(url), told["QueueArn"], rate)
        found = await self._last_move(stored)
        return found or DeadLetterMove(
            queue=queue, state="running", moved=0, left=0, started_at=self._client.now_ms()
        )

    async def moves(self, queues: Collection[str] | None) -> list[DeadLetterMove]:
        """See `DeadLetterQueues`."""
        holders = await self._holders(queues)
        found = await asyncio.gather(*map(self._last_move, holders))
        return [each for each in found if each is not None]

    async def cancel(self, queue: str) -> DeadLetterMove | None:
        """See `DeadLetterQueues`."""
        stored = await self._holder(queue)
        tasks = await self._tasks(stored)
        if tasks and tasks[0].get("TaskHandle") and tasks[0].get("Status") == "RUNNING":
            await self._client.cancel_move(str(tasks[0]["TaskHandle"]))
        return await self._last_move(stored)

    async def purge(self, queue: str) -> None:
        """See `DeadLetterQueues`."""
        stored = await self._holder(queue)
        await self._client.purge(await self._catalog.dead_url(stored))

    async def _holder(self, queue: str) -> StoredQueue:
        """The queue, if its dead letters are in a queue of their own."""
        stored = await self._catalog.find(queue)
        if stored is None:
            raise checks.unknown_queue(queue)
        if stored.queue.dead_queue is not None:
            raise UsageError(
                f"queue {queue} has its dead letters in the queue {stored.queue.dead_queue}: name"
                " that one"
            )
        return stored

    async def _holders(self, queues: Collection[str] | None) -> list[StoredQueue]:
        """Those of these queues, or of all, that have a dead-letter queue of their own."""
        if queues is not None:
            return [await self._holder(name) for name in sorted(queues)]
        views = await self._catalog.views(None, counts=False)
        names = [view.queue.name for view in views if view.queue.dead_queue is None]
        found = await asyncio.gather(*map(self._catalog.find, names))
        return [each for each in found if each is not None]

    async def _sample(self, stored: StoredQueue, limit: int) -> list[Job]:
        try:
            url = await self._catalog.dead_url(stored)
        except NotFound:
            return []
        received: dict[str, SqsMessage] = {}
        try:
            await self._receive(url, limit, received)
        except NotFound:
            return []
        finally:
            # Otherwise they become visible when their timeout ends.
            changes = [(message.handle, 0) for message in received.values()]
            if changes:
                await asyncio.shield(self._client.change_visibility(url, changes))
        return [self._letter(stored, message) for message in received.values()]

    async def _receive(self, url: str, limit: int, received: dict[str, SqsMessage]) -> None:
        """Receive distinct messages until there are enough, or no more."""
        empty = 0
        while len(received) < limit and empty < _EMPTY_MAX:
            most = min(limit - len(received), BATCH_MAX)
            found = await self._client.receive(url, limit=most, visibility_s=_HIDDEN_S)
            fresh = {message.id: message for message in found if message.id not in received}
            empty = 0 if fresh else empty + 1
            received |= {message.id: message for message in found}

    def _letter(self, stored: StoredQueue, message: SqsMessage) -> Job:
        arn = message.system.get("DeadLetterQueueSourceArn", "")
        return messages.read_dead_letter(message, stored, self._catalog.source(arn))

    async def _arn(self, url: str) -> str:
        return (await self._client.attributes(url, ("QueueArn",)))["QueueArn"]

    async def _tasks(self, stored: StoredQueue) -> Sequence[dict[str, Any]]:
        """The last move tasks of a queue, newest first."""
        try:
            url = await self._catalog.dead_url(stored)
            return await self._client.list_moves(await self._arn(url))
        except NotFound:
            return ()

    async def _last_move(self, stored: StoredQueue) -> DeadLetterMove | None:
        tasks = await self._tasks(stored)
        return read_move(stored.queue.name, tasks[0]) if tasks else None


def read_move(queue: str, task: dict[str, Any]) -> DeadLetterMove:
    """A move task as SQS lists it."""
    moved = _number(task.get("ApproximateNumberOfMessagesMoved"))
    to_move = _number(task.get("ApproximateNumberOfMessagesToMove"))
    state: Any = _STATES.get(str(task.get("Status")), "failed")
    return DeadLetterMove(
        queue=queue,
        state=state,
        moved=moved,
        left=max(0, to_move - moved) if state == "running" else 0,
        started_at=_number(task.get("StartedTimestamp")),
        rate=_number(task.get("MaxNumberOfMessagesPerSecond")) or None,
        text=str(task.get("FailureReason") or "")[:200],
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**53 else 0

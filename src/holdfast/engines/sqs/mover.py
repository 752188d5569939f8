"""Messages that leave their queue: they are sent first, and then deleted where they came from.

Killed between the two, the message is delivered again and sent twice; nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engines.sqs import messages
from holdfast.engines.sqs.client import OutgoingSqsMessage, SqsClient
from holdfast.engines.sqs.messages import Burial
from holdfast.engines.sqs.queues import SqsQueues
from holdfast.engines.sqs.settings import StoredQueue
from holdfast.errors import HoldfastError


class SqsMessageMover:
    """Moves received messages of one engine to dead-letter queues and other queues."""

    def __init__(self, client: SqsClient, catalog: SqsQueues) -> None:
        self._client = client
        self._catalog = catalog

    async def bury(
        self, stored: StoredQueue, burials: Sequence[Burial]
    ) -> list[HoldfastError | None]:
        """Bury messages of one queue; each is answered by itself. Raises NotFound if the queue has
        no dead-letter queue."""
        url = await self._catalog.dead_url(stored)
        letters = [
            messages.with_death(
                each.letter,
                each.dead,
                deduplication_id=messages.delivery_id(each.dead.message_id, each.dead.attempt)
                if stored.is_fifo
                else None,
            )
            for each in burials
        ]
        return await self.move(url, stored.url, letters, [each.handle for each in burials])

    async def move(
        self,
        target_url: str,
        source_url: str,
        outgoing: Sequence[OutgoingSqsMessage],
        handles: Sequence[str],
    ) -> list[HoldfastError | None]:
        """Send messages, then delete those that were sent from the queue they came from."""
        sent = await self._client.send(target_url, outgoing)
        answers: list[HoldfastError | None] = [
            one if isinstance(one, HoldfastError) else None for one in sent
        ]
        good = [at for at, answer in enumerate(answers) if answer is None]
        deleted = await self._client.delete(source_url, [handles[at] for at in good])
        for at, answer in zip(good, deleted, strict=True):
            answers[at] = answer
        return answers

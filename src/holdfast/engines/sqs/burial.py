"""Dead letters are sent to the dead-letter queue, then their messages are deleted.

Killed between the two, the message is delivered again, and the letter is there twice; nothing is
lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from holdfast.engines.sqs import messages
from holdfast.engines.sqs.client import OutgoingSqsMessage, SqsClient
from holdfast.engines.sqs.messages import Burial
from holdfast.engines.sqs.queues import SqsQueues
from holdfast.engines.sqs.settings import StoredQueue
from holdfast.errors import HoldfastError


class Graveyard:
    """Buries messages of one engine."""

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
                deduplication_id=_deduplication_id(each) if stored.is_fifo else None,
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


def _deduplication_id(burial: Burial) -> str:
    """The same for a repeat, so that a FIFO queue gets the letter once."""
    text = f"{burial.dead.message_id} {burial.dead.attempt}"
    return hashlib.sha256(text.encode()).hexdigest()

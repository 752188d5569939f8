"""A queue that gates receive from: long polls, and the messages that are held meanwhile.

A held message stays invisible to others: its timeout is extended, in batches, until the message is
deleted or returned, and at most for twelve hours. If this process dies, it is visible again within
a minute.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import Final, NamedTuple

from holdfast.engines.sqs.client import (
    BATCH_MAX,
    VISIBILITY_S_MAX,
    WAIT_S_MAX,
    SqsClient,
    SqsMessage,
)
from holdfast.errors import HoldfastError, LeaseLost

_log = logging.getLogger("holdfast.engines")

HIDDEN_S: Final = 60
"""The visibility timeout: how long a message of a killed process stays away."""
POLLS_MAX: Final = 8
GATHER_S: Final = 0.1
"""How long a receive of a busy queue collects further messages, for one large batch."""
_CHECK_S = HIDDEN_S / 4
_MARGIN_S = HIDDEN_S / 2


class _HeldMessage(NamedTuple):
    message: SqsMessage
    received_at: float
    hidden_until: float


class SqsSource:
    """Receives from the queue at `url`. Tags identify the messages that are held."""

    def __init__(
        self,
        client: SqsClient,
        url: str,
        tags: Iterator[int],
        *,
        clock_s: Callable[[], float] = monotonic,
    ) -> None:
        self.url = url
        self.is_fifo: bool = url.endswith(".fifo")
        self.held: dict[int, _HeldMessage] = {}
        self._client = client
        self._tags = tags
        self._clock_s = clock_s
        self._ready: deque[int] = deque()
        """Held messages that no caller got yet."""
        self._polls: dict[asyncio.Task[None], int] = {}
        """The polls under way, with the number of messages that each asks for."""
        self._is_busy = False
        self._arrived = asyncio.Event()
        self._error: HoldfastError | None = None
        self._extending: asyncio.Task[None] | None = None

    async def receive(self, limit: int, wait_ms: int) -> list[tuple[int, SqsMessage]]:
        """New messages, while fewer than `limit` are held; empty after `wait_ms`. A poll goes on
        after this returns, so that an idle queue costs one request in twenty seconds."""
        end = monotonic() + wait_ms / 1000
        gathered_by: float | None = None
        while True:
            if not self._ready or self._is_busy:
                # A poll that outlives its gate takes messages that return, and returns them again.
                self._start_polls(limit)
            if self._ready and gathered_by is None:
                gathered_by = monotonic() + GATHER_S
            more = self._is_busy and len(self.held) < limit
            left_s = (end if gathered_by is None or not self._ready else gathered_by) - monotonic()
            if (self._ready and not more) or left_s <= 0 or self._error is not None:
                break
            self._arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._arrived.wait()
        if self._error is not None and not self._ready:
            error, self._error = self._error, None
            raise error
        return self._taken()

    async def take(self, limit: int) -> list[tuple[int, SqsMessage]]:
        """At most `limit` messages that are there now. SQS may overlook some: the next call finds
        them."""
        found = await self._fetch(min(limit, BATCH_MAX), wait_s=0)
        if found == BATCH_MAX < limit:
            rest = range(BATCH_MAX, limit, BATCH_MAX)
            await asyncio.gather(
                *(self._fetch(min(BATCH_MAX, limit - at), wait_s=0) for at in rest)
            )
        return self._taken()

    async def delete(self, tags: Collection[int]) -> None:
        """Delete held messages. One whose handle is not valid any more will be received again.
        Raises the error of the first other one that could not be deleted."""
        known = [tag for tag in tags if tag in self.held]
        answers = await self._client.delete(self.url, self._handles(known))
        failed: HoldfastError | None = None
        for tag, answer in zip(known, answers, strict=True):
            if answer is None or isinstance(answer, LeaseLost):
                self.held.pop(tag, None)
            else:
                failed = failed or answer
        if failed is not None:
            raise failed

    async def return_messages(self, tags: Collection[int], delay_s: int = 0) -> None:
        """Make held messages visible after this time. If that fails, their timeout ends."""
        handles = self._handles([tag for tag in tags if tag in self.held])
        for tag in tags:
            self.held.pop(tag, None)
        self._ready = deque(tag for tag in self._ready if tag in self.held)
        if handles:
            await self._client.change_visibility(self.url, [(each, delay_s) for each in handles])

    async def stop(self) -> None:
        """Stop polling, and return every message."""
        polls = list(self._polls)
        if self._extending is not None:
            polls.append(self._extending)
            self._extending = None
        for task in polls:
            task.cancel()
        if polls:
            await asyncio.wait(polls)
        await self.return_messages(list(self.held))

    async def extend(self) -> None:
        """Extend the timeouts that end soon. A message that has been here for twelve hours, or that
        is not ours any more, is let go."""
        now = self._clock_s()
        due: list[tuple[int, str, int]] = []
        for tag, each in list(self.held.items()):
            left_s = int(each.received_at + VISIBILITY_S_MAX - now) - 1
            if left_s <= 0:
                self._let_go(tag)
            elif each.hidden_until - now < _MARGIN_S:
                due.append((tag, each.message.handle, min(HIDDEN_S, left_s)))
        if not due:
            return
        changes = [(handle, hidden_s) for _, handle, hidden_s in due]
        answers = await self._client.change_visibility(self.url, changes)
        for (tag, _, hidden_s), answer in zip(due, answers, strict=True):
            if isinstance(answer, LeaseLost):
                self._let_go(tag)
            elif answer is None and tag in self.held:
                self.held[tag] = self.held[tag]._replace(hidden_until=now + hidden_s)

    def _start_polls(self, limit: int) -> None:
        """Long polls for the free room: one of an idle queue, several of a busy one."""
        room = limit - len(self.held) - sum(self._polls.values())
        while room > 0 and len(self._polls) < (POLLS_MAX if self._is_busy else 1):
            asked = min(room, BATCH_MAX)
            task = asyncio.create_task(self._poll(asked), name="sqs poll")
            self._polls[task] = asked
            task.add_done_callback(self._ended)
            room -= asked

    async def _poll(self, asked: int) -> None:
        try:
            self._is_busy = await self._fetch(asked, wait_s=WAIT_S_MAX) == asked
        except HoldfastError as error:
            self._error, self._is_busy = error, False

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._polls[task]
        self._arrived.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a poll of SQS failed", exc_info=error)

    async def _fetch(self, asked: int, *, wait_s: int) -> int:
        messages = await self._client.receive(
            self.url, limit=asked, wait_s=wait_s, visibility_s=HIDDEN_S
        )
        now = self._clock_s()
        for message in messages:
            tag = next(self._tags)
            self.held[tag] = _HeldMessage(message, now, now + HIDDEN_S)
            self._ready.append(tag)
        if messages and self._extending is None:
            self._extending = asyncio.create_task(self._extend_regularly(), name="sqs visibility")
        return len(messages)

    async def _extend_regularly(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_S)
            with suppress(HoldfastError):
                # A timeout that cannot be extended is tried again, until it ends.
                await self.extend()

    def _taken(self) -> list[tuple[int, SqsMessage]]:
        tags, self._ready = list(self._ready), deque()
        return [(tag, self.held[tag].message) for tag in tags]

    def _let_go(self, tag: int) -> None:
        # It may have been deleted or returned while its extension was under way.
        self.held.pop(tag, None)
        if tag in self._ready:
            self._ready.remove(tag)

    def _handles(self, tags: Sequence[int]) -> list[str]:
        return [self.held[tag].message.handle for tag in tags]

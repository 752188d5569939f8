"""Long polls that outlive the call that began them.

A call that ends or is cancelled leaves its polls under way: the next call for the same queue takes
them over. Otherwise each would go on for up to twenty seconds, receive messages for nobody, and
give them back with one more receive counted. Messages that no call takes in time are given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple

from holdfast.engines.sqs.client import BATCH_MAX, VISIBILITY_S_MAX, SqsClient, SqsMessage
from holdfast.engines.sqs.settings import StoredQueue, seconds

HOLD_S: Final = 1
"""How long messages of a poll without a caller wait for the next call."""


class PollKey(NamedTuple):
    """The SQS queue of a poll."""

    queue: str
    is_dead: bool = False


class PollSource(NamedTuple):
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


ReturnMessages = Callable[[PollSource, Sequence[SqsMessage], int], Coroutine[Any, Any, None]]
"""Makes messages visible after so many seconds."""


class Poll:
    """One receive of at most `limit` messages: under way, or with its answer."""

    def __init__(
        self, source: PollSource, limit: int, task: asyncio.Task[list[SqsMessage]], began_at: int
    ) -> None:
        self.source = source
        self.limit = limit
        self.task = task
        self.began_at = began_at


class PollSet:
    """The polls of one engine. A poll belongs to one call, or to none."""

    def __init__(self, client: SqsClient, return_messages: ReturnMessages) -> None:
        self._client = client
        self._return_messages = return_messages
        self._all: set[Poll] = set()
        self._free: dict[PollKey, list[Poll]] = {}
        self._returns: set[asyncio.Task[None]] = set()

    def take(self, key: PollKey) -> Poll | None:
        """A poll of this queue that belongs to no call; one that has ended first."""
        free = self._free.get(key)
        if not free:
            return None
        poll = self.take_ended(key)
        if poll is None:
            poll = free[0]
            self._release(poll)
        return poll

    def has_free(self, key: PollKey) -> bool:
        """Whether a poll of this queue belongs to no call."""
        return key in self._free

    def take_ended(self, key: PollKey) -> Poll | None:
        """A poll of this queue that belongs to no call and has an answer."""
        poll = next((each for each in self._free.get(key, ()) if each.task.done()), None)
        if poll is not None:
            self._release(poll)
        return poll

    def begin(self, source: PollSource, limit: int, wait_s: int) -> Poll:
        """A new poll. The messages stay hidden for as long as they may be held in addition."""
        limit = min(source.most, limit)
        receiving = self._client.receive(
            source.url, limit=limit, wait_s=wait_s, visibility_s=source.visibility_s
        )
        poll = Poll(source, limit, asyncio.create_task(receiving), self._client.now_ms())
        self._all.add(poll)
        return poll

    def end(self, poll: Poll) -> None:
        """The caller has the messages of this poll."""
        self._all.discard(poll)

    def leave(self, poll: Poll) -> None:
        """The caller wants no more of it: the next call may take it."""
        if poll not in self._all:
            return
        self._free.setdefault(poll.source.key, []).append(poll)
        if poll.task.done():
            self._hold(poll)
        else:
            poll.task.add_done_callback(lambda _: self._hold(poll))

    def give_back(
        self, source: PollSource, messages: Sequence[SqsMessage], delay_s: int = 0
    ) -> None:
        """Make messages visible again, in the background."""
        if messages:
            task = asyncio.create_task(self._return_messages(source, messages, delay_s))
            self._returns.add(task)
            task.add_done_callback(self._returns.discard)

    async def stop(self) -> None:
        """Leave all polls to their threads, which give their messages back."""
        tasks = [poll.task for poll in self._all]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for poll in list(self._all):
            self._give_back(poll)
        while self._returns:
            await asyncio.wait(self._returns)

    def _hold(self, poll: Poll) -> None:
        if self._is_free(poll):
            loop = asyncio.get_running_loop()
            loop.call_later(HOLD_S, self._give_back_free, poll)

    def _give_back_free(self, poll: Poll) -> None:
        if self._is_free(poll):
            self._give_back(poll)

    def _is_free(self, poll: Poll) -> bool:
        return poll in self._free.get(poll.source.key, ())

    def _give_back(self, poll: Poll) -> None:
        self._release(poll)
        self._all.discard(poll)
        task = poll.task
        if not task.cancelled() and task.exception() is None:
            self.give_back(poll.source, task.result())

    def _release(self, poll: Poll) -> None:
        free = self._free.get(poll.source.key, [])
        if poll in free:
            free.remove(poll)
        if not free:
            self._free.pop(poll.source.key, None)

"""Long polls that outlive the call that began them.

A call that ends or is cancelled leaves its polls under way: the next call for the same queue takes
them over. Otherwise each would go on for up to twenty seconds, receive messages for nobody, and
give them back with one more receive counted. Messages that no call takes in time are given back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from holdfast.engines.sqs.client import SqsClient, SqsMessage
from holdfast.errors import HoldfastError

HOLD_S: Final = 1
"""How long messages of a poll without a caller wait for the next call."""


class PollKey(NamedTuple):
    """The SQS queue of a poll."""

    queue: str
    is_dead: bool = False


class Poll:
    """One receive of at most `limit` messages: under way, or with its answer."""

    def __init__(
        self,
        key: PollKey,
        url: str,
        limit: int,
        task: asyncio.Task[list[SqsMessage]],
        began_at: int,
    ) -> None:
        self.key = key
        self.url = url
        self.limit = limit
        self.task = task
        self.began_at = began_at


class PollSet:
    """The polls of one engine. A poll belongs to one call, or to none."""

    def __init__(self, client: SqsClient) -> None:
        self._client = client
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

    def begin(self, key: PollKey, url: str, *, limit: int, wait_s: int, visibility_s: int) -> Poll:
        """A new poll. The messages stay hidden for as long as they may be held in addition."""
        receiving = self._client.receive(url, limit=limit, wait_s=wait_s, visibility_s=visibility_s)
        poll = Poll(key, url, limit, asyncio.create_task(receiving), self._client.now_ms())
        self._all.add(poll)
        return poll

    def end(self, poll: Poll) -> None:
        """The caller has the messages of this poll."""
        self._all.discard(poll)

    def leave(self, poll: Poll) -> None:
        """The caller wants no more of it: the next call may take it."""
        if poll not in self._all:
            return
        self._free.setdefault(poll.key, []).append(poll)
        if poll.task.done():
            self._hold(poll)
        else:
            poll.task.add_done_callback(lambda _: self._hold(poll))

    def give_back(self, url: str, messages: Sequence[SqsMessage], delay_s: int = 0) -> None:
        """Make messages visible again, in the background."""
        if messages:
            changes = [(message.handle, delay_s) for message in messages]
            task = asyncio.create_task(self._change(url, changes))
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
        return poll in self._free.get(poll.key, ())

    def _give_back(self, poll: Poll) -> None:
        self._release(poll)
        self._all.discard(poll)
        task = poll.task
        if not task.cancelled() and task.exception() is None:
            self.give_back(poll.url, task.result())

    def _release(self, poll: Poll) -> None:
        free = self._free.get(poll.key, [])
        if poll in free:
            free.remove(poll)
        if not free:
            self._free.pop(poll.key, None)

    async def _change(self, url: str, changes: list[tuple[str, int]]) -> None:
        # Otherwise they become visible when their timeout ends.
        with contextlib.suppress(HoldfastError):
            await self._client.change_visibility(url, changes)

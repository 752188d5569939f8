"""Many pipes, each watched for the short life of a command. The loop watches them as one: to add
and remove each there would cost several times as much.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable
from typing import Generic, TypeVar

Owner = TypeVar("Owner")


class Pipes(Generic[Owner]):
    """`readable` is told whose pipe has something to read, or has been closed at its other end."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, readable: Callable[[Owner], object]
    ) -> None:
        self._readable = readable
        self._owners: dict[int, Owner] = {}
        self._epoll = select.epoll()
        loop.add_reader(self._epoll.fileno(), self._look)

    def watch(self, pipe: int, owner: Owner) -> None:
        self._epoll.register(pipe, select.EPOLLIN)
        self._owners[pipe] = owner

    def close(self, pipe: int) -> None:
        """Also one that could not be watched."""
        if self._owners.pop(pipe, None) is not None:
            self._epoll.unregister(pipe)
        os.close(pipe)

    def _look(self) -> None:
        for pipe, _ in self._epoll.poll(0):
            # It may have been closed by what the one before it led to.
            owner = self._owners.get(pipe)
            if owner is not None:
                self._readable(owner)

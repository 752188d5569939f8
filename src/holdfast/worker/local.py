"""`--processes 0`: handlers run in the supervisor itself, spoken to as if they were a child.

There is nothing to kill here. A handler that holds the interpreter holds up the renewals too, and
one that blocks a thread past its timeout goes on: that is what child processes are for.
"""

from __future__ import annotations

import asyncio

from holdfast.worker.failures import failure_of
from holdfast.worker.link import Link, Listener
from holdfast.worker.runner import Runner
from holdfast.worker.target import load_target
from holdfast.worker.wire import Broken, ChildSetup, Down, Ready, Up

_LAST_WORDS_S = 1.0


class LocalLink(Link):
    """See `Link`; `kill` cancels what can be cancelled, at the worker's end alone."""

    killable = False

    def __init__(self, setup: ChildSetup, listener: Listener, solo: bool) -> None:
        super().__init__(setup, listener, solo)
        self._runner: Runner | None = None
        self._burial: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """The application is imported here, and told about as a child would."""
        assert self.setup.target is not None
        try:
            handlers = load_target(self.setup.target).handlers
        except BaseException as error:  # noqa: BLE001 (an application may even exit on import)
            return self._hear([Broken(failure_of(error))])
        self._runner = Runner(self.setup, handlers, self.board, self._hear)
        return self._hear([Ready(tuple(each.info for each in handlers.values()))])

    def say(self, words: list[Down]) -> None:
        if self._runner is not None:
            asyncio.get_running_loop().call_soon(self._runner.take, words)

    def kill(self) -> None:
        if self._burial is None:
            self._burial = asyncio.create_task(self._end())

    async def dead(self) -> None:
        self.kill()
        assert self._burial is not None
        await asyncio.shield(self._burial)

    def _hear(self, words: list[Up]) -> None:
        asyncio.get_running_loop().call_soon(self._listener.heard, self, words)

    async def _end(self) -> None:
        if self._runner is not None:
            self._runner.stop()
            await asyncio.sleep(0)
        waited = 0.0
        while self.board.running() and waited < _LAST_WORDS_S:
            await asyncio.sleep(0.01)
            waited += 0.01
        self.status = 0
        self._listener.died(self)


def make_link(setup: ChildSetup, listener: Listener, solo: bool) -> Link:
    """For a worker without child processes for Python: commands keep theirs."""
    return (Link if setup.target is None else LocalLink)(setup, listener, solo)

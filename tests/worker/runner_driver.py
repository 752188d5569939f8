"""A runner of Python handlers in the test's own process, and its answers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from holdfast.worker.child.runner import HandlerRunner
from holdfast.worker.wire import Board, CallsEnded, ChildCalls, Ending, Finish, FromChild
from tests.worker.child_driver import TIMEOUT_S, given_job, setup
from tests.worker.sample_handlers import handler


class Driven:
    """A runner and its answers, frame by frame."""

    def __init__(self, slots: int, *functions: Callable[..., Any]) -> None:
        self.board = Board.make(slots)
        self.frames: list[list[FromChild]] = []
        self.finished = asyncio.Event()
        self._said = asyncio.Event()
        handlers = {function.__name__: handler(function) for function in functions}
        how = setup(slots=slots, target="sample:app")
        self.runner = HandlerRunner(how, handlers, self.board, self._hear, self.finished.set)

    def _hear(self, words: list[FromChild]) -> None:
        self.frames.append(words)
        self._said.set()

    @property
    def words(self) -> list[FromChild]:
        return [word for words in self.frames for word in words]

    def call(self, number: int, task: str, payload: Any = None) -> ChildCalls:
        return ChildCalls(number, task, [(given_job(payload),)])

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not holds():
                self._said.clear()
                await self._said.wait()

    async def ending(self, number: int) -> Ending:
        def found() -> list[CallsEnded]:
            return [
                word
                for word in self.words
                if isinstance(word, CallsEnded) and number in word.numbers
            ]

        await self.until(found)
        return found()[0].endings[0]


@asynccontextmanager
async def driven(slots: int, *functions: Callable[..., Any]) -> AsyncIterator[Driven]:
    one = Driven(slots, *functions)
    try:
        yield one
        one.runner.receive([Finish()])
        async with asyncio.timeout(TIMEOUT_S):
            await one.finished.wait()
        assert one.board.running() == {}
    finally:
        one.board.close()

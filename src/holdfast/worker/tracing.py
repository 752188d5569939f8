"""Runs of handlers and of commands inside spans, where tracing is on."""

from __future__ import annotations

from typing import Any

from holdfast.tracing.spans import Consuming, carrying, consuming
from holdfast.worker.attempt import Attempt
from holdfast.worker.commands import Commands
from holdfast.worker.running import Running
from holdfast.worker.wire import AskedBury, AskedRetry, Ending, Raised, Returned


class TracedAttempt(Attempt):
    """What the handler enqueues, and what comes after it, is part of the job's trace."""

    __slots__ = ()

    def run(self) -> tuple[Ending, ...]:
        with consuming(self.task, self.jobs) as run:
            return _told(run, super().run())

    async def run_async(self) -> tuple[Ending, ...]:
        with consuming(self.task, self.jobs) as run:
            return _told(run, await super().run_async())


class TracedCommands(Commands):
    """A command is told of its run's span by a variable of its environment."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._runs: dict[int, Consuming] = {}

    def _spawn(self, running: Running) -> None:
        run = Consuming(running.call.task, running.call.jobs)
        self._runs[running.call.number] = run
        with run.inside():
            super()._spawn(running)

    def _end(self, running: Running, ending: Ending) -> None:
        run = self._runs.pop(running.call.number, None)
        if run is not None:
            _told(run, (ending,))
            run.end()
        super()._end(running, ending)


def _told(run: Consuming, endings: tuple[Ending, ...]) -> tuple[Ending, ...]:
    for ending in endings:
        if isinstance(ending, Raised | AskedRetry | AskedBury):
            run.failed(ending.failure.type or ending.failure.kind)
            break
    return tuple(_followed(ending) for ending in endings)


def _followed(ending: Ending) -> Ending:
    if not isinstance(ending, Returned) or not ending.then:
        return ending
    return Returned(ending.result, tuple(carrying(ending.then)), ending.output)

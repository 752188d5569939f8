"""A supervisor that runs with doubles for children, on an engine in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from holdfast.core.model import Failure, NewJob, Queue
from holdfast.worker.crew import Crew
from holdfast.worker.options import WorkerOptions
from holdfast.worker.registry import Workers
from holdfast.worker.supervisor import Supervisor
from holdfast.worker.wire import Call, ChildSetup, Ended, Raised, Returned, TaskInfo
from tests.worker.doubles import FakeLink, TroubledEngine
from tests.worker.running import until

ERROR = Failure(type="ValueError", message="no")
TASKS = tuple(TaskInfo(name) for name in ("work", "other"))


class Story:
    """A supervisor that runs, and its one child."""

    def __init__(self, engine: TroubledEngine, **options: Any) -> None:
        self.engine = engine
        self.links: list[FakeLink] = []
        given = {"url": "memory:", "target": "a:app", "heartbeat_ms": 10, "prefetch": 0}
        self.options = WorkerOptions(**{**given, **options})
        self.supervisor = Supervisor(engine, self.options, "id-1", self._crew)

    def _crew(self, ears: Supervisor, queue_of: Callable[[str], Queue]) -> Crew:
        setup = ChildSetup(worker="", worker_id="id-1", slots=4, target="a:app")
        return Crew(ears, queue_of, python=setup, processes=1, commands=None, make=self._make)

    def _make(self, *given: Any) -> FakeLink:
        self.links.append(FakeLink(*given))
        return self.links[-1]

    @property
    def link(self) -> FakeLink:
        return self.links[-1]

    @property
    def open_calls(self) -> list[Call]:
        (seat,) = self.supervisor._crew._seats.values()
        return [call for call in self.link.calls if call.number in seat.calls]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.supervisor.run())
        await until(lambda: task.done() or self.links)
        if not task.done():
            self.link.ready(*TASKS)
        yield
        self.supervisor.stop()
        await task

    async def another_child(self, status: int) -> None:
        """The child ends so, and the next one is started."""
        ended = self.link
        ended.die(status)
        await until(lambda: self.link is not ended, "another child")

    async def enqueue(self, *ids: str, **fields: Any) -> None:
        await self.engine.enqueue([NewJob(**{"id": id_, "task": "work", **fields}) for id_ in ids])

    async def calls(self, count: int) -> list[Call]:
        await until(lambda: len(self.open_calls) == count, f"{count} calls")
        return self.open_calls

    def end(self, *calls: Call, failed: bool = False) -> None:
        ending = Raised(ERROR) if failed else Returned()
        self.link.speak(*(Ended(call.number, (ending,)) for call in calls))

    async def view(self) -> Any:
        return await Workers(self.engine).get(self.supervisor.name)

"""A supervisor that runs with doubles for children, on an engine in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from holdfast.core.model import Failure, NewJob, Queue
from holdfast.ops.workers import Workers
from holdfast.worker.options import WorkerOptions
from holdfast.worker.supervisor.child_pool import ChildPool
from holdfast.worker.supervisor.supervisor import Supervisor
from holdfast.worker.wire import CallsEnded, ChildSetup, Raised, Returned, TaskInfo
from tests.worker.doubles import FakeChild, GivenCall, TroubledEngine
from tests.worker.live_workers import until

ERROR = Failure(type="ValueError", message="no")
TASKS = tuple(TaskInfo(name) for name in ("work", "other"))


class SupervisorDriver:
    """A running supervisor and its one child."""

    def __init__(self, engine: TroubledEngine, **options: Any) -> None:
        self.engine = engine
        self.children: list[FakeChild] = []
        given = {"url": "memory:", "target": "a:app", "heartbeat_ms": 10, "prefetch": 0}
        self.options = WorkerOptions(**{**given, **options})
        self.supervisor = Supervisor(engine, self.options, "id-1", self._make_pool)

    def _make_pool(self, listener: Supervisor, queue_of: Callable[[str], Queue]) -> ChildPool:
        setup = ChildSetup(worker="", worker_id="id-1", slots=4, target="a:app")
        return ChildPool(listener, queue_of, python=setup, processes=1, make=self._make_child)

    def _make_child(self, *given: Any) -> FakeChild:
        self.children.append(FakeChild(*given))
        return self.children[-1]

    @property
    def child(self) -> FakeChild:
        return self.children[-1]

    @property
    def open_calls(self) -> list[GivenCall]:
        (child,) = self.supervisor._pool._children.values()
        return [call for call in self.child.calls if call.number in child.calls]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.supervisor.run())
        await until(lambda: task.done() or self.children)
        if not task.done():
            self.child.ready(*TASKS)
        yield
        self.supervisor.stop()
        await task

    async def another_child(self, status: int) -> None:
        """End the child with this status and wait for the next one."""
        ended = self.child
        ended.die(status)
        await until(lambda: self.child is not ended, "another child")

    async def enqueue(self, *ids: str, **fields: Any) -> None:
        await self.engine.enqueue([NewJob(**{"id": id_, "task": "work", **fields}) for id_ in ids])

    async def calls(self, count: int) -> list[GivenCall]:
        await until(lambda: len(self.open_calls) == count, f"{count} calls")
        return self.open_calls

    def end(self, *calls: GivenCall, failed: bool = False) -> None:
        ending = Raised(ERROR) if failed else Returned()
        self.child.answer(*(CallsEnded([call.number], (ending,)) for call in calls))

    async def view(self) -> Any:
        return await Workers(self.engine).get(self.supervisor.name)

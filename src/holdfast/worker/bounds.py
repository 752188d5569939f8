"""The limits that the code of a worker's tasks asks for: set before any job of them is leased."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.flow import Limit
from holdfast.engines.base import Engine
from holdfast.limiting import set_task_limits
from holdfast.worker.wire import TaskInfo


class Bounds:
    """Whether tasks may be leased: when the limits that they ask for are set."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._set: set[tuple[str, Limit]] = set()

    def are_set(self, tasks: Mapping[str, TaskInfo]) -> bool:
        return all(self._set.issuperset(_wanted(info)) for info in tasks.values())

    async def set(self, tasks: Mapping[str, TaskInfo]) -> bool:
        """Whether there was anything to set."""
        by_queue: dict[str, list[Limit]] = {}
        for info in tasks.values():
            for queue, limit in _wanted(info):
                if (queue, limit) not in self._set:
                    by_queue.setdefault(queue, []).append(limit)
        for queue, limits in sorted(by_queue.items()):
            await set_task_limits(self._engine, queue, limits)
            self._set.update((queue, limit) for limit in limits)
        return bool(by_queue)


def _wanted(info: TaskInfo) -> set[tuple[str, Limit]]:
    return {(info.queue, limit) for limit in info.limits}

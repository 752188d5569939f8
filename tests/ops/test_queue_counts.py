"""Counts beyond the exact ones are cached, marked as estimates, and never stand in the way."""

from collections.abc import Collection

from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.core.model import Queue, QueueView
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import EngineUnavailable
from holdfast.ops.queue_counts import QueueCountCache

MOST = bounds.COUNT_EXACT_MAX


class Large(MemoryEngine):
    """Claims large counts. Counting far takes `cost_s` of the time that `now_s` returns."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = {"default": 3 * MOST, "small": 5}
        self.time_s = 1_000.0
        self.cost_s = 0.0
        self.asked: list[list[str]] = []
        self.error: Exception | None = None

    def now_s(self) -> float:
        return self.time_s

    async def queues(
        self, *, names: Collection[str] | None = None, counts: bool = True
    ) -> list[QueueView]:
        views = await super().queues(names=names, counts=counts)
        return [self._view(view, MOST) for view in views]

    async def count_far(self, names: Collection[str], *, most: int) -> list[QueueView]:
        assert most == bounds.COUNT_FAR_MAX
        self.asked.append(sorted(names))
        self.time_s += self.cost_s
        if self.error is not None:
            raise self.error
        return [self._view(view, most) for view in await super().queues(names=names)]

    def _view(self, view: QueueView, most: int) -> QueueView:
        ready = self.ready.get(view.queue.name, 0)
        more = frozenset({"ready"}) if ready > most else frozenset[str]()
        return replace(view, ready=min(ready, most), estimated=more)


async def opened() -> tuple[Large, QueueCountCache]:
    engine = Large()
    await engine.open()
    await engine.declare(Queue(name="small"))
    return engine, QueueCountCache(engine, monotonic_s=engine.now_s)


def counted(views: list[QueueView]) -> dict[str, tuple[int, bool]]:
    return {view.queue.name: (view.ready, "ready" in view.estimated) for view in views}


async def test_only_large_queues_are_counted_and_cached() -> None:
    engine, counts = await opened()
    expected = {"default": (3 * MOST, True), "small": (5, False)}
    assert counted(await counts.read()) == expected
    engine.ready = {"default": 4 * MOST, "small": 6}
    assert counted(await counts.read()) == expected | {"small": (6, False)}
    assert engine.asked == [["default"]]
    engine.time_s += 10
    assert counted(await counts.read(["default"])) == {"default": (4 * MOST, True)}
    assert engine.asked == [["default"], ["default"]]


async def test_a_queue_that_became_small_is_exact_at_once() -> None:
    engine, counts = await opened()
    await counts.read()
    engine.ready["default"] = 7
    assert counted(await counts.read(["default"])) == {"default": (7, False)}


async def test_slow_counts_are_read_more_rarely() -> None:
    engine, counts = await opened()
    engine.cost_s = 2.0
    await counts.read()
    engine.time_s += 99
    await counts.read()
    assert len(engine.asked) == 1
    engine.time_s += 1
    await counts.read()
    assert len(engine.asked) == 2


async def test_a_failed_count_leaves_lower_bounds_and_is_not_repeated_at_once() -> None:
    engine, counts = await opened()
    engine.error = EngineUnavailable("too slow")
    for _ in range(2):
        assert counted(await counts.read(["default"])) == {"default": (MOST, True)}
    assert len(engine.asked) == 1
    engine.error = None
    engine.time_s += 10
    assert counted(await counts.read(["default"])) == {"default": (3 * MOST, True)}


async def test_large_queues_share_a_count_and_its_rest() -> None:
    engine, counts = await opened()
    engine.cost_s = 1.0
    for name in ("b", "c"):
        await engine.declare(Queue(name=name))
        engine.ready[name] = 2 * MOST
    assert counted(await counts.read(["default"])) == {"default": (3 * MOST, True)}
    # Not counted yet: a lower bound.
    assert counted(await counts.read(["b"])) == {"b": (MOST, True)}
    engine.time_s += 50
    assert counted(await counts.read(["c"])) == {"c": (2 * MOST, True)}
    assert counted(await counts.read(["b"])) == {"b": (2 * MOST, True)}
    assert engine.asked == [["default"], ["b", "c"]]

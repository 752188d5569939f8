"""Metrics of queues for CloudWatch: once a minute for all processes, and no job depends on it."""

import asyncio
import logging
from collections.abc import Collection, Mapping

import pytest

from holdfast.core.model import NewJob, Queue, QueueView
from holdfast.core.scaling import Activity
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.errors import ConfigError
from holdfast.telemetry import cloudwatch
from holdfast.telemetry.cloudwatch import INTERVAL_MS, CloudWatchExporter, metrics_of
from holdfast.testing.clock import ManualClock


@pytest.fixture
async def engine(clock: ManualClock) -> Engine:
    found = MemoryEngine(clock=clock)
    await found.open()
    return found


class Sink:
    """Notes what it gets; raises an error if there is one."""

    def __init__(self) -> None:
        self.got: list[Mapping[str, Mapping[str, float]]] = []
        self.error: Exception | None = None
        self.is_closed = False

    async def put(self, values: Mapping[str, Mapping[str, float]]) -> None:
        if self.error is not None:
            raise self.error
        self.got.append(values)

    def close(self) -> None:
        self.is_closed = True


async def busy(names: Collection[str]) -> dict[str, Activity]:
    return dict.fromkeys(names, Activity(arrivals=10.0, run_ms=3_000, ended=50))


def exporter(engine: Engine, sink: Sink, clock: ManualClock) -> CloudWatchExporter:
    return CloudWatchExporter(engine, sink, busy, clock.wall_ms)


async def test_one_process_exports_each_minute(engine: Engine, clock: ManualClock) -> None:
    await engine.enqueue([NewJob(id=f"{number:032x}", task="t") for number in range(3)])
    clock.advance(7_000)
    sink = Sink()
    processes = [exporter(engine, sink, clock) for _ in range(3)]
    waits = [await each.once() or 0 for each in processes]
    assert sink.got == [{"default": {"Ready": 3, "OldestAge": 7, "DesiredWorkers": 2}}]
    assert all(0 < wait <= INTERVAL_MS + 5_000 for wait in waits)
    clock.advance(INTERVAL_MS)
    await asyncio.gather(*(each.once() for each in processes))
    assert len(sink.got) == 2


async def test_an_error_is_logged_once_and_the_next_minute_is_exported(
    engine: Engine, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Sink()
    sink.error = ConfigError("Amazon CloudWatch denies PutMetricData: allow it")
    service = exporter(engine, sink, clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert await service.once()
            clock.advance(INTERVAL_MS + 5_000)
    assert len(caplog.messages) == 1
    sink.error = None
    await service.once()
    assert len(sink.got) == 1


async def test_the_number_of_queues_is_bounded(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloudwatch, "QUEUES_MAX", 2)
    for name in ("a", "b", "worker.w1"):
        await engine.declare(Queue(name=name))
    sink = Sink()
    await exporter(engine, sink, clock).once()
    assert [list(each) for each in sink.got] == [["a", "b"]]


async def test_the_sink_is_closed_at_the_end(engine: Engine, clock: ManualClock) -> None:
    sink, stop = Sink(), asyncio.Event()
    stop.set()
    await exporter(engine, sink, clock).run(stop)
    assert sink.is_closed


def test_an_unknown_age_is_left_out() -> None:
    views = [
        QueueView(queue=Queue(name="late"), ready=3, oldest_age_ms=1_500),
        QueueView(queue=Queue(name="unknown"), ready=3),
        QueueView(queue=Queue(name="empty")),
    ]
    assert metrics_of(views, []) == {
        "late": {"Ready": 3, "OldestAge": 1.5},
        "unknown": {"Ready": 3},
        "empty": {"Ready": 0, "OldestAge": 0},
    }

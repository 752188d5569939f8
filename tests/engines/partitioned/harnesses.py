"""Harnesses of partitioned engines."""

from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import uuid4

from holdfast.conformance.harness import Harness
from holdfast.engines.base import Engine
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.partitioned import PartitionedEngine
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.testing.clock import ManualClock
from tests.engines.pg_connections import ReusedConnections
from tests.engines.prepared_file import prepare

Make = Callable[[ManualClock], Engine]


def partitioned(*makers: Make, can_jump: bool = True) -> Harness:
    """An engine over the partitions that the makers make, by number."""

    def make(clock: ManualClock) -> Engine:
        return PartitionedEngine([(f"p{n}", each(clock)) for n, each in enumerate(makers, 1)])

    return Harness(make, can_jump=can_jump)


def memory(count: int) -> Harness:
    return partitioned(*(lambda clock: MemoryEngine(clock=clock) for _ in range(count)))


def sqlite(folder: Path, count: int) -> Harness:
    return partitioned(*(file(folder / f"{uuid4().hex}.db") for _ in range(count)))


def file(path: Path) -> Make:
    """Nothing here cuts the power: relaxed."""
    prepare(path)
    return lambda clock: SQLiteEngine(path, durability="relaxed", clock=clock)


def database(dsn: str, reused: ReusedConnections, namespace: str) -> Make:
    return lambda clock: reused.engine(dsn, namespace=namespace, connections=2, clock=clock)


def engines(names: Sequence[str], clock: ManualClock) -> list[tuple[str, MemoryEngine]]:
    return [(name, MemoryEngine(clock=clock)) for name in names]

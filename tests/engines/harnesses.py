"""Harnesses of the engines, one function for each."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from holdfast.conformance.harness import Harness
from holdfast.engines.base import Engine
from holdfast.engines.brokered import BrokeredEngine
from holdfast.engines.coalesced import Coalesced
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.observed import Observed
from holdfast.events import ProcessEvent
from holdfast.testing.clock import ManualClock
from tests.engines.brokered.fake_broker import FakeBroker
from tests.engines.pg_connections import ReusedConnections
from tests.engines.prepared_file import prepare

Wrap = Callable[[Engine], Engine]


def plain(engine: Engine) -> Engine:
    return engine


def observed(engine: Engine) -> Engine:
    told: list[ProcessEvent] = []
    return Observed(engine, told.append)


def brokered(engine: Engine) -> Engine:
    return BrokeredEngine(engine, FakeBroker())


def memory(wrap: Wrap = plain) -> Harness:
    return Harness(lambda clock: wrap(MemoryEngine(clock=clock)))


def sqlite(place: Path, wrap: Wrap = plain, *, namespace: str = "default") -> Harness:
    """In `place`, or where that is a folder in a new file. Nothing here cuts the power: relaxed."""
    from holdfast.engines.sqlite import SQLiteEngine

    path = prepare(place / f"{uuid4().hex}.db" if place.is_dir() else place)

    def make(clock: ManualClock) -> Engine:
        return wrap(SQLiteEngine(path, namespace=namespace, durability="relaxed", clock=clock))

    return Harness(make)


def postgres(
    dsn: str, wrap: Wrap = plain, *, connections: int = 4, reused: ReusedConnections | None = None
) -> Harness:
    """Each in a namespace of its own. In tests it has one clock, the wall's: `can_jump` is off."""
    from holdfast.engines.postgres import PostgresEngine

    namespace = uuid4().hex
    make_engine = PostgresEngine if reused is None else reused.engine

    def make(clock: ManualClock) -> Engine:
        engine = make_engine(dsn, namespace=namespace, connections=connections, clock=clock)
        return wrap(engine)

    return Harness(make, can_jump=False)


coalesced: Wrap = Coalesced

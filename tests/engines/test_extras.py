"""Optional abilities are found through every wrapper, and only where they are meant to be."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.app.application import Holdfast
from holdfast.engines import extras
from holdfast.engines.base import Engine
from holdfast.engines.coalesced import Coalesced
from holdfast.engines.extras import extra
from holdfast.engines.memory import MemoryEngine
from holdfast.engines.partitioned import PartitionedEngine
from holdfast.engines.remote import RemoteEngine
from holdfast.engines.sqlite import SQLiteEngine
from holdfast.engines.sqs.engine import SqsEngine
from holdfast.engines.wrapper import Supported
from holdfast.server.access.authorized_engine import AuthorizedEngine
from holdfast.server.access.caller import Caller, Scope, with_implied
from holdfast.tracing.engine import TracedEngine
from tests.engines import harnesses

ABILITIES: dict[str, type[Any]] = {
    name: each
    for name, each in vars(extras).items()
    if isinstance(each, type)
    and each.__module__ == extras.__name__
    and getattr(each, "_is_runtime_protocol", False)
    and each is not extras.ForwardsExtras
}
_SQLITE = (
    "Examinable FileBacked Backable Movable Transactional Wakeable Countable Revisioned ListsRows"
)
ENGINES: dict[str, tuple[Engine, str]] = {
    "memory": (MemoryEngine(), "Examinable Movable Wakeable Countable ListsRows"),
    "sqlite": (
        SQLiteEngine("w.db"),
        _SQLITE,
    ),
    "brokered": (
        harnesses.brokered(SQLiteEngine("w.db")),
        _SQLITE + " Brokered",
    ),
    "partitioned": (
        PartitionedEngine([("a", MemoryEngine()), ("b", MemoryEngine())]),
        (
            "Examinable FileBacked Partitioned UpkeepByPartition IdMinting Countable Revisioned"
            " ListsRows"
        ),
    ),
    "remote": (RemoteEngine("http://127.0.0.1:1"), "Examinable IdMinting ServerBacked"),
    "sqs": (SqsEngine("eu-west-1", "shop-"), "Examinable DeadLetterQueues ArrivalRates"),
}
WRAPS: dict[str, harnesses.Wrap] = {
    "plain": harnesses.plain,
    "observed": harnesses.observed,
    "coalesced": Coalesced,
    "supported": Supported,
    "traced": TracedEngine,
    "all": lambda engine: TracedEngine(Coalesced(harnesses.observed(Supported(engine)))),
}


def abilities(engine: object) -> set[str]:
    return {name for name, each in ABILITIES.items() if extra(engine, each) is not None}


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("name", ENGINES)
def test_a_wrapper_has_the_abilities_of_its_engine(name: str, wrap: str) -> None:
    engine, expected = ENGINES[name]
    assert abilities(WRAPS[wrap](engine)) == set(expected.split())


def test_postgres() -> None:
    from holdfast.engines.postgres import PostgresEngine

    engine = PostgresEngine("postgresql://nowhere/db")
    assert abilities(Coalesced(engine)) == {
        "Examinable",
        "SchemaBacked",
        "Movable",
        "Transactional",
        "Wakeable",
        "Countable",
        "Revisioned",
        "ListsRows",
    }


def test_a_caller_of_the_server_can_only_examine_and_list() -> None:
    caller = Caller(name="tests", scopes=with_implied((Scope.ADMIN,)), token="t")
    guarded = AuthorizedEngine(Coalesced(SQLiteEngine("w.db")), caller)
    assert abilities(guarded) == {"Examinable", "ListsRows"}
    assert extra(guarded, extras.Examinable) is guarded
    assert extra(guarded, extras.ListsRows) is guarded


def test_an_object_without_any_has_none() -> None:
    assert abilities(object()) == set()


async def test_the_ability_works_through_the_application() -> None:
    app = Holdfast(engine=PartitionedEngine([("a", MemoryEngine()), ("b", MemoryEngine())]))
    partitioned = extra(app.engine, extras.Partitioned)
    assert partitioned is not None
    async with app:
        assert [view.name for view in partitioned.partitions()] == ["a", "b"]
        assert app.new_id() != app.new_id()

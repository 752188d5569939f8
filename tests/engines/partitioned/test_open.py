"""Opening needs the same partitions in the same order."""

import pytest

from holdfast.conformance.contract.cases import a_job
from holdfast.core.model import Record
from holdfast.engines.partitioned import PartitionedEngine, membership
from holdfast.errors import ConfigError, EngineUnavailable
from tests.engines.partitioned.fragile import GONE, Trio

pytestmark = pytest.mark.anyio


async def test_a_map_that_changed_is_refused() -> None:
    trio = Trio()
    await trio.engine.open()
    await trio.engine.close()
    one, two, three = ((f"p{n}", each) for n, each in enumerate(trio.fragile, 1))
    stranger = ("p4", Trio().fragile[0])
    for wrong, says in (
        ([one, two], "lists 2"),
        ([one, two, three, stranger], "lists 4"),
        ([two, one, three], "p2 is listed as partition 1 but is partition 2"),
        ([one, two, stranger], r"p4 is not the store of partition 3 \(p3\)"),
        ([one, two, two], "p2 is listed as partition 3 but is partition 2"),
    ):
        with pytest.raises(ConfigError, match=says):
            await PartitionedEngine(wrong).open()  # type: ignore[arg-type]
    await trio.engine.open()
    await trio.engine.close()


async def test_the_same_store_twice() -> None:
    one = ("p1", Trio().fragile[0])
    with pytest.raises(ConfigError, match="the same store"):
        await PartitionedEngine([one, one]).open()  # type: ignore[list-item]


async def test_a_store_with_jobs_cannot_become_one_of_several() -> None:
    trio = Trio()
    await trio.fragile[1].open()
    await trio.fragile[1].enqueue([a_job("a")])
    with pytest.raises(ConfigError, match="p2 already holds jobs"):
        await trio.engine.open()


async def test_the_first_opening_needs_all_partitions_later_ones_do_not() -> None:
    trio = Trio()
    trio.fragile[1].fault = GONE
    with pytest.raises(EngineUnavailable, match=r"needs all partitions, and p2 is out"):
        await trio.engine.open()
    trio.fragile[1].fault = None
    await trio.engine.open()
    await trio.engine.close()
    trio.fragile[1].fault = GONE
    await trio.engine.open()
    assert [view.out_ms is None for view in trio.engine.partitions()] == [True, False, True]
    trio.fragile[1].fault = None
    await trio.back()
    assert trio.engine.partitions()[1].out_ms is None
    await trio.engine.close()


async def test_two_first_openings_at_once() -> None:
    trio = Trio()
    await trio.engine.open()
    await trio.engine.close()
    engine = trio.fragile[2].engine
    load = engine.load

    async def early(*_: object, **__: object) -> list[Record]:
        """As it was before the other had named it."""
        engine.load = load  # type: ignore[method-assign]
        return []

    engine.load = early  # type: ignore[method-assign]
    await trio.engine.open()
    assert [view.out_ms for view in trio.engine.partitions()] == [None] * 3
    await trio.engine.close()


async def test_without_any_partition_it_does_not_open() -> None:
    trio = Trio()
    for each in trio.fragile:
        each.fault = GONE
    with pytest.raises(EngineUnavailable):
        await trio.engine.open()


async def test_a_partition_that_fails_its_first_read_is_shut_out() -> None:
    trio = Trio()
    await trio.engine.open()
    await trio.engine.close()
    overdue = trio.fragile[1].engine.overdue

    async def fail(limit: int) -> None:
        raise GONE

    trio.fragile[1].engine.overdue = fail  # type: ignore[method-assign,assignment]
    await trio.engine.open()
    assert trio.engine.partitions()[1].code == "unavailable"
    trio.fragile[1].engine.overdue = overdue  # type: ignore[method-assign]
    await trio.back()
    assert trio.engine.partitions()[1].out_ms is None
    await trio.engine.close()


async def test_a_partition_that_is_stuck_does_not_delay_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership, "OPEN_S", 0.05)
    trio = Trio()
    await trio.engine.open()
    await trio.engine.close()
    trio.fragile[1].moves.clear()
    await trio.engine.open()
    assert "did not answer" in trio.engine.partitions()[1].text
    assert [each.out_ms is None for each in trio.engine.partitions()] == [True, False, True]
    trio.fragile[1].moves.set()
    await trio.back()
    assert trio.engine.partitions()[1].out_ms is None
    await trio.engine.close()


async def test_killed_between_writing_ids_and_map() -> None:
    trio = Trio()
    await trio.engine.open()
    await trio.engine.close()
    second = trio.fragile[1].engine
    (kept,) = [each for each in await _records(second) if each.key == "map"]
    await second.open()
    await second.save([Record(kind="partition", key="map", value=None, version=kept.version)])
    await trio.engine.open()
    await trio.engine.close()
    assert "map" in [each.key for each in await _records(second)]


async def _records(engine: object) -> list[Record]:
    await engine.open()  # type: ignore[attr-defined]
    found: list[Record] = await engine.load("partition", limit=9)  # type: ignore[attr-defined]
    return found

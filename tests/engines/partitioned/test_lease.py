"""Leasing from partitions: their order, waiting, and cancelled callers."""

import asyncio

import pytest

from holdfast.conformance.contract.cases import a_job, from_default, lease_ids
from holdfast.core.model import Lease, LeaseRequest
from holdfast.engines.partitioned.placement import place_of
from tests.engines.partitioned.fragile import GONE, Trio, shut_out

pytestmark = pytest.mark.anyio


async def test_the_fullest_partition_is_asked_first_and_none_starves(trio: Trio) -> None:
    await trio.engine.enqueue([a_job(id_) for id_ in trio.names(1, 40)])
    await trio.engine.enqueue([a_job(id_) for id_ in trio.names(2, 2)])
    places = [place_of((await trio.engine.lease(from_default()))[0].token) for _ in range(30)]
    assert places[0] == 1
    assert places.count(2) == 2, "a short line beside a long one is served too"


async def test_order_within_a_partition(trio: Trio) -> None:
    low, high, late = trio.names(1, 3)
    await trio.engine.enqueue([a_job(late, delay_ms=5), a_job(low), a_job(high, priority=9)])
    trio.clock.advance(5)
    assert await lease_ids(trio.engine) == [high, low, late]


async def test_one_call_takes_from_all_up_to_its_limit(trio: Trio) -> None:
    for place in range(3):
        await trio.engine.enqueue([a_job(id_) for id_ in trio.names(place, 4)])
    assert len(await lease_ids(trio.engine, limit=10)) == 10
    assert len(await lease_ids(trio.engine, limit=10)) == 2


async def test_ids_come_in_the_order_of_the_request(trio: Trio) -> None:
    ids = [trio.names(place, 2)[n] for n in range(2) for place in range(3)]
    await trio.engine.enqueue([a_job(id_) for id_ in ids])
    request = LeaseRequest(ids=(ids[3], "nobody", ids[0], ids[4]), limit=2)
    assert [lease.id for lease in await trio.engine.lease(request)] == [ids[3], ids[0]]


@pytest.mark.parametrize("place", range(3))
async def test_a_wait_ends_with_a_job_of_any_partition(trio: Trio, place: int) -> None:
    waiting = asyncio.create_task(trio.engine.lease(from_default(9, wait_ms=60_000)))
    await asyncio.sleep(0)
    ids = trio.names(place, 3)
    await trio.engine.enqueue([a_job(id_) for id_ in ids])
    assert sorted(lease.id for lease in await waiting) == sorted(ids)


async def test_leases_over_the_limit_are_released(trio: Trio) -> None:
    waiting = asyncio.create_task(trio.engine.lease(from_default(wait_ms=60_000)))
    await trio.waiting()
    ids = [trio.names(place, 1)[0] for place in range(3)]
    await trio.engine.enqueue([a_job(id_) for id_ in ids])
    (lease,) = await waiting
    await trio.engine._leaser.close()
    rest = sorted(await lease_ids(trio.engine))
    assert sorted([*rest, lease.id]) == sorted(ids)


async def test_a_cancelled_wait_holds_no_lease(trio: Trio) -> None:
    waiting = asyncio.create_task(trio.engine.lease(from_default(wait_ms=60_000)))
    await trio.waiting()
    await trio.engine.enqueue([a_job(trio.names(0, 1)[0])])
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await trio.engine._leaser.close()
    assert await lease_ids(trio.engine) == trio.names(0, 1)


async def test_a_call_cancelled_between_two_partitions_holds_no_lease(trio: Trio) -> None:
    ids = trio.names(0, 2)
    await trio.engine.enqueue([a_job(id_) for id_ in ids])
    asked = asyncio.Event()

    async def hang(_: LeaseRequest) -> None:
        asked.set()
        await asyncio.Event().wait()

    for each in trio.fragile[1:]:
        each.engine.lease = hang  # type: ignore[method-assign,assignment]
    taking = asyncio.create_task(trio.engine.lease(from_default(9)))
    await asked.wait()
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    await trio.engine._leaser.close()
    for each in trio.fragile[1:]:
        del each.engine.lease
    assert await lease_ids(trio.engine) == ids


async def test_leases_of_a_wait_are_returned_though_all_partitions_fail(trio: Trio) -> None:
    (own,) = trio.names(0, 1)
    lease = trio.fragile[0].engine.lease

    async def then_fail(request: LeaseRequest) -> list[Lease]:
        leases = await lease(request)
        if leases:
            for each in trio.fragile:
                each.fault = GONE
        return leases

    trio.fragile[0].engine.lease = then_fail  # type: ignore[method-assign]
    waiting = asyncio.create_task(trio.engine.lease(from_default(9, wait_ms=60_000)))
    await trio.waiting()
    await trio.engine.enqueue([a_job(own)])
    assert [lease.id for lease in await waiting] == [own]


async def test_ids_in_a_failed_partition_do_not_block_others(trio: Trio) -> None:
    ids = [trio.names(place, 1)[0] for place in range(3)]
    await trio.engine.enqueue([a_job(id_) for id_ in ids])

    async def fail(_: LeaseRequest) -> None:
        raise GONE

    trio.fragile[1].engine.lease = fail  # type: ignore[method-assign,assignment]
    leases = await trio.engine.lease(LeaseRequest(ids=tuple(ids), limit=3))
    assert [lease.id for lease in leases] == [ids[0], ids[2]]


async def test_closing_ends_a_wait(trio: Trio) -> None:
    waiting = asyncio.create_task(trio.engine.lease(from_default(wait_ms=60_000)))
    await asyncio.sleep(0)
    await trio.engine.close()
    assert await waiting == []


async def test_a_wait_continues_without_a_failed_partition_and_uses_it_again(trio: Trio) -> None:
    await shut_out(trio, 1)
    waiting = asyncio.create_task(trio.engine.lease(from_default(wait_ms=60_000)))
    await asyncio.sleep(0)
    trio.fragile[1].fault = None
    (own,) = trio.names(1, 1)
    await trio.fragile[1].engine.enqueue([a_job(own)])
    await trio.back()
    assert [lease.id for lease in await waiting] == [own]

"""Home partitions of ids, keys, groups, children and records."""

import pytest
from uuid_utils import uuid7

from holdfast.conformance.contract.cases import a_job, from_default
from holdfast.core.model import JobFilter, NewJob, Queue, Record, Status
from holdfast.core.partitions import home_of
from holdfast.core.verdict import Complete, Delete, Settlement
from holdfast.engines.base import Saved
from holdfast.engines.partitioned.placement import is_made
from holdfast.engines.wrapper import enforced
from holdfast.errors import Unsupported, UsageError
from tests.engines.partitioned.fragile import Trio, shut_out, where

pytestmark = pytest.mark.anyio


async def test_ids_keys_groups_and_records_are_stored_in_their_homes(trio: Trio) -> None:
    engine = trio.engine
    for place in range(3):
        (own,), (tag,) = trio.names(place, 1), trio.tags(place, 1)
        await engine.enqueue(
            [a_job(own), a_job(f"k{place}", key=tag), a_job(f"g{place}", group=tag)]
        )
        for id_ in (own, f"k{place}", f"g{place}"):
            assert await where(trio, id_) == [place]
        record = Record(kind="setting", key=str(place), value=b"v")
        assert await engine.save([record]) == [Saved.SAVED]
    homes = [home_of(f"setting/{n}", 3) for n in range(3)]
    kept = [await each.engine.load("setting", limit=9) for each in trio.fragile]
    for n in range(3):
        assert str(n) in [record.key for record in kept[homes[n]]]
    assert [record.key for record in await engine.load("setting", limit=9)] == ["0", "1", "2"]


async def test_a_user_given_id_is_unique_over_all_partitions(trio: Trio) -> None:
    """Its first job went for its key to another partition than the id's home."""
    (own,), (tag,), (other,) = trio.names(0, 1), trio.tags(1, 1), trio.tags(2, 1)
    await trio.engine.enqueue([a_job(own, key=tag)])
    for again in (a_job(own), a_job(own, key=other), a_job(own, group=other)):
        (receipt,) = await trio.engine.enqueue([again])
        assert (receipt.id, receipt.status) == (own, Status.DUPLICATE)
    assert await where(trio, own) == [1]


async def test_an_id_twice_in_one_call(trio: Trio) -> None:
    one, other = trio.tags(1, 1)[0], trio.tags(2, 1)[0]
    receipts = await trio.engine.enqueue([a_job("x", key=one), a_job("x", key=other)])
    assert [receipt.status for receipt in receipts] == [Status.NEW, Status.DUPLICATE]
    assert await where(trio, "x") == [1]
    bad = a_job("y", key=one, queue="nowhere")
    receipts = await trio.engine.enqueue([bad, a_job("y", key=other)])
    assert [receipt.status for receipt in receipts] == [Status.REFUSED, Status.NEW]
    assert await where(trio, "y") == [2]


async def test_a_job_with_two_homes_is_refused_alone(trio: Trio) -> None:
    torn = a_job("a", key=trio.tags(0, 1)[0], group=trio.tags(1, 1)[0])
    receipts = await trio.engine.enqueue([torn, a_job("b")])
    assert [receipt.code for receipt in receipts] == ["unsupported", ""]
    assert "the same {tag}" in receipts[0].text
    assert await where(trio, "a") == []


async def test_a_minted_id_has_its_home_in_the_emptiest_partition(trio: Trio) -> None:
    full = [*trio.names(0, 5), *trio.names(2, 3)]
    await trio.engine.enqueue([a_job(id_) for id_ in full])
    made = {trio.engine.mint() for _ in range(20)}
    assert len(made) == 20
    assert {home_of(id_, 3) for id_ in made} == {1}
    assert all(is_made(id_) for id_ in made)
    await shut_out(trio, 1)
    assert home_of(trio.engine.mint(), 3) == 2


async def test_children_follow_their_parents(trio: Trio) -> None:
    one, other = trio.names(0, 1)[0], trio.names(1, 1)[0]
    await trio.engine.enqueue([a_job(one), a_job(other)])
    child = NewJob(id=trio.names(2, 1)[0], task="work", after=(one,))
    torn = NewJob(id="torn", task="work", after=(one, other))
    receipts = await trio.engine.enqueue([child, torn])
    assert [receipt.code for receipt in receipts] == ["", "unsupported"]
    assert await where(trio, child.id) == [0]
    (again,) = await trio.engine.enqueue([child])
    assert again.status is Status.DUPLICATE


async def test_repeating_a_child_whose_parent_was_deleted(trio: Trio) -> None:
    (parent,) = trio.names(1, 1)
    child = next(id_ for _ in range(1_000) if home_of(id_ := str(uuid7()), 3) == 0)
    await trio.engine.enqueue([a_job(parent)])
    jobs = [a_job(child, after=(parent,))]
    assert [each.status for each in await trio.engine.enqueue(jobs)] == [Status.NEW]
    (lease,) = await trio.engine.lease(from_default())
    await trio.engine.settle([Settlement(lease=lease, verdict=Complete())])
    await trio.engine.amend(JobFilter(ids=(parent,)), Delete(), limit=1)
    assert [each.status for each in await trio.engine.enqueue(jobs)] == [Status.DUPLICATE]
    assert await where(trio, child) == [1]


async def test_settings_that_need_one_count_are_refused(trio: Trio) -> None:
    with pytest.raises(Unsupported, match="partitioned engine does not support max_depth"):
        await enforced(trio.engine).declare(Queue(name="q", max_depth=5))
    assert [view.queue.name for view in await trio.engine.queues()] == ["default"]


async def test_its_own_records_are_reserved(trio: Trio) -> None:
    for kind in ("partition", "partition-queue"):
        with pytest.raises(UsageError, match="own"):
            await trio.engine.load(kind, limit=1)
        with pytest.raises(UsageError, match="own"):
            await trio.engine.save([Record(kind=kind, key="map", value=b"")])

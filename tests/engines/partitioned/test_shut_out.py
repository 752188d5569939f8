"""A partition that fails is shut out and retried; the others continue."""

import asyncio

import pytest

from holdfast.conformance.contract.cases import a_job, a_queue, from_default, lease_ids
from holdfast.core.model import JobFilter, LeaseRequest, NewJob, Record, Renewal, Status
from holdfast.core.partitions import home_of
from holdfast.core.verdict import Cancel, Complete, Outcome, Settlement
from holdfast.engines.partitioned.placement import place_of
from holdfast.errors import EngineUnavailable, OutcomeUnknown, StorageFull
from tests.engines.partitioned.fragile import GONE, Trio, shut_out, where

pytestmark = pytest.mark.anyio


async def test_with_one_of_three_gone_the_others_continue(trio: Trio) -> None:
    engine = trio.engine
    ids = [id_ for place in range(3) for id_ in trio.names(place, 2)]
    await engine.enqueue([a_job(id_) for id_ in ids])
    await shut_out(trio, 1)
    more = [id_ for place in range(3) for id_ in trio.names(place, 4)[2:]]
    receipts = await engine.enqueue([a_job(id_) for id_ in more])
    assert [receipt.code for receipt in receipts] == ["", "", *["unavailable"] * 2, "", ""]
    assert "p2 is shut out (nobody answers)" in receipts[2].text
    leases = await engine.lease(from_default(100))
    assert len(leases) == 8
    assert {place_of(lease.token) for lease in leases} == {0, 2}
    done = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
    assert set(await engine.settle(done)) == {Outcome.SETTLED}
    (view,) = await engine.queues()
    assert (view.done, view.ready) == (8, 0)
    assert {"done", "ready"} <= view.estimated, "at least so many"
    trio.fragile[1].fault = None
    await trio.back()
    assert sorted(await lease_ids(engine)) == sorted(trio.names(1, 2))


async def test_a_job_whose_home_is_out_raises_unavailable(trio: Trio) -> None:
    await shut_out(trio, 1)
    with pytest.raises(EngineUnavailable, match="p2 is shut out"):
        await trio.engine.enqueue([a_job(trio.names(1, 1)[0])])
    with pytest.raises(EngineUnavailable):
        await trio.engine.save([Record(kind="s", key=_key_at(1), value=b"")])


async def test_a_job_that_may_be_in_a_lost_partition_is_not_reported_missing(trio: Trio) -> None:
    (here,), (there,) = trio.names(0, 1), trio.names(1, 1)
    await trio.engine.enqueue([a_job(here), a_job(there)])
    await shut_out(trio, 1)
    assert await trio.engine.get(here) is not None
    for id_ in (there, "nobody"):
        with pytest.raises(EngineUnavailable, match="p2"):
            await trio.engine.get(id_)
    child = NewJob(id="c", task="work", after=(there,))
    with pytest.raises(EngineUnavailable):
        await trio.engine.enqueue([child])
    found = await trio.engine.find(JobFilter(), limit=9)
    assert [job.id for job in found.jobs] == [here]
    assert await trio.engine.amend(JobFilter(), Cancel(), limit=9) == 1


async def test_a_batch_with_a_lost_partition_keeps_its_other_answers(trio: Trio) -> None:
    ids = [trio.names(place, 1)[0] for place in range(3)]
    await trio.engine.enqueue([a_job(id_) for id_ in ids])
    leases = await trio.engine.lease(LeaseRequest(ids=tuple(ids), limit=3))
    await shut_out(trio, 1)
    with pytest.raises(OutcomeUnknown, match="1 of 3 items have no answer") as unknown:
        await trio.engine.renew([Renewal(lease=lease) for lease in leases])
    assert sorted(unknown.value.known) == [0, 2]
    assert unknown.value.known[0].token == leases[0].token
    done = [Settlement(lease=lease, verdict=Complete()) for lease in leases]
    with pytest.raises(OutcomeUnknown) as unknown:
        await trio.engine.settle(done)
    assert unknown.value.known == {0: Outcome.SETTLED, 2: Outcome.SETTLED}
    trio.fragile[1].fault = None
    await trio.back()
    assert await trio.engine.settle(done) == [Outcome.SETTLED] * 3


async def test_a_full_disk_refuses_new_jobs_but_settles(trio: Trio) -> None:
    (own, more) = trio.names(1, 2)
    await trio.engine.enqueue([a_job(own)])
    (lease,) = await trio.engine.lease(from_default())
    await shut_out(trio, 1, StorageFull("the disk is full"))
    trio.fragile[1].fault = None
    with pytest.raises(EngineUnavailable, match="the disk is full"):
        await trio.engine.enqueue([a_job(more)])
    assert await trio.engine.settle([Settlement(lease=lease, verdict=Complete())]) == [
        Outcome.SETTLED
    ]


async def test_a_lost_reply_is_unknown_and_its_repeat_adds_nothing(trio: Trio) -> None:
    ids = [trio.names(place, 1)[0] for place in range(3)]
    jobs = [a_job(id_) for id_ in ids]
    enqueue = trio.fragile[1].engine.enqueue

    async def lose(new: list[NewJob]) -> None:
        await enqueue(new)
        raise OutcomeUnknown("the connection broke")

    trio.fragile[1].engine.enqueue = lose  # type: ignore[method-assign,assignment]
    with pytest.raises(OutcomeUnknown) as unknown:
        await trio.engine.enqueue(jobs)
    assert {at: answer.status for at, answer in unknown.value.known.items()} == {
        0: Status.NEW,
        2: Status.NEW,
    }
    trio.fragile[1].engine.enqueue = enqueue  # type: ignore[method-assign]
    with pytest.raises(EngineUnavailable):
        await trio.engine.enqueue(jobs[1:2])
    await trio.back()
    receipts = await trio.engine.enqueue(jobs)
    assert [receipt.status for receipt in receipts] == [Status.DUPLICATE] * 3
    for id_ in ids:
        assert len(await where(trio, id_)) == 1


async def test_with_all_partitions_gone_calls_raise(trio: Trio) -> None:
    for each in trio.fragile:
        each.fault = GONE
    for _ in range(2):
        with pytest.raises(EngineUnavailable):
            await trio.engine.lease(from_default())
    for call in (
        trio.engine.enqueue([a_job("a")]),
        trio.engine.queues(),
        trio.engine.overdue(1),
        trio.engine.find(JobFilter(), limit=1),
        trio.engine.amend(JobFilter(), Cancel(), limit=1),
        trio.engine.declare(a_queue("q")),
        trio.engine.lease(from_default(wait_ms=60_000)),
    ):
        with pytest.raises(EngineUnavailable):
            await call


async def test_a_shut_out_partition_is_reported(
    trio: Trio, caplog: pytest.LogCaptureFixture
) -> None:
    await shut_out(trio, 1)
    assert "partition p2 is shut out: nobody answers" in caplog.text
    examined = await trio.engine.examine()
    assert examined.trouble == ("partition p2 is shut out, with its jobs: nobody answers",)
    views = trio.engine.partitions()
    assert [(view.name, view.out_ms is None, view.code) for view in views] == [
        ("p1", True, ""),
        ("p2", False, "unavailable"),
        ("p3", True, ""),
    ]
    trio.fragile[1].fault = None
    await trio.back()
    assert "partition p2 is back in use" in caplog.text
    assert (await trio.engine.examine()).trouble == ()


async def test_a_partition_is_retried_with_back_off_until_a_clean_read(trio: Trio) -> None:
    await shut_out(trio, 1)
    for _ in range(4):
        await trio.pauses.end()
    await trio.pauses.begun()
    asked = trio.pauses.asked_s
    for n, seconds in enumerate(asked[:5]):
        assert 0.05 * 2**n <= seconds <= 0.1 * 2**n
    trio.fragile[1].fault = None
    trio.fragile[1].calls.clear()
    await trio.back()
    assert {"overdue", "expired"} <= set(trio.fragile[1].calls)
    assert trio.engine.partitions()[1].out_ms is None


async def test_a_partition_is_retried_after_any_error(trio: Trio) -> None:
    await shut_out(trio, 1)
    trio.fragile[1].fault = MemoryError("no room for a thread")  # type: ignore[assignment]
    await trio.pauses.end()
    await trio.pauses.begun()
    assert "no room for a thread" in trio.engine.partitions()[1].text
    trio.fragile[1].fault = None
    await trio.back()
    assert trio.engine.partitions()[1].out_ms is None


async def test_a_call_that_fails_after_close_reopens_nothing() -> None:
    trio = Trio()
    await trio.engine.open()
    asked, closed = asyncio.Event(), asyncio.Event()

    async def hang(_: str) -> None:
        asked.set()
        await closed.wait()
        raise GONE

    for each in trio.fragile:
        each.engine.get = hang  # type: ignore[method-assign,assignment]
    asking = asyncio.create_task(trio.engine.get("x"))
    await asked.wait()
    await trio.engine.close()
    closed.set()
    with pytest.raises(EngineUnavailable):
        await asking
    assert trio.engine._members._tries == {}


async def test_a_read_only_partition_stays_out(trio: Trio) -> None:
    await shut_out(trio, 1)
    trio.fragile[1].fault = None
    engine = trio.fragile[1].engine
    save = engine.save

    async def fail(records: list[Record]) -> None:
        raise EngineUnavailable("it is read-only")

    engine.save = fail  # type: ignore[method-assign,assignment]
    await trio.pauses.end()
    await trio.pauses.begun()
    assert trio.engine.partitions()[1].text == "it is read-only"
    engine.save = save  # type: ignore[method-assign]
    await trio.back()
    assert trio.engine.partitions()[1].out_ms is None


def _key_at(place: int) -> str:
    return next(key for key in map(str, range(100)) if home_of(f"s/{key}", 3) == place)

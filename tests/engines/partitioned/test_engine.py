"""Where jobs go, who is asked, and what becomes of the others when a partition fails."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from uuid_utils import uuid7

from holdfast.core.model import (
    JobFilter,
    Lease,
    LeaseRequest,
    NewJob,
    Queue,
    QueueView,
    Record,
    Renewal,
    Status,
)
from holdfast.core.verdict import Cancel, Complete, Delete, Outcome, Settlement
from holdfast.engines.base import Saved
from holdfast.engines.partitioned import PartitionedEngine, settings
from holdfast.engines.partitioned.homes import home_of, is_made, place_of
from holdfast.errors import (
    ConfigError,
    EngineUnavailable,
    OutcomeUnknown,
    StorageFull,
    Unsupported,
    UsageError,
)
from holdfast.testing.contract.making import a_job, a_queue, from_default, lease_ids
from tests.engines.partitioned.fragile import Trio

GONE = EngineUnavailable("nobody answers")

pytestmark = pytest.mark.anyio


@pytest.fixture
async def trio() -> AsyncIterator[Trio]:
    trio = Trio()
    await trio.engine.open()
    yield trio
    await trio.engine.close()


async def where(trio: Trio, id: str) -> list[int]:
    return [
        place for place, each in enumerate(trio.fragile) if await each.engine.get(id) is not None
    ]


async def shut_out(trio: Trio, place: int, fault: EngineUnavailable | StorageFull = GONE) -> None:
    trio.fragile[place].fault = fault
    await trio.engine.queues()


class TestHomes:
    async def test_ids_keys_groups_and_records_are_at_home(self, trio: Trio) -> None:
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

    async def test_an_id_of_a_person_is_one_over_all_partitions(self, trio: Trio) -> None:
        """Its first job went for its key to another partition than the id's home."""
        (own,), (tag,), (other,) = trio.names(0, 1), trio.tags(1, 1), trio.tags(2, 1)
        await trio.engine.enqueue([a_job(own, key=tag)])
        for again in (a_job(own), a_job(own, key=other), a_job(own, group=other)):
            (receipt,) = await trio.engine.enqueue([again])
            assert (receipt.id, receipt.status) == (own, Status.DUPLICATE)
        assert await where(trio, own) == [1]

    async def test_an_id_twice_in_one_call(self, trio: Trio) -> None:
        one, other = trio.tags(1, 1)[0], trio.tags(2, 1)[0]
        receipts = await trio.engine.enqueue([a_job("x", key=one), a_job("x", key=other)])
        assert [receipt.status for receipt in receipts] == [Status.NEW, Status.DUPLICATE]
        assert await where(trio, "x") == [1]
        bad = a_job("y", key=one, queue="nowhere")
        receipts = await trio.engine.enqueue([bad, a_job("y", key=other)])
        assert [receipt.status for receipt in receipts] == [Status.REFUSED, Status.NEW]
        assert await where(trio, "y") == [2]

    async def test_two_homes_are_refused_beside_their_neighbours(self, trio: Trio) -> None:
        torn = a_job("a", key=trio.tags(0, 1)[0], group=trio.tags(1, 1)[0])
        receipts = await trio.engine.enqueue([torn, a_job("b")])
        assert [receipt.code for receipt in receipts] == ["unsupported", ""]
        assert "the same {tag}" in receipts[0].text
        assert await where(trio, "a") == []

    async def test_a_made_id_goes_to_the_emptiest_in_use(self, trio: Trio) -> None:
        full = [*trio.names(0, 5), *trio.names(2, 3)]
        await trio.engine.enqueue([a_job(id_) for id_ in full])
        made = {trio.engine.mint() for _ in range(20)}
        assert len(made) == 20
        assert {home_of(id_, 3) for id_ in made} == {1}
        assert all(is_made(id_) for id_ in made)
        await shut_out(trio, 1)
        assert home_of(trio.engine.mint(), 3) == 2

    async def test_children_follow_their_parents(self, trio: Trio) -> None:
        one, other = trio.names(0, 1)[0], trio.names(1, 1)[0]
        await trio.engine.enqueue([a_job(one), a_job(other)])
        child = NewJob(id=trio.names(2, 1)[0], task="work", after=(one,))
        torn = NewJob(id="torn", task="work", after=(one, other))
        receipts = await trio.engine.enqueue([child, torn])
        assert [receipt.code for receipt in receipts] == ["", "unsupported"]
        assert await where(trio, child.id) == [0]
        (again,) = await trio.engine.enqueue([child])
        assert again.status is Status.DUPLICATE

    async def test_the_repeat_for_a_child_whose_parent_is_gone_by_now(self, trio: Trio) -> None:
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

    async def test_what_each_would_count_apart_is_refused(self, trio: Trio) -> None:
        with pytest.raises(Unsupported, match="max_depth over 3 partitions"):
            await trio.engine.declare(Queue(name="q", max_depth=5))
        assert [view.queue.name for view in await trio.engine.queues()] == ["default"]

    async def test_its_own_records_are_not_for_others(self, trio: Trio) -> None:
        for kind in ("partition", "partition-queue"):
            with pytest.raises(UsageError, match="own"):
                await trio.engine.load(kind, limit=1)
            with pytest.raises(UsageError, match="own"):
                await trio.engine.save([Record(kind=kind, key="map", value=b"")])


class TestLeasing:
    async def test_the_fullest_is_asked_first_and_no_one_is_forgotten(self, trio: Trio) -> None:
        await trio.engine.enqueue([a_job(id_) for id_ in trio.names(1, 40)])
        await trio.engine.enqueue([a_job(id_) for id_ in trio.names(2, 2)])
        places = [place_of((await trio.engine.lease(from_default()))[0].token) for _ in range(30)]
        assert places[0] == 1
        assert places.count(2) == 2, "a short line beside a long one is served too"

    async def test_order_within_a_partition(self, trio: Trio) -> None:
        low, high, late = trio.names(1, 3)
        await trio.engine.enqueue([a_job(late, delay_ms=5), a_job(low), a_job(high, priority=9)])
        trio.clock.advance(5)
        assert await lease_ids(trio.engine) == [high, low, late]

    async def test_one_call_takes_from_all_up_to_its_limit(self, trio: Trio) -> None:
        for place in range(3):
            await trio.engine.enqueue([a_job(id_) for id_ in trio.names(place, 4)])
        assert len(await lease_ids(trio.engine, limit=10)) == 10
        assert len(await lease_ids(trio.engine, limit=10)) == 2

    async def test_ids_come_in_the_order_asked(self, trio: Trio) -> None:
        ids = [trio.names(place, 2)[n] for n in range(2) for place in range(3)]
        await trio.engine.enqueue([a_job(id_) for id_ in ids])
        request = LeaseRequest(ids=(ids[3], "nobody", ids[0], ids[4]), limit=2)
        assert [lease.id for lease in await trio.engine.lease(request)] == [ids[3], ids[0]]

    @pytest.mark.parametrize("place", range(3))
    async def test_a_wait_ends_with_a_job_of_any_partition(self, trio: Trio, place: int) -> None:
        waiting = asyncio.create_task(trio.engine.lease(from_default(9, wait_ms=60_000)))
        await asyncio.sleep(0)
        ids = trio.names(place, 3)
        await trio.engine.enqueue([a_job(id_) for id_ in ids])
        assert sorted(lease.id for lease in await waiting) == sorted(ids)

    async def test_more_than_was_asked_for_is_given_back(self, trio: Trio) -> None:
        waiting = asyncio.create_task(trio.engine.lease(from_default(wait_ms=60_000)))
        await trio.waiting()
        ids = [trio.names(place, 1)[0] for place in range(3)]
        await trio.engine.enqueue([a_job(id_) for id_ in ids])
        (lease,) = await waiting
        await trio.engine._leaser.close()
        rest = sorted(await lease_ids(trio.engine))
        assert sorted([*rest, lease.id]) == sorted(ids)

    async def test_who_leaves_has_nothing_in_hand(self, trio: Trio) -> None:
        waiting = asyncio.create_task(trio.engine.lease(from_default(wait_ms=60_000)))
        await trio.waiting()
        await trio.engine.enqueue([a_job(trio.names(0, 1)[0])])
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await trio.engine._leaser.close()
        assert await lease_ids(trio.engine) == trio.names(0, 1)

    async def test_who_leaves_between_two_partitions_has_nothing_in_hand(self, trio: Trio) -> None:
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

    async def test_what_a_wait_took_is_given_though_all_fail_then(self, trio: Trio) -> None:
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

    async def test_ids_of_one_that_fails_keep_no_other_back(self, trio: Trio) -> None:
        ids = [trio.names(place, 1)[0] for place in range(3)]
        await trio.engine.enqueue([a_job(id_) for id_ in ids])

        async def fail(_: LeaseRequest) -> None:
            raise GONE

        trio.fragile[1].engine.lease = fail  # type: ignore[method-assign,assignment]
        leases = await trio.engine.lease(LeaseRequest(ids=tuple(ids), limit=3))
        assert [lease.id for lease in leases] == [ids[0], ids[2]]

    async def test_closing_ends_a_wait(self, trio: Trio) -> None:
        waiting = asyncio.create_task(trio.engine.lease(from_default(wait_ms=60_000)))
        await asyncio.sleep(0)
        await trio.engine.close()
        assert await waiting == []

    async def test_a_wait_goes_on_without_the_one_that_fails_and_with_it_again(
        self, trio: Trio
    ) -> None:
        await shut_out(trio, 1)
        waiting = asyncio.create_task(trio.engine.lease(from_default(wait_ms=60_000)))
        await asyncio.sleep(0)
        trio.fragile[1].fault = None
        (own,) = trio.names(1, 1)
        await trio.fragile[1].engine.enqueue([a_job(own)])
        await trio.back()
        assert [lease.id for lease in await waiting] == [own]


class TestFaults:
    async def test_with_one_of_three_gone_the_others_go_on(self, trio: Trio) -> None:
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

    async def test_a_job_whose_home_is_out_is_refused_by_an_error(self, trio: Trio) -> None:
        await shut_out(trio, 1)
        with pytest.raises(EngineUnavailable, match="p2 is shut out"):
            await trio.engine.enqueue([a_job(trio.names(1, 1)[0])])
        with pytest.raises(EngineUnavailable):
            await trio.engine.save([Record(kind="s", key=_key_at(1), value=b"")])

    async def test_what_may_be_in_a_partition_that_is_out_is_not_denied(self, trio: Trio) -> None:
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

    async def test_a_batch_that_is_partly_out_has_its_other_answers(self, trio: Trio) -> None:
        ids = [trio.names(place, 1)[0] for place in range(3)]
        await trio.engine.enqueue([a_job(id_) for id_ in ids])
        leases = await trio.engine.lease(LeaseRequest(ids=tuple(ids), limit=3))
        await shut_out(trio, 1)
        with pytest.raises(OutcomeUnknown, match="1 of 3 have no answer") as unknown:
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

    async def test_a_full_disk_takes_nothing_new_but_settles(self, trio: Trio) -> None:
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

    async def test_a_lost_reply_is_unknown_and_its_repeat_adds_nothing(self, trio: Trio) -> None:
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

    async def test_with_all_of_them_gone_nothing_is_pretended(self, trio: Trio) -> None:
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

    async def test_it_is_reported(self, trio: Trio, caplog: pytest.LogCaptureFixture) -> None:
        await shut_out(trio, 1)
        assert "partition p2 is shut out: nobody answers" in caplog.text
        examined = await trio.engine.examine()
        assert examined.trouble == ("partition p2 is shut out, with what is in it: nobody answers",)
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

    async def test_it_is_asked_again_with_back_off_until_a_clean_read(self, trio: Trio) -> None:
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

    async def test_it_is_asked_again_whatever_went_wrong(self, trio: Trio) -> None:
        await shut_out(trio, 1)
        trio.fragile[1].fault = MemoryError("no room for a thread")  # type: ignore[assignment]
        await trio.pauses.end()
        await trio.pauses.begun()
        assert "no room for a thread" in trio.engine.partitions()[1].text
        trio.fragile[1].fault = None
        await trio.back()
        assert trio.engine.partitions()[1].out_ms is None

    async def test_a_call_that_fails_after_the_end_opens_nothing(self) -> None:
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
        assert trio.engine._keeper._tries == {}

    async def test_one_that_can_be_read_but_not_written_stays_out(self, trio: Trio) -> None:
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


class TestSettings:
    async def test_who_was_out_hears_of_them_before_it_comes_back(self, trio: Trio) -> None:
        engine = trio.engine
        await engine.declare(a_queue("old"))
        await shut_out(trio, 1)
        await engine.declare(a_queue("grave"))
        await engine.declare(a_queue("q", dead_queue="grave", lease_ms=77))
        await engine.declare(a_queue("default", paused=True))
        await engine.drop("old")
        trio.fragile[1].fault = None
        await trio.back()
        views = [await each.engine.queues(counts=False) for each in trio.fragile]
        assert views[0] == views[1] == views[2]
        assert [view.queue.name for view in views[1]] == ["default", "grave", "q"]
        assert views[1][0].queue.paused

    async def test_what_is_said_while_it_comes_back_is_heard_too(self, trio: Trio) -> None:
        await trio.engine.declare(a_queue("old"))
        await shut_out(trio, 1)
        inner = trio.fragile[1].engine
        queues = inner.queues

        async def late(*, counts: bool = True) -> list[QueueView]:
            found = await queues(counts=counts)
            if not counts:
                # It has heard what the others know, and is not in use yet.
                inner.queues = queues  # type: ignore[method-assign]
                await trio.engine.declare(a_queue("new"))
            return found

        inner.queues = late  # type: ignore[method-assign]
        trio.fragile[1].fault = None
        await trio.back()
        names = [view.queue.name for view in await queues()]
        assert names == ["default", "new", "old"]

    async def test_only_a_new_queue_is_made_and_everywhere(self, trio: Trio) -> None:
        engine = trio.engine
        made = await asyncio.gather(
            *(engine.declare(a_queue("q", lease_ms=100 + n), instead_of=None) for n in range(5))
        )
        assert sum(made) == 1
        assert not await engine.declare(a_queue("q"), instead_of=None)
        await trio.fragile[home_of("half", 3)].engine.declare(a_queue("half", lease_ms=77))
        assert not await engine.declare(a_queue("half"), instead_of=None)
        views = [await each.engine.queues(counts=False) for each in trio.fragile]
        assert views[0] == views[1] == views[2]
        assert views[0][1].queue == a_queue("half", lease_ms=77)
        assert not await engine.declare(a_queue("none"), instead_of=a_queue("none"))
        assert await engine.declare(a_queue("half"), instead_of=a_queue("half", lease_ms=77))
        assert [view.queue.name for view in await engine.queues()] == ["default", "half", "q"]

    async def test_of_two_at_once_all_partitions_keep_the_same(self, trio: Trio) -> None:
        engine = trio.engine
        for _ in range(5):
            await asyncio.gather(
                *(engine.declare(a_queue("q", lease_ms=100 + n)) for n in range(5)),
                engine.drop("q"),
            )
            views = [await each.engine.queues(counts=False) for each in trio.fragile]
            assert views[0] == views[1] == views[2]

    async def test_no_change_of_many_at_once_is_lost(self, trio: Trio) -> None:
        async def add() -> None:
            written = False
            while not written:
                known = (await trio.engine.queues(counts=False))[0].queue
                more = a_queue(lease_ms=known.lease_ms + 1)
                written = await trio.engine.declare(more, instead_of=known)

        before = (await trio.engine.queues())[0].queue.lease_ms
        await asyncio.gather(*(add() for _ in range(8)))
        views = [await each.engine.queues(counts=False) for each in trio.fragile]
        assert [view[0].queue.lease_ms for view in views] == [before + 8] * 3

    async def test_whoever_acts_last_does_the_greatest_word(self, trio: Trio) -> None:
        """Another process says and does a greater one while this one is about to act."""
        engine = trio.fragile[0].engine
        old, new = (settings.Word(n, a_queue("q", lease_ms=n * 100)) for n in (1, 2))
        declare = engine.declare

        async def late(queue: Queue) -> bool:
            engine.declare = declare  # type: ignore[method-assign]
            await settings.bring(engine, "q", new)
            return await declare(queue)

        engine.declare = late  # type: ignore[method-assign,assignment]
        await settings.bring(engine, "q", old)
        assert (await engine.queues(counts=False))[1].queue == new.queue

    async def test_what_a_killed_process_left_undone_is_done_at_the_next_opening(self) -> None:
        trio = Trio()
        await trio.engine.open()
        trio.fragile[2].engine.declare = _killed  # type: ignore[method-assign,assignment]
        with pytest.raises(Killed):
            await trio.engine.declare(a_queue("q", lease_ms=50))
        del trio.fragile[2].engine.declare
        await trio.engine.close()
        await trio.engine.open()
        views = [await each.engine.queues(counts=False) for each in trio.fragile]
        assert views[0] == views[1] == views[2]
        await trio.engine.close()

    async def test_what_was_decided_and_reached_nobody_is_in_doubt(self) -> None:
        trio = Trio()
        await trio.engine.open()
        for each in trio.fragile:
            each.engine.declare = _gone  # type: ignore[method-assign,assignment]
        with pytest.raises(OutcomeUnknown, match="a part of it had happened"):
            await trio.engine.declare(a_queue("q", lease_ms=50))
        for each in trio.fragile:
            del each.engine.declare
        await trio.engine.close()
        await trio.engine.open()
        views = [await each.engine.queues(counts=False) for each in trio.fragile]
        assert [view[1].queue.lease_ms for view in views] == [50] * 3
        await trio.engine.close()


class TestOpening:
    async def test_a_map_that_changed_is_refused(self) -> None:
        trio = Trio()
        await trio.engine.open()
        await trio.engine.close()
        one, two, three = ((f"p{n}", each) for n, each in enumerate(trio.fragile, 1))
        stranger = ("p4", Trio().fragile[0])
        for wrong, says in (
            ([one, two], "names 2"),
            ([one, two, three, stranger], "names 4"),
            ([two, one, three], "p2 is given as partition 1 and is partition 2"),
            ([one, two, stranger], r"p4 is another store than partition 3 \(p3\)"),
            ([one, two, two], "p2 is given as partition 3 and is partition 2"),
        ):
            with pytest.raises(ConfigError, match=says):
                await PartitionedEngine(wrong).open()  # type: ignore[arg-type]
        await trio.engine.open()
        await trio.engine.close()

    async def test_the_same_store_twice(self) -> None:
        one = ("p1", Trio().fragile[0])
        with pytest.raises(ConfigError, match="the same store"):
            await PartitionedEngine([one, one]).open()  # type: ignore[list-item]

    async def test_a_store_with_jobs_cannot_become_one_of_several(self) -> None:
        trio = Trio()
        await trio.fragile[1].open()
        await trio.fragile[1].enqueue([a_job("a")])
        with pytest.raises(ConfigError, match="p2 holds jobs from before"):
            await trio.engine.open()

    async def test_the_first_opening_needs_all_and_the_next_do_not(self) -> None:
        trio = Trio()
        trio.fragile[1].fault = GONE
        with pytest.raises(EngineUnavailable, match=r"never opened together .* p2 is out"):
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

    async def test_another_that_opens_for_the_first_time_in_the_same_moment(self) -> None:
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

    async def test_without_any_partition_it_does_not_open(self) -> None:
        trio = Trio()
        for each in trio.fragile:
            each.fault = GONE
        with pytest.raises(EngineUnavailable):
            await trio.engine.open()

    async def test_one_that_fails_its_first_read_is_shut_out(self) -> None:
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

    async def test_killed_between_the_names_and_the_map(self) -> None:
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


class Killed(BaseException):
    """Nothing that follows is done."""


async def _records(engine: object) -> list[Record]:
    await engine.open()  # type: ignore[attr-defined]
    found: list[Record] = await engine.load("partition", limit=9)  # type: ignore[attr-defined]
    return found


async def _gone(queue: Queue) -> None:
    raise GONE


async def _killed(queue: Queue) -> None:
    raise Killed


def _key_at(place: int) -> str:
    return next(key for key in map(str, range(100)) if home_of(f"s/{key}", 3) == place)

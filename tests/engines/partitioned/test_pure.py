"""The pure parts: homes, map, health, placement, traits, cursors and merging."""

import random
from collections import Counter

import pytest
import uuid_utils
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.model import Job, Lease, NewJob, Page, Queue, QueueView
from holdfast.core.partitions import home_of
from holdfast.engines.base import Expired, Overdue, Traits
from holdfast.engines.partitioned import engine, merge, partition, placement
from holdfast.engines.partitioned.partition import (
    PartitionIdentity,
    PartitionStore,
    check_distinct,
    check_map,
    known_map,
)
from holdfast.engines.support import Support
from holdfast.errors import ConfigError, EngineUnavailable, StorageFull, Unsupported, UsageError

STORES = (PartitionStore("1", "a"), PartitionStore("2", "b"), PartitionStore("3", "c"))
NAMES = ["a", "b", "c"]
HERE = {place: PartitionIdentity(store.id, STORES) for place, store in enumerate(STORES)}
FAULT = EngineUnavailable("gone")


def new(id: str, **fields: object) -> NewJob:
    return NewJob(id=id, task="t", **fields)  # type: ignore[arg-type]


class TestHomes:
    def test_homes_never_change(self) -> None:
        """Jobs are where they were put: another hash would not find them."""
        assert [home_of(name, 3) for name in ("a", "b", "c", "é", "\ud800", "")] == PINNED

    def test_homes_are_evenly_distributed(self) -> None:
        counts = Counter(home_of(f"job-{n}", 5) for n in range(5_000))
        assert set(counts) == set(range(5))
        assert min(counts.values()) > 850

    def test_one_more_partition_moves_names_only_to_it(self) -> None:
        for n in range(500):
            before, after = home_of(str(n), 3), home_of(str(n), 4)
            assert after in (before, 3)

    def test_a_tag_decides_for_keys_and_groups(self) -> None:
        together = {placement.tagged_home(name, 7) for name in ("{x}", "mail {x}", "{x}{y}", "x")}
        assert len(together) == 1
        assert placement.tagged_home("{}", 7) == home_of("{}", 7)

    def test_minted_ids_are_recognised(self) -> None:
        assert placement.is_made(str(uuid_utils.uuid7()))
        for id_ in ("a", str(uuid_utils.uuid4()), str(uuid_utils.uuid7()).upper(), "x" * 36):
            assert not placement.is_made(id_)

    @given(token=st.integers(1, 2**53), place=st.integers(0, placement.PARTITIONS_MAX - 1))
    def test_a_token_includes_its_partition(self, token: int, place: int) -> None:
        lease = Lease(job=Job(id="a", task="t", queue="q", token=token), token=token, lease_ms=1)
        shown = placement.outer(lease, place)
        assert placement.place_of(shown.token) == place
        assert shown.job.token == shown.token
        assert placement.inner(shown).token == token


PINNED = [2, 0, 2, 0, 1, 0]


class TestMap:
    def test_the_same_stores_in_the_same_order(self) -> None:
        assert known_map(NAMES, HERE) == STORES
        check_map(STORES, NAMES, HERE)
        check_map(STORES, NAMES, {1: HERE[1]})
        check_distinct(NAMES, HERE)

    def test_there_is_no_map_before_the_first_opening(self) -> None:
        assert known_map(NAMES, {0: PartitionIdentity("1"), 1: PartitionIdentity()}) is None

    def test_a_store_with_an_id_but_no_map(self) -> None:
        check_map(STORES, NAMES, {**HERE, 1: PartitionIdentity("2")})

    @pytest.mark.parametrize(
        ("names", "found", "says"),
        [
            (["a", "b"], {0: HERE[0], 1: HERE[1]}, r"3 partitions \(a, b, c\) and the URL lists 2"),
            ([*NAMES, "d"], {**HERE, 3: PartitionIdentity()}, "lists 4"),
            (["b", "a", "c"], {0: HERE[1], 1: HERE[0]}, "b is listed as partition 1 but is part"),
            (
                ["a", "x", "c"],
                {**HERE, 1: PartitionIdentity()},
                r"x is not the store of partition 2 \(b\)",
            ),
            (
                NAMES,
                {**HERE, 1: PartitionIdentity("9")},
                r"b is not the store of partition 2 \(b\)",
            ),
            (
                NAMES,
                {1: PartitionIdentity("2", STORES[:2])},
                r"b is a partition of another set \(a, b\)",
            ),
        ],
    )
    def test_a_map_that_changed_is_refused(
        self, names: list[str], found: dict[int, PartitionIdentity], says: str
    ) -> None:
        with pytest.raises(ConfigError, match=says) as refusal:
            check_map(STORES, names, found)
        assert "List a, b, c, in this order" in str(refusal.value)

    def test_a_lost_store_affects_only_itself(self) -> None:
        with pytest.raises(EngineUnavailable, match=r"b is empty, but partition 2 is not.*restore"):
            check_map(STORES, NAMES, {**HERE, 1: PartitionIdentity()})

    def test_two_sets_and_one_store_twice(self) -> None:
        with pytest.raises(ConfigError, match="a and b are partitions of different sets"):
            known_map(NAMES, {0: HERE[0], 1: PartitionIdentity("9", STORES[1:])})
        with pytest.raises(ConfigError, match=r"partitions 1 and 3 .* the same store"):
            check_distinct(NAMES, {0: PartitionIdentity("1"), 2: PartitionIdentity("1")})


class TestHealth:
    def test_the_back_off_doubles_up_to_its_bound(self) -> None:
        now, one = partition.WELL_MS, partition.PartitionHealth()
        waits = []
        for _ in range(12):
            one = partition.after_failure(one, FAULT, now)
            waits.append(partition.retry_ms(one))
        assert waits[:4] == [100, 200, 400, 800]
        assert waits[-1] == partition.RETRY_MS_MAX
        assert one.out_at == now
        assert one.is_out

    def test_a_repeated_failure_continues_the_back_off(self) -> None:
        one = partition.after_failure(partition.PartitionHealth(), FAULT, partition.WELL_MS)
        back = partition.after_clean_read(one, partition.WELL_MS)
        assert not back.is_out
        assert back.error is None
        soon = partition.after_failure(back, FAULT, 2 * partition.WELL_MS - 1)
        assert partition.retry_ms(soon) == 200
        late = partition.after_failure(back, FAULT, 2 * partition.WELL_MS)
        assert partition.retry_ms(late) == 100

    def test_a_full_disk_still_settles(self) -> None:
        assert partition.after_failure(partition.PartitionHealth(), StorageFull("full"), 0).settles
        assert not partition.after_failure(partition.PartitionHealth(), FAULT, 0).settles
        assert partition.PartitionHealth().settles


class TestPlacing:
    def test_a_plain_job_goes_by_its_id(self) -> None:
        jobs = [new(f"j{n}", after=()) for n in range(20)]
        assert placement.arrange(jobs, 3, {}) == [home_of(job.id, 3) for job in jobs]

    def test_a_group_and_a_key_go_before_the_id(self) -> None:
        for n in range(20):
            by_key, by_group = new(f"j{n}", key="k"), new(f"j{n}", group="g")
            assert placement.arrange([by_key, by_group], 3, {}) == [
                placement.tagged_home("k", 3),
                placement.tagged_home("g", 3),
            ]

    def test_a_key_and_a_group_of_two_homes_are_refused_and_a_tag_helps(self) -> None:
        groups = [f"g{n}" for n in range(20)]
        answers = placement.arrange([new("a", key="k", group=group) for group in groups], 3, {})
        home = placement.tagged_home("k", 3)
        for group, answer in zip(groups, answers, strict=True):
            if placement.tagged_home(group, 3) == home:
                assert answer == home
            else:
                assert isinstance(answer, Unsupported)
                assert f"group {group}" in str(answer)
                assert "the same {tag}" in str(answer)
        tagged = [new("a", key=f"{{{group}}} k", group=group) for group in groups]
        assert all(isinstance(each, int) for each in placement.arrange(tagged, 3, {}))

    def test_children_go_where_their_parents_are(self) -> None:
        jobs = [new(f"c{n}", after=("p",)) for n in range(9)]
        assert placement.arrange(jobs, 3, {"p": 1}) == [1] * 9

    def test_a_family_of_one_call_stays_together(self) -> None:
        family = [new("c", after=("a", "b")), new("b", after=("a",)), new("a"), new("d")]
        places = placement.arrange(family, 3, {})
        assert places[:3] == [home_of("a", 3)] * 3, "the one without parents"
        assert places[3] == home_of("d", 3)
        bound = [*family[:2], new("a", group="g")]
        assert placement.arrange(bound, 3, {}) == [placement.tagged_home("g", 3)] * 3

    def test_a_family_of_two_homes_is_refused_whole(self) -> None:
        away = next(place for place in range(3) if place != placement.tagged_home("g", 3))
        family = [new("a", group="g"), new("b", after=("a",)), new("c", after=("b", "p"))]
        answers = placement.arrange(family, 3, {"p": away})
        assert all(isinstance(answer, Unsupported) for answer in answers)

    def test_parents_in_two_partitions(self) -> None:
        (answer,) = placement.arrange([new("c", after=("p", "q"))], 3, {"p": 0, "q": 2})
        assert isinstance(answer, Unsupported)
        assert "parent p; parent q" in str(answer)

    def test_a_dependency_circle_terminates(self) -> None:
        circle = [new("a", after=("b",)), new("b", after=("a",)), new("c", after=("c",))]
        assert all(isinstance(each, int) for each in placement.arrange(circle, 3, {}))


class TestTraits:
    def test_common_traits_without_those_that_need_one_count(self) -> None:
        able = Traits(name="x", durable=True, shared=True, groups=True, rates=True, batch_max=9)
        less = Traits(name="y", durable=True, shared=False, groups=False, rates=True)
        both = engine.common_traits([able, less])
        assert (both.name, both.durable, both.shared) == ("partitioned", True, False)
        assert (both.groups, both.rates, both.ordered, both.batch_max) == (False, False, False, 9)
        alone = engine.common_traits([able])
        assert (alone.rates, alone.ordered, alone.transactional) == (True, True, False)

    def test_settings_that_need_one_count_are_refused(self) -> None:
        full = Traits(name="x", durable=True, shared=True, rates=True)
        one, three = (Support(engine.common_traits([full] * count)) for count in (1, 3))
        for settings in ({"max_depth": 1}, {"fairness": "shares"}):
            queue = Queue(name="q", **settings)
            one.check_queue(queue)
            with pytest.raises(Unsupported, match=f"support {next(iter(settings))}: leave it out"):
                three.check_queue(queue)


class TestCursor:
    @given(st.lists(st.none() | st.just(-1) | st.integers(0, 2**63 - 1), min_size=1, max_size=16))
    def test_a_cursor_round_trips(self, marks: list[int | None]) -> None:
        positions = [
            merge.PartitionCursor(None if mark == -1 else mark, ended=mark == -1) for mark in marks
        ]
        back = merge.decode_cursor(merge.encode_cursor(positions), len(marks))
        assert [(each.after, each.ended) for each in back] == [
            (each.after, each.ended) for each in positions
        ]

    @pytest.mark.parametrize("after", [-1, 0, 1, 10**30, 2**193, "x", 1.5])
    def test_an_invalid_cursor_is_refused(self, after: int) -> None:
        with pytest.raises(UsageError, match="not a cursor of this engine"):
            merge.decode_cursor(after, 3)


class TestMerging:
    @pytest.mark.parametrize("seed", range(30))
    def test_pages_skip_and_repeat_nothing(self, seed: int) -> None:
        """Each partition answers short pages now and then, and one is out for a while."""
        dice = random.Random(seed)
        stores: list[list[Job]] = [
            [
                Job(id=f"{place}-{seq}", task="t", queue="q", seq=seq, created_at=seq // 2 * place)
                for seq in range(dice.randint(0, 12), 0, -1)
            ]
            for place in range(3)
        ]
        found: list[str] = []
        after: int | None = None
        for _ in range(200):
            positions = merge.decode_cursor(after, 3)
            out = dice.choice([0, 1, 2, None, None])
            pages = {}
            for place, store in enumerate(stores):
                if place != out and not positions[place].ended:
                    seen = positions[place].after
                    rest = [job for job in store if seen is None or job.seq < seen]
                    size = dice.choice([0, 1, 2, 5])
                    scanned = rest[: size or 1]
                    more = len(rest) > len(scanned)
                    page = scanned if size else []
                    if not size:
                        more, scanned = True, []
                    mark = scanned[-1].seq if scanned else seen
                    pages[place] = Page(
                        jobs=tuple(page), after=(2**62 if mark is None else mark) if more else None
                    )
            if not pages:
                continue
            page_ = merge.page(positions, pages, 4)
            assert len(page_.jobs) <= 4
            found += [job.id for job in page_.jobs]
            after = merge.encode_cursor(positions)
            if page_.after is None and all(each.ended for each in positions):
                break
        else:
            pytest.fail(f"no end with seed {seed}")
        assert Counter(found) == Counter(job.id for store in stores for job in store)
        for place in range(3):
            own = [id_ for id_ in found if id_.startswith(f"{place}-")]
            assert own == [job.id for job in stores[place]]

    def test_newest_first_over_all(self) -> None:
        def page(*times: int) -> Page:
            return Page(
                jobs=tuple(
                    Job(id=str(at), task="t", queue="q", seq=at, created_at=at) for at in times
                )
            )

        merged = merge.page(merge.decode_cursor(None, 2), {0: page(9, 4, 1), 1: page(7, 5)}, 10)
        assert [job.created_at for job in merged.jobs] == [9, 7, 5, 4, 1]
        assert merged.after is None

    def test_the_earliest_deadline_of_any_partition(self) -> None:
        some = {0: Overdue(leases=(), next_ms=7), 1: Overdue(leases=(), next_ms=None)}
        assert merge.overdue(some, 5).next_ms == 7
        assert merge.overdue({0: some[1]}, 5).next_ms is None
        jobs = tuple(Job(id=str(n), task="t", queue="q", expires_at=n) for n in range(3))
        late = merge.expired({0: Expired(jobs=jobs), 1: Expired(jobs=jobs, next_ms=4)}, 4)
        assert [job.expires_at for job in late.jobs] == [0, 0, 1, 1]
        assert late.next_ms == 0

    def test_counts_are_added_and_marked_if_incomplete(self) -> None:
        def view(name: str, ready: int, age: int | None) -> QueueView:
            return QueueView(queue=Queue(name=name), ready=ready, dead=1, oldest_age_ms=age)

        found = {1: [view("a", 1, None)], 0: [view("a", 2, 5), view("b", 4, 1)]}
        a, b = merge.queues(found, whole=True)
        assert (a.ready, a.dead, a.oldest_age_ms, a.estimated) == (3, 2, 5, frozenset())
        assert (b.queue.name, b.ready) == ("b", 4)
        assert "ready" in merge.queues(found, whole=False)[0].estimated

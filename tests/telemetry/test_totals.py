"""Histograms and counts laid together: nothing is lost between buckets, and names are bounded."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.telemetry.accounts import Account, written
from holdfast.telemetry.totals import (
    BOUNDS,
    COUNTERS,
    OTHER,
    QUEUES_MAX,
    Histogram,
    QueueTotals,
    Totals,
    histogram,
    label_of,
    summed_up,
)


@given(st.lists(st.integers(0, 10_000_000), max_size=100))
def test_many_at_once_are_counted_as_one_by_one(values: list[int]) -> None:
    one, many = histogram("time"), histogram("time")
    for value in values:
        one.add(value)
    many.add_all(values)
    assert one == many
    assert many.count == len(values)


def test_a_value_on_a_bound_is_below_it() -> None:
    found = histogram("time")
    found.add_all([0, 1, 2, 5, 7_200_000, 7_200_001])
    assert found.counts[:2] == [2, 2]
    assert found.counts[-2:] == [1, 1]


@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_quantile_is_in_the_bucket_of_the_real_one(values: list[int], share: float) -> None:
    found = histogram("time")
    found.add_all(values)
    real = sorted(values)[max(0, -(-int(share * len(values) * 1e9) // 10**9) - 1)]
    told = found.quantile(share)
    assert told is not None
    bounds = (0, *BOUNDS["time"])
    at = next(n for n in range(1, len(bounds)) if real <= bounds[n])
    assert bounds[at - 1] <= told <= bounds[at]


def test_nothing_has_no_quantile_and_much_has_the_last_bound() -> None:
    found = histogram("batch")
    assert found.quantile(0.5) is None
    found.add(100_000)
    assert found.quantile(0.5) == BOUNDS["batch"][-1]


def test_what_is_taken_away_was_added() -> None:
    dice = random.Random(7)
    one, two = some_totals(dice), some_totals(dice)
    back = one.plus(two).plus(two, -1)
    for name, each in one.queues.items():
        assert {key: n for key, n in back.queues[name].counts.items() if n} == each.counts
        assert back.queues[name].waits == each.waits
    assert back.lags == one.lags
    assert back.requests == one.requests


def test_many_are_summed_as_two_are_and_none_is_changed() -> None:
    dice = random.Random(11)
    some = [some_totals(dice) for _ in range(5)]
    before = msgspec.json.encode(some)
    expected = Totals()
    for each in some:
        expected = expected.plus(each)
    assert summed_up(some) == expected
    assert msgspec.json.encode(some) == before


def test_other_buckets_than_these_are_not_added() -> None:
    one = histogram("time")
    one.add(3)
    assert one.plus(histogram("lag")) == one


def test_totals_survive_the_way_to_the_store() -> None:
    totals = some_totals(random.Random(3))
    assert msgspec.json.decode(msgspec.json.encode(totals), type=Totals) == totals


def test_queues_beyond_the_bound_and_those_of_workers_share_one_name() -> None:
    known: dict[str, QueueTotals] = {}
    for number in range(QUEUES_MAX):
        name = label_of(f"q{number}", known)
        assert name == f"q{number}"
        known[name] = QueueTotals()
    assert label_of("one-more", known) == OTHER
    assert label_of("q3", known) == "q3"
    assert label_of("worker.host-1", {}) == OTHER
    assert label_of("", {}) == OTHER


def test_queues_without_a_name_are_added_up() -> None:
    totals = Totals()
    for name in ("a", "b", "c", OTHER):
        totals.queues[name] = QueueTotals({"enqueued": 1})
    assert {name: each.counts for name, each in totals.named(["a"]).queues.items()} == {
        "a": {"enqueued": 1},
        OTHER: {"enqueued": 3},
    }


def test_the_fullest_account_fits_in_a_record() -> None:
    big = 2**53
    full = Histogram("time", [big] * (len(BOUNDS["time"]) + 1), big)
    queue = QueueTotals(dict.fromkeys(COUNTERS, big), full, full)
    totals = Totals(queues={f"{'q' * 75}{number:05}": queue for number in range(QUEUES_MAX)})
    # Beside it, Ended remembers a thousand accounts.
    assert len(written(Account(totals=totals))) < limits.RECORD_MAX - 100_000
    requests = {
        f"operation_{number:30}": {f"{status}xx": histogram("request") for status in range(1, 6)}
        for number in range(2_000)
    }
    kept = written(Account(totals=replace(totals, requests=requests)))
    assert len(kept) < limits.RECORD_MAX
    assert msgspec.json.decode(kept, type=Account).totals == totals


@pytest.mark.parametrize("scale", list(BOUNDS))
def test_bounds_grow(scale: str) -> None:
    bounds = BOUNDS[scale]  # type: ignore[index]
    assert list(bounds) == sorted(set(bounds))


def some_totals(dice: random.Random) -> Totals:
    totals = Totals()
    for name in ("default", "mail", OTHER):
        queue = totals.queues[name] = QueueTotals()
        for counter in dice.sample(sorted(COUNTERS), 5):
            queue.add(counter, dice.randrange(1, 1_000))
        queue.waits.add_all([dice.randrange(100_000) for _ in range(40)])
        queue.runs.add_all([dice.randrange(100_000) for _ in range(5)])
    totals.lags["worker"] = histogram("lag")
    totals.lags["worker"].add(12)
    totals.requests["enqueue"] = {"2xx": histogram("request")}
    totals.requests["enqueue"]["2xx"].add(3)
    return totals

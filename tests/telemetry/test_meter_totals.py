"""Sums of histograms and counts: nothing is lost between buckets, and labels are bounded."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core import bounds
from holdfast.telemetry.accounts import ACCOUNTS, ENDED_ACCOUNTS, Account, EndedAccounts
from holdfast.telemetry.meter import (
    BOUNDS,
    COUNTERS,
    METERED_MAX,
    OTHER,
    QUEUES_MAX,
    Histogram,
    QueueTotals,
    Totals,
    histogram,
    queue_label,
    rank_queues,
    sum_totals,
)


@given(st.lists(st.integers(0, 10_000_000), max_size=100))
def test_adding_many_equals_adding_one_by_one(values: list[int]) -> None:
    one, many = histogram("time"), histogram("time")
    for value in values:
        one.add(value)
    many.add_all(values)
    assert one == many
    assert many.count == len(values)


def test_a_value_on_a_bound_counts_below_it() -> None:
    found = histogram("time")
    found.add_all([0, 1, 2, 5, 7_200_000, 7_200_001])
    assert found.counts[:2] == [2, 2]
    assert found.counts[-2:] == [1, 1]


@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_estimateis_in_the_bucket_of_the_real_one(values: list[int], share: float) -> None:
    found = histogram("time")
    found.add_all(values)
    real = sorted(values)[max(0, -(-int(share * len(values) * 1e9) // 10**9) - 1)]
    estimate = found.quantile(share)
    assert estimate is not None
    bounds = (0, *BOUNDS["time"])
    at = next(n for n in range(1, len(bounds)) if real <= bounds[n])
    assert bounds[at - 1] <= estimate <= bounds[at]


def test_an_empty_histogram_has_no_quantile() -> None:
    found = histogram("batch")
    assert found.quantile(0.5) is None
    found.add(100_000)
    assert found.quantile(0.5) == BOUNDS["batch"][-1]


def test_subtracting_undoes_adding() -> None:
    dice = random.Random(7)
    one, two = some_totals(dice), some_totals(dice)
    back = one.plus(two).plus(two, -1)
    for name, each in one.queues.items():
        assert {key: n for key, n in back.queues[name].counts.items() if n} == each.counts
        assert back.queues[name].waits == each.waits
    assert back.lags == one.lags
    assert back.requests == one.requests


def test_sums_of_many_change_no_argument() -> None:
    dice = random.Random(11)
    some = [some_totals(dice) for _ in range(5)]
    before = msgspec.json.encode(some)
    expected = Totals()
    for each in some:
        expected = expected.plus(each)
    assert sum_totals(some) == expected
    assert msgspec.json.encode(some) == before


def test_other_scales_are_not_added() -> None:
    one = histogram("time")
    one.add(3)
    assert one.plus(histogram("lag")) == one


def test_totals_survive_encoding() -> None:
    totals = some_totals(random.Random(3))
    assert msgspec.json.decode(msgspec.json.encode(totals), type=Totals) == totals


def test_extra_queues_share_one_label() -> None:
    known: dict[str, QueueTotals] = {}
    for number in range(QUEUES_MAX):
        name = queue_label(f"q{number}", known)
        assert name == f"q{number}"
        known[name] = QueueTotals()
    assert queue_label("one-more", known) == OTHER
    assert queue_label("q3", known) == "q3"
    assert queue_label("worker.host-1", {}) == "worker.host-1"
    assert queue_label("", {}) == OTHER


def test_queues_without_a_label_are_summed() -> None:
    totals = Totals()
    for name in ("a", "b", "c", OTHER):
        totals.queues[name] = QueueTotals({"enqueued": 1})
    assert {name: each.counts for name, each in totals.named(["a"]).queues.items()} == {
        "a": {"enqueued": 1},
        OTHER: {"enqueued": 3},
    }


def test_the_busiest_queues_keep_their_labels() -> None:
    counts = {"a": 5, "b": 9, OTHER: 100, "c": 9, "d": 1}
    queues = {
        name: QueueTotals({"enqueued": count - 1, "leased": 1}) for name, count in counts.items()
    }
    assert rank_queues(queues) == ["b", "c", "a", "d"]
    assert rank_queues(queues, {"a"}) == ["a", "b", "c", "d"], "a known one counts double"
    folded = Totals(queues=queues).busiest(2).queues
    assert {name: each.jobs for name, each in folded.items()} == {"b": 9, "c": 9, OTHER: 106}


def test_the_fullest_account_fits_in_a_record() -> None:
    big = bounds.COUNT_MAX // METERED_MAX
    full = Histogram("time", [big] * (len(BOUNDS["time"]) + 1), big)
    queue = QueueTotals(dict.fromkeys(COUNTERS, big), full, full)
    every = Totals(queues={f"{'q' * 75}{number:05}": queue for number in range(METERED_MAX)})
    some = ACCOUNTS.encode_value(Account(totals=every))
    assert len(some) <= bounds.RECORD_MAX
    queues = msgspec.json.decode(some, type=Account).totals.queues
    assert OTHER in queues
    assert len(queues) > 100
    assert sum(each.jobs for each in queues.values()) == METERED_MAX * 2 * big
    ended = EndedAccounts(
        queues=tuple(every.queues)[:QUEUES_MAX],
        added={f"worker-{number:013}-12345678": number for number in range(1_000)},
        totals=every,
    )
    assert len(ENDED_ACCOUNTS.encode_value(ended)) <= bounds.RECORD_MAX
    totals = every.busiest(50)
    requests = {
        f"operation_{number:30}": {f"{status}xx": histogram("request") for status in range(1, 6)}
        for number in range(2_000)
    }
    kept = ACCOUNTS.encode_value(Account(totals=replace(totals, requests=requests)))
    assert len(kept) < bounds.RECORD_MAX
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

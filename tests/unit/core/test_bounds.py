"""The bounds are consistent with each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.conformance import inputs
from holdfast.core import bounds
from holdfast.core.checks import check_queue
from holdfast.core.fairness import (
    BUSY_HALF_LIFE_MS,
    CREDIT,
    TURN,
    decayed,
    is_noisy,
    quantum,
    turn_after,
    turn_now,
)
from holdfast.core.limits import Rate, after_starts, clamp_free_us, free_ms, starts_now
from holdfast.core.model import Queue


def test_the_defaults_are_within_the_bounds() -> None:
    check_queue(Queue(name="default"))


def test_no_instant_leaves_the_safe_range_of_json_readers() -> None:
    """A job enqueued in 2100 with the longest delay, then leased for the longest time."""
    in_2100 = 4_102_444_800_000
    latest = in_2100 + bounds.DELAY_MS_MAX + bounds.LEASE_MS_MAX + bounds.RETENTION_MS_MAX
    assert latest < 2**53


@pytest.mark.parametrize("name", inputs.QUEUE_NAMES)
def test_odd_names_that_are_right(name: str) -> None:
    assert bounds.QUEUE_NAME.match(name)
    assert bounds.NAMESPACE.match(name)


@pytest.mark.parametrize("number", range(len(inputs.BAD_QUEUE_NAMES)))
def test_names_that_are_wrong(number: int) -> None:
    name = inputs.BAD_QUEUE_NAMES[number]
    assert not bounds.QUEUE_NAME.match(name)
    assert not bounds.NAMESPACE.match(name)


def test_no_pattern_lets_a_newline_through_at_the_end() -> None:
    patterns = (
        bounds.QUEUE_NAME,
        bounds.TASK_NAME,
        bounds.JOB_ID,
        bounds.NAMESPACE,
        bounds.RECORD_KIND,
        bounds.CONTENT_TYPE,
    )
    for pattern in patterns:
        assert pattern.match("a")
        assert not pattern.match("a\n")


rates = st.builds(
    Rate, count=st.integers(1, 50), per_ms=st.integers(1, 2_000), burst=st.integers(1, 20)
)
SECOND_US = 1_000_000


def starts(rate: Rate, steps_us: list[int]) -> list[int]:
    """The instants of everything that starts if as many as may are started at every look."""
    now, free, found = 10 * SECOND_US, 0, []
    for step in steps_us:
        count = starts_now(rate, clamp_free_us(rate, free, now), now)
        free = after_starts(rate, free, now, count)
        found += [now] * count
        now += step
    return found


@given(rates, st.lists(st.integers(0, 300_000), min_size=1, max_size=60))
def test_no_window_sees_more_than_the_rate_and_its_burst(rate: Rate, steps: list[int]) -> None:
    instants = starts(rate, steps)
    for first in instants:
        inside = sum(first <= other < first + rate.per_ms * 1_000 for other in instants)
        assert inside <= rate.count + rate.burst - 1


@given(rates)
def test_who_comes_often_enough_gets_all_of_it(rate: Rate) -> None:
    looks = 3 * rate.count
    # Rounding up to whole microseconds costs at most one start in a while.
    assert len(starts(rate, [rate.apart_us] * looks)) >= looks


@given(rates, st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_time_to_the_next_start_is_right(rate: Rate, free_us: int, now_us: int) -> None:
    free_us = clamp_free_us(rate, free_us, now_us)
    wait_ms = free_ms(rate, free_us, now_us)
    assert (wait_ms == 0) == (starts_now(rate, free_us, now_us) > 0)
    assert starts_now(rate, free_us, now_us + wait_ms * 1_000) > 0
    if wait_ms:
        assert starts_now(rate, free_us, now_us + (wait_ms - 1) * 1_000) == 0


@given(rates, st.integers(0, 10**15))
def test_no_clock_shuts_a_rate_for_longer_than_its_burst(rate: Rate, now_us: int) -> None:
    free_us = clamp_free_us(rate, 2**60, now_us)
    assert free_ms(rate, free_us, now_us) <= -(-rate.apart_us // 1_000)


def test_a_thousand_a_second_are_evenly_apart() -> None:
    assert Rate(count=1_000, per_ms=1_000).apart_us == 1_000
    assert Rate(count=3, per_ms=1_000).apart_us == 333_334


@pytest.mark.parametrize(
    ("limit", "most"), [(1, 1), (24, 1), (25, 2), (74, 3), (75, 4), (1_000, 4)]
)
def test_a_quantum(limit: int, most: int) -> None:
    assert quantum(limit) == most


def test_a_turn_is_shorter_the_more_a_tenant_weighs() -> None:
    assert turn_after(0, 1, 1) == TURN
    assert turn_after(TURN, 4, 2) == 3 * TURN
    assert turn_after(0, 1, 1_000) == 1


def test_who_was_quiet_has_a_bounded_credit() -> None:
    assert turn_now(5, 7) == 5
    assert turn_now(0, 3 * CREDIT) == 2 * CREDIT


def test_processing_time_fades() -> None:
    assert decayed(1_000.0, BUSY_HALF_LIFE_MS) == 500.0
    assert decayed(1_000.0, -5) == 1_000.0


@pytest.mark.parametrize(
    ("leased", "leased_all", "busy", "busy_all", "noisy"),
    [
        (29, 29, 0, 0, False),
        (30, 299, 0, 0, True),
        (30, 300, 0, 0, False),
        (0, 0, 11, 100, True),
        (0, 0, 10, 100, False),
        (0, 0, 100, 100, True),
        (0, 0, 0, 0, False),
        (30, 30, 100, 100, True),
    ],
)
def test_noise(leased: int, leased_all: int, busy: int, busy_all: int, *, noisy: bool) -> None:
    found = is_noisy(leased=leased, leased_all=leased_all, busy_ms=busy, busy_all_ms=busy_all)
    assert found is noisy

"""Delays: exact without jitter, always within the cap."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.backoff import Backoff, Kind
from holdfast.core.bounds import DELAY_MS_MAX
from holdfast.errors import InvalidQueue

draws = st.floats(0.0, 1.0, exclude_max=True)
backoffs = st.builds(
    Backoff,
    kind=st.sampled_from(("exponential", "linear", "constant")),
    first_ms=st.integers(0, DELAY_MS_MAX),
    factor=st.floats(1.0, 100.0),
    cap_ms=st.integers(0, DELAY_MS_MAX),
    jitter=st.floats(0.0, 1.0),
)


@pytest.mark.parametrize(
    ("kind", "delays"),
    [
        ("exponential", [100, 300, 900, 1_000, 1_000]),
        ("linear", [100, 200, 300, 400, 500]),
        ("constant", [100, 100, 100, 100, 100]),
    ],
)
def test_without_jitter_the_delay_is_exact(kind: Kind, delays: list[int]) -> None:
    backoff = Backoff(kind=kind, first_ms=100, factor=3.0, cap_ms=1_000, jitter=0.0)
    assert [backoff.delay_ms(attempt, 0.7) for attempt in range(1, 6)] == delays


def test_full_jitter_spreads_over_the_whole_delay() -> None:
    backoff = Backoff(first_ms=1_000, jitter=1.0)
    assert backoff.delay_ms(1, 0.0) == 1_000
    assert backoff.delay_ms(1, 0.5) == 500
    assert backoff.delay_ms(1, 0.999) == 1


def test_part_jitter_keeps_a_floor() -> None:
    backoff = Backoff(first_ms=1_000, jitter=0.25)
    assert backoff.delay_ms(1, 0.0) == 1_000
    assert backoff.delay_ms(1, 0.9999) == 750


@given(backoffs, st.integers(1, 10**9), draws)
def test_a_delay_is_a_whole_number_from_zero_to_the_cap(
    backoff: Backoff, attempt: int, draw: float
) -> None:
    delay = backoff.delay_ms(attempt, draw)
    assert isinstance(delay, int)
    assert 0 <= delay <= backoff.cap_ms


@given(backoffs, st.integers(1, 1_000), draws)
def test_a_later_attempt_never_waits_less(backoff: Backoff, attempt: int, draw: float) -> None:
    assert backoff.delay_ms(attempt, draw) <= backoff.delay_ms(attempt + 1, draw)


@pytest.mark.parametrize(
    "bad",
    [
        {"first_ms": -1},
        {"first_ms": DELAY_MS_MAX + 1},
        {"cap_ms": -1},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"factor": float("inf")},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": float("nan")},
    ],
    ids=str,
)
def test_values_out_of_bounds_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidQueue, match=next(iter(bad))):
        Backoff(**bad)
